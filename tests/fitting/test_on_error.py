"""`--on-error` and `--slice` from the command line to the model folder."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import ogkd
from ogkd.cli import main
from ogkd.errors import ConfigError, DataError
from ogkd.fitting.pipeline import fit_seeds
from ogkd.fitting.request import FitRequest
from tiny_data import FAST, write_dataset
from tiny_images import SHADES, dicom, nifti, png

QUICK = ["-b", "builtin", "--method", "ogkd", "--set", "train.epochs=1", "--set", "views=1"]


@pytest.fixture
def command(monkeypatch, capsys):
    """`command("fit", ...)` gives exit code, output and messages."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["ogkd", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    return run


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


@pytest.mark.parametrize("views", [1, "online"])
def test_by_default_all_bad_files_of_all_seeds_are_named(bert_backbone, data, views):
    settings = {**FAST, "views": views}
    with pytest.raises(DataError) as caught:
        fit_seeds(
            FitRequest(data, shots=1, backbone=bert_backbone, method="ogkd", settings=settings),
            [1, 2, 3, 4],
        )
    text = str(caught.value)
    assert "2 file(s) could not be read" in text
    assert "benign_tumor/1.png" in text
    assert "normal_lung/0.png" in text
    assert "skip unreadable files" in text
    assert caught.value.argument == "on_error"


def test_a_fit_that_skips_is_the_fit_without_the_bad_files(bert_backbone, data, clean, tmp_path):
    for shots in (None, 2):
        options = {"backbone": bert_backbone, "method": "ogkd", "settings": FAST, "shots": shots}
        notes = []
        out = tmp_path / f"m{shots}"
        model = ogkd.fit(data, **options, on_error="skip", out=out, say=notes.append)
        expected = ogkd.fit(clean, **options)
        assert torch.equal(model.head.T, expected.head.T)
        assert model.card == expected.card
        rows = skipped(out)
        assert [row["path"] for row in rows] == [
            str(data / "train" / "benign_tumor" / "1.png"),
            str(data / "train" / "normal_lung" / "0.png"),
        ]
        assert "not a readable image" in rows[0]["reason"]
        assert any("Skipped 2 file(s)" in note for note in notes)


def test_files_that_are_not_there_are_skipped_too(bert_backbone, clean, tmp_path):
    rows = [f"{path},{path.parent.name}" for path in sorted((clean / "train").rglob("*.png"))]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,label", *rows, "gone.png,normal_lung"]))
    options = {"backbone": bert_backbone, "method": "ogkd", "settings": FAST}
    with pytest.raises(DataError, match=r"gone\.png"):
        ogkd.fit(table, **options)
    ogkd.fit(table, **options, on_error="skip", out=tmp_path / "m")
    assert [row["path"] for row in skipped(tmp_path / "m")] == [str(tmp_path / "gone.png")]


def test_nothing_to_skip_leaves_an_empty_list_and_stop_leaves_none(bert_backbone, clean, tmp_path):
    options = {"backbone": bert_backbone, "method": "ogkd", "settings": FAST}
    ogkd.fit(clean, **options, on_error="skip", out=tmp_path / "a")
    assert (tmp_path / "a" / "skipped.csv").read_text() == "path,reason\n"
    ogkd.fit(clean, **options, out=tmp_path / "b")
    assert not (tmp_path / "b" / "skipped.csv").exists()


@pytest.mark.parametrize("method", ["ogkd", "zero-shot"])
def test_a_class_left_empty_is_an_error(bert_backbone, data, tmp_path, method):
    for file in (data / "train" / "normal_lung").iterdir():
        file.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"(?s)5 file.*no image is left of: normal lung"):
        ogkd.fit(data, backbone=bert_backbone, method=method, on_error="skip", out=tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_other_words_are_refused(bert_backbone, clean):
    with pytest.raises(ConfigError, match="'stop' or 'skip', but is 'ignore'"):
        ogkd.fit(clean, backbone=bert_backbone, on_error="ignore")
    with pytest.raises(ConfigError, match="'middle' does not name a slice"):
        ogkd.fit(clean, backbone=bert_backbone, slice="middle")


@pytest.fixture
def mixed(tmp_path):
    """Two classes in DICOM, 16-bit PNG and JPEG; one file in each split cannot be read."""
    root = tmp_path / "mixed data ä"
    for split, seed in (("train", 0), ("test", 1)):
        for label, name in enumerate(("benign_cyst", "malignant_tumor")):
            folder = root / split / name
            folder.mkdir(parents=True)
            rng = np.random.default_rng([seed, label])
            deep = rng.integers(0, 3000 if label else 300, (3, 40, 48), dtype=np.uint16)
            dicom(folder / "IM0001", deep[0], WindowCenter=1500, WindowWidth=3000)
            png(folder / "deep one.png", deep[1])
            Image.fromarray((deep[2] // 12).astype(np.uint8)).save(folder / "ü.jpg")
        (root / split / name / "bad.dcm").write_bytes(b"DICM")
    return root


def test_a_folder_of_mixed_formats_is_fitted_judged_and_predicted(command, mixed, tmp_path):
    out = tmp_path / "model"
    code, _, said = command("fit", mixed, "--out", out, *QUICK)
    assert code == 2
    assert "1 file(s) could not be read" in said
    assert "bad.dcm" in said
    assert not out.exists()
    code, text, said = command("fit", mixed, "--out", out, *QUICK, "--on-error", "skip")
    assert code == 0, said
    assert "6 images (benign cyst 3, malignant tumor 3)" in text
    assert "Skipped 1 file(s)" in said
    assert "images/s" in said
    assert [row["path"] for row in skipped(out)] == [
        str(mixed / "train" / "malignant_tumor" / "bad.dcm")
    ]
    result = tmp_path / "r" / "r.json"
    code, _, said = command("evaluate", out, mixed, "--out", result)
    assert code == 2
    assert "bad.dcm" in said
    words = ["evaluate", out, mixed, "--out", result, "--on-error", "skip"]
    code, _, said = command(*words)
    assert code == 0, said
    assert json.loads(result.read_text())["images"] == 6
    assert len(skipped(result.parent)) == 1
    assert "Left out 1 file that" in said
    code, text, said = command("predict", out, mixed / "test")
    assert code == 1
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 7
    assert [row["path"].rsplit("/", 1)[1] for row in rows if row["error"]] == ["bad.dcm"]
    assert all(float(row["probability"]) >= 0.5 for row in rows if not row["error"])


@pytest.fixture
def volumes(tmp_path):
    """Two classes of NIfTI volumes and one cine each."""
    for label, name in enumerate(("cyst", "tumor")):
        folder = tmp_path / "volumes" / name
        folder.mkdir(parents=True)
        for number in range(2):
            rng = np.random.default_rng([label, number])
            nifti(folder / f"{number}.nii.gz", rng.integers(0, 900, (32, 33, 5), dtype=np.int16))
        frames = rng.integers(0, 900, (3, 40, 40), dtype=np.uint16)
        dicom(folder / "cine.dcm", frames, frames=True)
    return tmp_path / "volumes"


def test_the_slice_of_the_fit_is_the_slice_of_the_prediction(command, volumes, tmp_path):
    out = tmp_path / "model"
    code, _, said = command("fit", volumes, "--out", out, *QUICK)
    assert code == 2
    assert "6 file(s)" in said
    assert said.count("axis=2,index=middle") == 1
    code, _, said = command("fit", volumes, "--out", out, *QUICK, "--slice", "axis=2,index=middle")
    assert code == 0, said
    assert ogkd.load(out).card.slice == "axis=2,index=middle"

    def predicted(*words):
        code, text, said = command("predict", out, *words)
        assert code == 0, said
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
    for words in ([], ["--slice", "axis=1,index=0"]):
        code, text, said = command("evaluate", out, volumes, "--json", *words)
        assert code == 0, said
        assert json.loads(text)["images"] == 6
    embedded = tmp_path / "e.safetensors"
    code, text, said = command("embed", volumes, "-o", embedded, "--slice", "axis=1,index=0")
    assert code == 0, said
    assert "6 images" in text
    for verb, *words in (
        ("predict", out, volumes),
        ("evaluate", out, volumes),
        ("embed", volumes, "-o", embedded),
        ("fit", volumes, "-o", tmp_path / "n"),
    ):
        code, _, said = command(verb, *words, "--slice", "middle")
        assert code == 2
        assert "'middle' does not name a slice" in said


def test_slices_of_one_volume_are_told_apart_in_the_store(bert_backbone, volumes):
    from ogkd.features.store import FeatureStore

    store = FeatureStore(bert_backbone)
    volume = volumes / "cyst" / "0.nii.gz"
    addresses = [volume.with_name(f"{volume.name}#axis=2,index={n}") for n in range(5)]
    features = store.get(addresses).globals[:, 0]
    assert store.encoded == 5
    assert len({tuple(row.tolist()) for row in features}) == 5
    store.get(addresses)
    assert store.encoded == 5
    assert store.seconds > 0


def test_a_class_with_fewer_images_than_shots_is_told(command, clean, tmp_path):
    words = ["fit", clean, "-b", "builtin", "-o", tmp_path / "m", "-m", "zero-shot", "--shots", 4]
    code, _, said = command(*words)
    assert code == 0
    assert "fewer than 4 images, all of which are used: 'benign tumor' 3, 'normal lung' 3." in said
    assert "malignant" not in said


def test_a_model_that_skipped_files_is_replaced_by_a_new_fit(bert_backbone, data, clean, tmp_path):
    options = {"backbone": bert_backbone, "method": "ogkd", "settings": FAST, "out": tmp_path / "m"}
    ogkd.fit(data, **options, on_error="skip")
    assert (tmp_path / "m" / "skipped.csv").is_file()
    ogkd.fit(clean, **options, restart=True)
    assert not (tmp_path / "m" / "skipped.csv").exists()


@pytest.mark.slow
def test_dicom_files_without_the_extra_are_skipped_and_the_pip_line_is_said_once(
    command, clean, tmp_path, monkeypatch
):
    """In fit, evaluate and data check, with skip and with stop."""
    for split in ("train", "test"):
        for number in range(3):
            dicom(clean / split / "normal_lung" / f"{number}.dcm", SHADES)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    model = tmp_path / "model"
    code, _, said = command(
        "fit", clean, "--out", model, "--method", "gda", "--backbone", "builtin"
    )
    assert (code, said.count("pip install")) == (2, 1)
    assert said.count(".dcm is a DICOM file") == 3
    skip = ("--on-error", "skip")
    code, _, said = command(
        "fit", clean, "--out", model, "--method", "gda", "--backbone", "builtin", *skip
    )
    assert (code, said.count("pip install")) == (0, 1)
    assert "Skipped 3 file(s)" in said
    assert all("DICOM" in row["reason"] for row in skipped(model))
    code, _, said = command("evaluate", model, clean, *skip)
    assert (code, said.count("pip install")) == (0, 1)
    assert said.count(".dcm is a DICOM file") == 3
    code, out, said = command("data", "check", clean)
    assert (out + said).count("pip install") == 1
    assert "Files that cannot be read: 6 of" in out + said
