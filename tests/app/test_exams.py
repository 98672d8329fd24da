"""Files of one upload by exam."""

from __future__ import annotations

import numpy as np
import pytest

from ogkd.app.exams import exams_of
from ogkd.datasets.bags import BagRule
from tiny_images import SHADES, dicom, png, volume

pytest.importorskip("pydicom")


def one(folder, name, study, series, **more):
    uids = {"StudyInstanceUID": study, "SeriesInstanceUID": series}
    return dicom(folder / name, SHADES, **uids, **more)


@pytest.fixture
def files(tmp_path):
    """One study of two series, then another study; the user's names are those of the files."""
    t1 = {"SeriesNumber": 3, "SeriesDescription": "T1 axial"}
    made = [
        *(one(tmp_path, f"a{n}", "1", "1.3", InstanceNumber=n, **t1) for n in range(2)),
        one(tmp_path, "b", "1", "1.4", SeriesNumber=4),
        one(tmp_path, "c", "2", "2.1", StudyDescription="CT head"),
    ]
    return {file: file.name for file in made}


def named(found):
    return {name: [file.name for file in mine] for name, mine in found.items()}


@pytest.mark.parametrize("by", ["series", None])
def test_series_are_told_apart_and_named_as_a_viewer_lists_them(files, by):
    assert named(exams_of(files, BagRule(by))) == {
        "series 3 (T1 axial): a0 and 1 more": ["a0", "a1"],
        "series 4: b": ["b"],
        "series: c": ["c"],
    }


@pytest.mark.parametrize("by", ["study", "folder", "exam"])
def test_the_series_of_a_study_belong_together_unless_the_model_learned_from_series(files, by):
    assert named(exams_of(files, BagRule(by))) == {
        "study: a0 and 2 more": ["a0", "a1", "b"],
        "study (CT head): c": ["c"],
    }


def test_a_volume_or_clip_is_an_exam_by_itself_where_each_file_was_a_bag(tmp_path):
    clip = np.stack([SHADES, SHADES])
    uids = {"StudyInstanceUID": "1", "SeriesInstanceUID": "1.1"}
    made = [volume(tmp_path / "a.nii"), volume(tmp_path / "b.nii")]
    made += [dicom(tmp_path / f"{n}.dcm", clip, frames=True, **uids) for n in "cd"]
    files = {file: file.name for file in made}
    assert list(exams_of(files, BagRule())) == ["a.nii", "b.nii", "c.dcm", "d.dcm"]
    assert list(exams_of(files, BagRule("exam"))) == ["a.nii and 3 more"]


def test_other_pictures_are_one_exam(tmp_path):
    files = {png(tmp_path / f"{n}.png", SHADES): "x.png" for n in range(3)}
    for by in (None, "series", "folder", "exam"):
        assert named(exams_of(files, BagRule(by))) == {
            "x.png and 2 more": ["0.png", "1.png", "2.png"]
        }


def test_what_has_the_same_name_is_told_apart_by_its_uid_or_numbered(tmp_path):
    files = {one(tmp_path, f"{n}", f"9.{n}", f"7.{n}"): "IM1" for n in range(2)}
    assert list(exams_of(files, BagRule("study"))) == ["study 9.0: IM1", "study 9.1: IM1"]
    files = {volume(tmp_path / f"{n}.nii"): "scan.nii" for n in range(2)}
    assert list(exams_of(files, BagRule())) == ["scan.nii", "2. scan.nii"]
