"""What a file is, how it is decoded, and which files of an upload are one case."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ogkd.data.grouping import Grouping
from ogkd.errors import DataError
from ogkd.images import ImageRef, SliceRule
from ogkd.images.ref import SlicesRule
from ogkd.serve.uploads import Upload, display_name, read_upload
from tiny_images import SHADES, dicom, png, volume

RGB = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)


def encoded(kind, array=RGB, **options):
    memory = io.BytesIO()
    Image.fromarray(array).save(memory, kind, **options)
    return memory.getvalue()


@pytest.fixture
def read(tmp_path):
    def run(content, **options):
        file = tmp_path / "0"
        file.write_bytes(content)
        return read_upload({file: "scan"}, **options)

    return run


def bomb():
    """A PNG whose header declares gigabytes."""
    content = b"\x89PNG\r\n\x1a\n"
    header = b"IHDR" + struct.pack(">IIBBBBB", 46340, 46340, 8, 2, 0, 0, 0)
    for chunk in (header, b"IDAT" + bytes(9)):
        content += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return content


BAD = [b"", b"text", b"%PDF-1.7", encoded("GIF"), b"RIFFxxxxWAVE"]  # of another kind
BAD += [encoded("PNG")[:60], encoded("PNG")[:20], b"\xff\xd8\xff\xe0" + bytes(50)]  # damaged
BAD += [bytes(128) + b"DICMxx", bomb()]


@pytest.mark.parametrize("content", BAD)
def test_unreadable_files_are_refused_without_the_server_s_paths(read, tmp_path, content):
    with pytest.raises(DataError) as raised:
        read(content)
    assert str(tmp_path) not in str(raised.value)


def test_a_dicom_file_is_read_and_of_several_frames_one_is_taken(read, tmp_path):
    content = dicom(tmp_path / "a.dcm", SHADES.astype(np.uint8)).read_bytes()
    np.testing.assert_array_equal(read(content).pixels[:, :, 0], SHADES.astype(np.uint8))
    frames = np.stack([np.full((8, 9), value, np.uint8) for value in (10, 20, 30)])
    clip = dicom(tmp_path / "b.dcm", frames, frames=True).read_bytes()
    upload = read(clip)
    assert (upload.pixels.mean(), "index=middle is used" in upload.note) == (20, True)
    assert str(upload.images[0]).endswith("#index=middle")
    assert read(clip, frame=SliceRule.parse("axis=2,index=0")).pixels.mean() == 10


def test_names_are_shown_without_folders_and_odd_characters():
    shown = {"folder/a<b> ä (1).png": "a_b_ ä (1).png", "..": "image", "": "image"}
    assert {name: display_name(name) for name in shown} == shown
    assert len(display_name("x" * 999)) == 255


def member(folder, name, study, series, **more):
    uids = {"StudyInstanceUID": study, "SeriesInstanceUID": series}
    return dicom(folder / name, SHADES, **uids, **more)


@pytest.fixture
def files(tmp_path):
    """One study of two series, then another study; the user's names are those of the files."""
    t1 = {"SeriesNumber": 3, "SeriesDescription": "T1 axial"}
    members = [
        *(member(tmp_path, f"a{n}", "1", "1.3", InstanceNumber=n, **t1) for n in range(2)),
        member(tmp_path, "b", "1", "1.4", SeriesNumber=4),
        member(tmp_path, "c", "2", "2.1", StudyDescription="CT head"),
    ]
    return {file: file.name for file in members}


SERIES = {"series 3 (T1 axial): a0 and 1 more": ["a0", "a1"], "series 4: b": ["b"]}
SERIES["series: c"] = ["c"]
STUDIES = {"study: a0 and 2 more": ["a0", "a1", "b"], "study (CT head): c": ["c"]}


def cases_of(files, by=None):
    """The files of each case of a model whose cases are made by `by`."""
    upload = Upload(files, [ImageRef(file) for file in files], RGB)
    cases = upload.cases(Grouping(by, SlicesRule()))
    return {
        case.name: list(dict.fromkeys(image.file.name for image in case.images)) for case in cases
    }


@pytest.mark.parametrize(
    ("by", "expected"),
    [("series", SERIES), (None, SERIES), *((by, STUDIES) for by in ("study", "folder", "exam"))],
)
def test_dicom_files_are_grouped_as_the_model_s_cases_are(files, by, expected):
    assert cases_of(files, by) == expected


def test_a_volume_or_clip_is_a_case_where_each_file_was_one(tmp_path):
    clip = np.stack([SHADES, SHADES])
    uids = {"StudyInstanceUID": "1", "SeriesInstanceUID": "1.1"}
    paths = [volume(tmp_path / "a.nii"), volume(tmp_path / "b.nii")]
    paths += [dicom(tmp_path / f"{n}.dcm", clip, frames=True, **uids) for n in "cd"]
    files = {file: file.name for file in paths}
    assert list(cases_of(files)) == ["a.nii", "b.nii", "c.dcm", "d.dcm"]
    assert list(cases_of(files, "exam")) == ["a.nii and 3 more"]


def test_other_images_are_one_case(tmp_path):
    files = {png(tmp_path / f"{n}.png", SHADES): "x.png" for n in range(3)}
    for by in (None, "series", "folder", "exam"):
        assert cases_of(files, by) == {"x.png and 2 more": ["0.png", "1.png", "2.png"]}


def test_cases_of_the_same_name_are_told_apart(tmp_path):
    files = {member(tmp_path, f"{n}", f"9.{n}", f"7.{n}"): "IM1" for n in range(2)}
    assert list(cases_of(files, "study")) == ["study 9.0: IM1", "study 9.1: IM1"]
    files = {volume(tmp_path / f"{n}.nii"): "scan.nii" for n in range(2)}
    assert list(cases_of(files)) == ["scan.nii", "2. scan.nii"]
