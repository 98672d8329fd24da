"""Volumes and exams on the command line, also those that something is wrong with."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from ogkd.data.phantoms import render_volume, write_volumes
from tiny_data import write_image
from tiny_images import dicom, volume

nibabel = pytest.importorskip("nibabel")
FIT = ("--backbone", "builtin", "--shots", "2")


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("volumes") / "ct"
    splits = {"train": 2, "test": 1}
    return write_volumes("ct-kidney", folder, splits=splits, slices=6, share=0.5, size=128)


@pytest.fixture
def scans(tmp_path):
    """Two volumes of each of two classes, in `train`, and one of each in `test`."""
    for split, count in (("train", 2), ("test", 1)):
        for label, name in enumerate(("cyst", "normal")):
            for number in range(count):
                folder = tmp_path / "scans" / split / name
                folder.mkdir(parents=True, exist_ok=True)
                volume(folder / f"{number}.nii", filled=range(4, 7 + label), depth=12)
    return tmp_path / "scans"


@pytest.fixture
def fit(clip, tmp_path):
    return lambda data, *more: (
        *("fit", data, "--backbone", clip, "--method", "gda", "--out", tmp_path / "model"),
        *(more or ("--slices", "all")),
    )


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def blank(path):
    values = np.full((20, 24, 6), np.nan, np.float32)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)
    return path


GOOD = ("a.png,cyst,1,A,train", "b.png,stone,2,B,train", "c.png,cyst,3,C,test")


def table(folder, *lines):
    lines = (*GOOD, *lines)
    for seed, line in enumerate(lines):
        write_image(folder / line.split(",")[0], seed)
    path = folder / "exams.csv"
    path.write_text("\n".join(["path,label,exam,patient,split", *lines]), encoding="utf-8")
    return path


def test_volumes_are_fitted_and_answered_with_the_slices_that_decided(ogkd, volumes, tmp_path):
    model = tmp_path / "model"
    fitted = ogkd("fit", volumes, "--slices", "N=3", "--out", model, *FIT)
    assert fitted.code == 0, fitted.err
    assert "8 cases of 24 images" in fitted.out
    report = tmp_path / "report.html"
    judged = ogkd("evaluate", model, volumes, "--report", report, "--resamples", 0)
    assert judged.code == 0, judged.err
    assert "4 cases" in judged.out
    assert "axis=2,index=" in report.read_text(encoding="utf-8")
    predicted = ogkd("predict", model, volumes / "test")
    assert (predicted.code, len(rows(predicted.out))) == (0, 4)
    for row in rows(predicted.out):
        assert row["images"] == "3"
        assert row["decided_by"].startswith(f"{row['path']}#axis=2,index=")
    both = ogkd("predict", model, volumes / "test", "--format", "jsonl")
    lines = [json.loads(line) for line in both.out.splitlines()]
    assert [len(line["weights"]) for line in lines] == [line["images"] for line in lines] == [3] * 4
    for line in lines:
        assert sum(image["weight"] for image in line["weights"]) == pytest.approx(1, abs=1e-5)
    maps = tmp_path / "maps"
    assert ogkd("predict", model, volumes / "test", "--explain", maps).code == 0
    assert len(list(maps.iterdir())) <= 4  # those that mark what the answer rests on


def test_a_table_of_new_exams_needs_no_labels(ogkd, volumes, tmp_path):
    model, slices = tmp_path / "model", volumes / "slices.csv"
    assert ogkd("fit", slices, "--cases", "exam", "--out", model, *FIT).code == 0
    new = volumes / "new.csv"
    lines = [line.split(",") for line in slices.read_text(encoding="utf-8").splitlines()]
    test = [line for line in lines[1:] if line[-2] == "test"]
    text = "\n".join(f"{line[0]},{line[1]},{line[-1]}" for line in test)
    new.write_text(f"path,exam\n{text}", encoding="utf-8")
    predicted = ogkd("predict", model, new)
    assert predicted.code == 0, predicted.err
    assert [row["path"] for row in rows(predicted.out)] == list(dict.fromkeys(r[-1] for r in test))
    files = ogkd("predict", model, volumes / "test")
    assert files.code == 2
    assert "--cases" in files.err


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        (("--slices", "some"), "--slices"),
        (("--cases", "exam"), "--cases"),
        (("--cases", "series"), "--cases"),
        (("--slices", "all", "--slice", "axis=2,index=1"), "--slice"),
    ],
)
def test_invalid_groupings_are_refused(refused, volumes, tmp_path, options, argument):
    assert argument in refused("fit", volumes, "--out", tmp_path / "model", *FIT, *options)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("d.png,stone,1,A,train", "labels cyst, stone"),
        ("d.png,cyst,1,,test", "splits test, train"),
        ("d.png,cyst,1,Z,train", "patients A, Z"),
        ("d.png,cyst,,A,train", "d.png"),
    ],
)
@pytest.mark.parametrize("command", ["fit", "check", "split"])
def test_exams_that_contradict_themselves_are_named(refused, fit, tmp_path, line, what, command):
    data = table(tmp_path, line)
    words = {
        "fit": fit(data),
        "check": ("data", "check", data),
        "split": ("data", "split", data, "--out", tmp_path / "split.csv"),
    }[command]
    message = refused(*words[:8], "--cases", "exam")
    assert what in message
    assert "--cases" in message


@pytest.mark.parametrize(
    ("lines", "learned"),
    [
        (("d.png,cyst,4,C,train", "e.png,cyst,5,E,train"), "3 exams of 3 images"),  # C is tested
        (("d.png,cyst,1,A,train",), "2 exams of 3 images"),
    ],
)
def test_exams_are_learned_from_but_for_those_of_test_patients(ogkd, fit, tmp_path, lines, learned):
    data = table(tmp_path, *lines)
    write_image(tmp_path / "d.png", 7, size=(90, 31))  # images of a case differ in size
    outcome = ogkd(*fit(data, "--cases", "exam"))
    assert outcome.code == 0, outcome.err
    assert learned in outcome.out


def test_exams_are_divided_whole(ogkd, volumes, tmp_path):
    undivided = volumes / "undivided.csv"
    lines = [line.split(",") for line in (volumes / "slices.csv").read_text().splitlines()]
    column = lines[0].index("split")
    text = "\n".join(",".join(line[:column] + line[column + 1 :]) for line in lines)
    undivided.write_text(text, encoding="utf-8")
    out = tmp_path / "split.csv"
    outcome = ogkd("data", "split", undivided, "--cases", "exam", "--out", out)
    assert outcome.code == 0, outcome.err
    parts = {}
    for row in rows(out.read_text(encoding="utf-8")):
        parts.setdefault(row["case"], set()).add(row["split"])
    assert len(parts) == 12
    assert all(len(part) == 1 for part in parts.values())
    assert ogkd("fit", out, "--cases", "exam", "--out", tmp_path / "m", *FIT).code == 0


def test_unreadable_images_of_exams_are_skipped_on_request(ogkd, fit, tmp_path):
    data = table(tmp_path, "d.png,cyst,exam 4,D,train", "e.png,cyst,exam 4,D,train")
    for name in ("d.png", "e.png"):
        (tmp_path / name).write_bytes(b"not an image")
    outcome = ogkd(*fit(data, "--cases", "exam", "--on-error", "skip"))
    assert outcome.code == 0, outcome.err
    assert "Skipped 2 file(s)" in outcome.err
    assert "2 exams of 2 images" in outcome.out


def test_a_volume_without_a_usable_slice_is_named_and_skipped_on_request(ogkd, fit, scans):
    bad = blank(scans / "train" / "cyst" / "0.nii")
    refused = ogkd(*fit(scans))
    assert refused.code == 2
    assert str(bad) in refused.err
    outcome = ogkd(*fit(scans, "--slices", "all", "--on-error", "skip"))
    assert outcome.code == 0, outcome.err
    assert "3 cases of" in outcome.out
    blank(scans / "test" / "cyst" / "0.nii")
    predicted = ogkd("predict", scans.parent / "model", scans / "test")
    assert predicted.code == 1
    empty, good = rows(predicted.out)
    assert str(scans / "test" / "cyst" / "0.nii") in empty["error"]
    assert (good["error"], good["images"]) == ("", "4")


def test_slices_that_are_not_numbers_are_left_out_of_a_fit(ogkd, fit, scans):
    path = scans / "train" / "cyst" / "0.nii"
    values = np.asarray(nibabel.load(path).dataobj).astype(np.float32)
    values[:, :, 5] = np.nan
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)
    outcome = ogkd(*fit(scans))
    assert outcome.code == 0, outcome.err
    assert f"4 cases of {2 + 3 + 4 + 4} images" in outcome.out


def test_a_class_that_loses_all_its_cases_ends_the_fit(fit, scans, refused):
    for number in (0, 1):
        blank(scans / "train" / "cyst" / f"{number}.nii")
    assert "cyst" in refused(*fit(scans, "--slices", "all", "--on-error", "skip"))


@pytest.mark.filterwarnings("default::ogkd.errors.OgkdWarning")
def test_an_irregular_series_is_a_warning_of_fit_and_predict(ogkd, fit, tmp_path):
    rng = np.random.default_rng(0)
    for uid, (name, numbers) in enumerate({"cyst": [1, 2, 2], "stone": [1, 4]}.items()):
        folder = tmp_path / "scans" / name
        folder.mkdir(parents=True)
        for position, number in enumerate(numbers):
            dicom(
                folder / f"{position}.dcm",
                rng.integers(0, 255, (20 + 4 * position * uid, 20)).astype(np.uint8),
                SeriesInstanceUID=f"1.2.{uid}",
                InstanceNumber=number,
                Modality="MR" if uid and position else "CT",
            )
    fitted = ogkd(*fit(tmp_path / "scans", "--cases", "series"))
    assert fitted.code == 0, fitted.err
    predicted = ogkd("predict", tmp_path / "model", tmp_path / "scans", "--format", "jsonl")
    assert [json.loads(line)["images"] for line in predicted.out.splitlines()] == [3, 2]
    for err in (fitted.err, predicted.err):
        words = ("1.2.0: instance 2 occurs more than once", "1.2.1: instance 2, 3 is missing")
        for text in (*words, "modalities (CT, MR)", "sizes (20 x 20, 20 x 24)"):
            assert text in err
        assert "Traceback" not in err
        assert "warnings.warn" not in err


def test_slides_that_cannot_be_cut_are_named(refused, fit, tmp_path):
    pytest.importorskip("openslide")
    tifffile = pytest.importorskip("tifffile")
    pixels = np.random.default_rng(0).integers(100, 255, (512, 512, 3)).astype(np.uint8)
    pixels[:, :, 1] //= 3
    for name in ("cyst", "stone"):
        folder = tmp_path / "slides" / name
        folder.mkdir(parents=True)
        with tifffile.TiffWriter(folder / "a.tiff") as file:
            file.write(pixels, tile=(256, 256), photometric="rgb")
            file.write(pixels[::2, ::2].copy(), tile=(256, 256), photometric="rgb", subfiletype=1)
    slides = tmp_path / "slides"
    assert "--slices" in refused(*fit(slides))
    cut = slides / "stone" / "a.tiff"
    cut.write_bytes(cut.read_bytes()[:5000])
    assert str(cut) in refused(*fit(slides, "--slices", "side=128,all"))


def test_the_finding_is_in_as_many_neighbouring_slices_as_asked_for():
    drawn = render_volume("ct-kidney", 1, seed=1, index=0, slices=12, share=0.3, size=64)
    assert len(drawn.affected) == 3
    assert not drawn.voxels[:, :, [0, -1]].any()
    again = render_volume("ct-kidney", 1, seed=1, index=0, slices=12, share=0.3, size=64)
    assert (drawn.voxels == again.voxels).all()
    assert not render_volume("ct-kidney", 0, seed=1, index=0, size=64, slices=4).affected
