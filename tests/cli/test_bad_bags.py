"""Volumes and exams that something is wrong with: one clear message, and nothing lost."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from tiny_data import write_image
from tiny_images import dicom, volume

nibabel = pytest.importorskip("nibabel")


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


def blank(path):
    values = np.full((20, 24, 6), np.nan, np.float32)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)
    return path


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_volume_without_a_usable_slice_is_named_and_skipped_on_request(ogkd, fit, scans):
    bad = blank(scans / "train" / "cyst" / "0.nii")
    refused = ogkd(*fit(scans))
    assert refused.code == 2
    assert f"{bad} is blank" in refused.err
    done = ogkd(*fit(scans, "--slices", "all", "--on-error", "skip"))
    assert done.code == 0, done.err
    assert "3 bags of" in done.out
    assert "Skipped 1 file" in done.err
    blank(scans / "test" / "cyst" / "0.nii")
    said = ogkd("predict", scans.parent / "model", scans / "test")
    assert said.code == 1
    empty, good = rows(said.out)
    assert empty["error"].startswith(f"{scans / 'test' / 'cyst' / '0.nii'} is blank")
    assert (good["error"], good["pictures"]) == ("", "4")


def test_slices_that_are_not_numbers_are_left_out_of_a_fit(ogkd, fit, scans):
    path = scans / "train" / "cyst" / "0.nii"
    values = np.asarray(nibabel.load(path).dataobj).astype(np.float32)
    values[:, :, 5] = np.nan
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)
    done = ogkd(*fit(scans))
    assert done.code == 0, done.err
    assert f"4 bags of {2 + 3 + 4 + 4} pictures" in done.out


def test_a_class_that_loses_all_its_bags_ends_the_fit(fit, scans, refused):
    for number in (0, 1):
        blank(scans / "train" / "cyst" / f"{number}.nii")
    assert "cyst" in refused(*fit(scans, "--slices", "all", "--on-error", "skip"))


def table(folder, *lines):
    for line in lines:
        write_image(folder / line.split(",")[0], hash(line) % 100)
    path = folder / "exams.csv"
    path.write_text("\n".join(["path,label,exam,patient,split", *lines]), encoding="utf-8")
    return path


GOOD = ("a.png,cyst,1,A,train", "b.png,stone,2,B,train", "c.png,cyst,3,C,test")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("d.png,stone,1,A,train",), "1: labels cyst, stone"),
        (("d.png,cyst,1,,test",), "1: splits test, train"),
        (("d.png,cyst,1,Z,train",), "1: patients A, Z"),
        (("d.png,cyst,,A,train",), "have no bag"),
    ],
)
def test_exams_that_contradict_themselves_are_named(refused, fit, tmp_path, lines, words):
    data = table(tmp_path, *GOOD, *lines)
    said = refused(*fit(data, "--bags", "exam"))
    assert words in said
    assert "--bags" in said


def test_only_contradicting_labels_are_explained_by_pictures_that_show_less(refused, fit, tmp_path):
    for line, explained in (("d.png,stone,1,A,train", True), ("d.png,cyst,1,Z,train", False)):
        said = refused(*fit(table(tmp_path, *GOOD, line), "--bags", "exam"))
        assert ("may show less than their bag" in said) == explained


def test_an_exam_that_loses_all_its_pictures_is_named(ogkd, fit, tmp_path):
    data = table(tmp_path, *GOOD, "d.png,cyst,exam 4,D,train", "e.png,cyst,exam 4,D,train")
    for name in ("d.png", "e.png"):
        (tmp_path / name).write_bytes(b"no image")
    done = ogkd(*fit(data, "--bags", "exam", "--on-error", "skip"))
    assert done.code == 0, done.err
    assert "Skipped 2 file(s)" in done.err
    assert "No picture remains of 1 bag:\n  exam 4" in done.err
    assert "2 bags of 2 pictures" in done.out


def test_another_exam_of_a_test_patient_is_not_learned_from(ogkd, fit, tmp_path):
    data = table(tmp_path, *GOOD, "d.png,cyst,4,C,train", "e.png,cyst,5,E,train")
    done = ogkd(*fit(data, "--bags", "exam"))
    assert done.code == 0, done.err
    assert "images of the same patients" in done.err
    assert "3 bags of 3 pictures" in done.out


def test_pictures_of_all_sizes_and_single_ones_are_bags(ogkd, fit, tmp_path):
    data = table(tmp_path, *GOOD, "d.png,cyst,1,A,train")
    write_image(tmp_path / "d.png", 7, size=(90, 31))
    done = ogkd(*fit(data, "--bags", "exam"))
    assert done.code == 0, done.err
    assert "2 bags of 3 pictures" in done.out


@pytest.mark.filterwarnings("default::ogkd.errors.OgkdWarning")
def test_an_odd_series_is_a_warning_of_fit_and_predict(ogkd, fit, tmp_path):
    rng = np.random.default_rng(0)
    for uid, (name, numbers) in enumerate({"cyst": [1, 2, 2], "stone": [1, 4]}.items()):
        folder = tmp_path / "scans" / name
        folder.mkdir(parents=True)
        for place, number in enumerate(numbers):
            dicom(
                folder / f"{place}.dcm",
                rng.integers(0, 255, (20 + 4 * place * uid, 20)).astype(np.uint8),
                SeriesInstanceUID=f"1.2.{uid}",
                InstanceNumber=number,
                Modality="MR" if uid and place else "CT",
            )
    done = ogkd(*fit(tmp_path / "scans", "--bags", "series"))
    assert done.code == 0, done.err
    said = ogkd("predict", tmp_path / "model", tmp_path / "scans", "--format", "jsonl")
    assert [json.loads(line)["pictures"] for line in said.out.splitlines()] == [3, 2]
    for err in (done.err, said.err):
        words = ("1.2.0: instance 2 occurs more than once", "1.2.1: instance 2, 3 is missing")
        for text in (*words, "modalities (CT, MR)", "sizes (20 x 20, 20 x 24)"):
            assert text in err
        assert "Traceback" not in err
        assert "warnings.warn" not in err


def test_slides_that_cannot_be_cut_are_named(ogkd, refused, fit, tmp_path):
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
    said = refused(*fit(slides))
    assert "a.tiff does not state its magnification" in said
    assert "--slices" in said
    cut = slides / "stone" / "a.tiff"
    cut.write_bytes(cut.read_bytes()[:5000])
    said = refused(*fit(slides, "--slices", "side=128,all"))
    assert str(cut) in said
    assert "damaged or cut short" in said or "not a readable image" in said
