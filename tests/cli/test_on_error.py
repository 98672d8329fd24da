"""`--on-error` and `--slice` from the command line to the model folder."""

from __future__ import annotations

import csv
import io
import shutil

import numpy as np
import pytest
import torch

import ogkd as library
from ogkd.errors import DataError
from tiny_data import FAST, write_dataset
from tiny_images import dicom, nifti
from world import fit

QUICK = ["-b", "builtin", "--method", "ogkd", "--set", "train.epochs=1", "--set", "views=1"]


@pytest.fixture
def data(tmp_path):
    """{train,test} of three classes, with one bad file in two of them in each split."""
    root = write_dataset(tmp_path / "data", splits={"train": 4, "test": 3})
    for split in ("train", "test"):
        (root / split / "benign_tumor" / "1.png").write_bytes(b"no picture")
        (root / split / "normal_lung" / "0.png").write_bytes(b"")
    return root


@pytest.fixture
def clean(data, tmp_path):
    """The same data without the bad files."""
    root = shutil.copytree(data, tmp_path / "clean")
    for split in ("train", "test"):
        (root / split / "benign_tumor" / "1.png").unlink()
        (root / split / "normal_lung" / "0.png").unlink()
    return root


def skipped(folder):
    with (folder / "skipped.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_fit_that_skips_is_the_fit_without_the_bad_files(
    bert_backbone, data, clean, tmp_path, notes
):
    with pytest.raises(DataError, match=r"(?s)benign_tumor/1\.png.*normal_lung/0\.png") as caught:
        fit(data, bert_backbone, method="ogkd", settings=FAST)
    assert caught.value.argument == "on_error"
    for shots in (None, 4):
        options = {"method": "ogkd", "shots": shots}
        notes.clear()
        out = tmp_path / f"m{shots}"
        model = fit(data, bert_backbone, **options, on_error="skip", out=out)
        expected = fit(clean, bert_backbone, **options)
        assert torch.equal(model.head.T, expected.head.T)
        assert model.card == expected.card
        rows = skipped(out)
        assert [row["path"] for row in rows] == [
            str(data / "train" / "benign_tumor" / "1.png"),
            str(data / "train" / "normal_lung" / "0.png"),
        ]
        assert all(row["reason"] for row in rows)
        assert any("Skipped 2 file(s)" in note for note in notes)
        assert any("fewer than 4" in note for note in notes) == (shots == 4)
        fit(clean, bert_backbone, **options, out=out, restart=True)
        assert not (out / "skipped.csv").exists()


def test_the_slice_of_the_fit_is_the_slice_of_the_prediction(ogkd, tmp_path):
    out, volumes = tmp_path / "model", tmp_path / "volumes"
    for label, name in enumerate(("cyst", "tumor")):  # two volumes and a cine each
        (volumes / name).mkdir(parents=True)
        for number in range(2):
            rng = np.random.default_rng([label, number])
            pixels = rng.integers(0, 900, (32, 33, 5), dtype=np.int16)
            nifti(volumes / name / f"{number}.nii.gz", pixels)
        frames = rng.integers(0, 900, (3, 40, 40), dtype=np.uint16)
        dicom(volumes / name / "cine.dcm", frames, frames=True)
    code, _, err = ogkd("fit", volumes, "--out", out, *QUICK)
    assert code == 2
    assert "6 file(s)" in err
    assert err.count("axis=2,index=middle") == 1  # what to do is said once for all
    code, _, err = ogkd("fit", volumes, "--out", out, *QUICK, "--slice", "axis=2,index=middle")
    assert code == 0, err
    assert str(library.load(out).card.grouping.slice) == "axis=2,index=middle"

    def predicted(*words):
        code, text, err = ogkd("predict", out, *words)
        assert code == 0, err
        return {row["path"]: row["cyst"] for row in csv.DictReader(io.StringIO(text))}

    volume, cine = volumes / "cyst" / "0.nii.gz", volumes / "cyst" / "cine.dcm"
    middle = predicted(volumes)
    assert f"{volume}#axis=2,index=middle" in middle
    assert f"{cine}#index=middle" in middle
    # Beside other images the last bits may differ.
    (alone,) = predicted(f"{volume}#axis=2,index=2").values()
    assert float(alone) == pytest.approx(float(middle[f"{volume}#axis=2,index=middle"]), abs=1e-5)
    first = predicted(volumes, "--slice", "axis=0,index=first")
    assert f"{volume}#axis=0,index=first" in first
    assert first[f"{volume}#axis=0,index=first"] != middle[f"{volume}#axis=2,index=middle"]
    code, _, err = ogkd("predict", out, volumes, "--slice", "middle")
    assert code == 2
    assert "'middle' does not name a slice" in err
