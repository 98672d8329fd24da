from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
import threading
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from ogkd.app.uploads import Uploads
from ogkd.errors import DataError
from ogkd.images import read_image
from tiny_images import SHADES, dicom, own_range

RGB = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)


def encoded(kind, array=RGB, **options):
    memory = io.BytesIO()
    Image.fromarray(array).save(memory, kind, **options)
    return memory.getvalue()


@pytest.fixture
def uploads(tmp_path):
    (tmp_path / "uploads").mkdir()
    return Uploads(tmp_path / "uploads", max_pixels=2000)


def put(uploads, content, name="a.png"):
    place = uploads.place(name)
    place.write_bytes(content)
    return place


def test_an_upload_is_decoded_and_then_gone(uploads):
    with uploads.take(put(uploads, encoded("PNG"), "scan.png")) as picture:
        np.testing.assert_array_equal(picture.pixels, RGB)
        assert picture.name == "scan.png"
        assert picture.image.file.is_file()
    assert list(uploads.folder.iterdir()) == []


def test_the_content_decides_what_a_file_is_and_not_its_name(uploads):
    for name in ("a.dcm", "a.nii.gz", "a.npz", "noending", "a#index=2", "#.png", "..", "ä 1.png"):
        with uploads.take(put(uploads, encoded("JPEG"), name)) as picture:
            assert picture.pixels.shape == RGB.shape


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "WEBP"])
def test_every_format_of_plain_images_is_decoded_as_the_package_does(uploads, kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    with uploads.take(put(uploads, encoded(kind, **options), "scan")) as picture:
        np.testing.assert_array_equal(picture.pixels, RGB)
        np.testing.assert_array_equal(read_image(picture.image), RGB)


def test_a_deep_tiff_is_scaled_by_its_own_range(uploads):
    deep = np.linspace(300, 4000, 40 * 30).reshape(30, 40).astype(np.uint16)
    with uploads.take(put(uploads, encoded("TIFF", deep), "scan.tif")) as picture:
        np.testing.assert_array_equal(picture.pixels[:, :, 0], own_range(deep))


def test_dicom_without_the_extra_is_a_message(uploads, tmp_path, monkeypatch):
    content = dicom(tmp_path / "a.dcm", SHADES.astype(np.uint8)).read_bytes()
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with (
        pytest.raises(DataError, match=r"The file is a DICOM file.*pip install \"ogkd\[dicom\]\""),
        uploads.take(put(uploads, content)),
    ):
        pass


@pytest.mark.parametrize("content", [b"", b"text", b"%PDF-1.7", encoded("GIF"), b"RIFFxxxxWAVE"])
def test_other_kinds_of_files_are_refused_and_gone(uploads, content):
    with (
        pytest.raises(DataError, match="not a PNG, JPEG, TIFF, BMP, WebP, DICOM or NIfTI"),
        uploads.take(put(uploads, content)),
    ):
        pass
    assert list(uploads.folder.iterdir()) == []


def test_damaged_files_are_refused_without_the_server_s_paths(uploads):
    whole = encoded("PNG")
    hostile = [whole[:60], whole[:20], b"\xff\xd8\xff\xe0" + bytes(50), bytes(128) + b"DICMxx"]
    for content in hostile:
        with pytest.raises(DataError) as error, uploads.take(put(uploads, content, "my.png")):
            pass
        assert str(uploads.folder) not in str(error.value)
        assert list(uploads.folder.iterdir()) == []


def test_an_image_of_too_many_pixels_is_refused_with_the_limit(uploads):
    large = np.zeros((50, 41), np.uint8)
    with (
        pytest.raises(DataError, match=r"41 x 50 pixels.*2,000"),
        uploads.take(put(uploads, encoded("PNG", large))),
    ):
        pass


def test_a_header_that_promises_gigabytes_is_refused_undecoded(uploads):
    chunks = [b"IHDR" + struct.pack(">IIBBBBB", 46340, 46340, 8, 2, 0, 0, 0), b"IDAT" + bytes(9)]
    bomb = b"\x89PNG\r\n\x1a\n"
    for chunk in chunks:
        bomb += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    with pytest.raises(DataError, match="far more pixels"), uploads.take(put(uploads, bomb)):
        pass


def test_a_dicom_file_is_shown_as_it_asks(uploads, tmp_path):
    content = dicom(tmp_path / "a.dcm", SHADES.astype(np.uint8)).read_bytes()
    with uploads.take(put(uploads, content, "IM0001")) as picture:
        np.testing.assert_array_equal(picture.pixels[:, :, 0], SHADES.astype(np.uint8))
        assert picture.note == ""


def test_of_several_frames_the_middle_one_or_the_model_s_is_taken(uploads, tmp_path):
    frames = np.stack([np.full((8, 9), value, np.uint8) for value in (10, 20, 30)])
    content = dicom(tmp_path / "a.dcm", frames, frames=True).read_bytes()
    with uploads.take(put(uploads, content)) as picture:
        assert picture.pixels.mean() == 20
        assert "3 frames" in picture.note
        assert str(picture.image).endswith(".dcm#index=middle")
    first = Uploads(uploads.folder, max_pixels=100, frame="axis=2,index=0")
    with first.take(put(first, content)) as picture:
        assert picture.pixels.mean() == 10


def test_equal_uploads_do_not_meet(uploads):
    first, second = (put(uploads, encoded("PNG")) for _ in range(2))
    with uploads.take(first):
        pass
    with uploads.take(second) as picture:
        assert picture.pixels.shape == RGB.shape


def test_an_upload_that_nobody_came_back_for_is_removed_in_time(uploads):
    old, new = (put(uploads, encoded("PNG")) for _ in range(2))
    os.utime(old.parent, (time.time() - 700,) * 2)
    uploads.sweep()
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("limit", [{"most": 2}, {"most_bytes": 10}])
def test_only_so_many_uploads_may_wait(uploads, limit):
    small = Uploads(uploads.folder, max_pixels=2000, **limit)
    first = put(small, encoded("PNG"))
    if "most" in limit:
        put(small, encoded("PNG"))
    with pytest.raises(DataError, match="Too many uploads are waiting"):
        small.place("a.png")
    os.utime(first.parent, (time.time() - 700,) * 2)
    assert small.place("a.png")


def test_uploads_can_be_read_by_their_owner_alone(uploads):
    assert put(uploads, b"x").parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("letter", ["x", "ä", "図", "𠀀"])
def test_a_long_name_keeps_both_ends_and_shows_that_it_was_cut(uploads, letter):
    name = f"patient 7 {letter * 200} no tumor.png"
    with uploads.take(put(uploads, encoded("PNG"), name)) as picture:
        assert picture.name.startswith(f"patient 7 {letter}")
        assert picture.name.endswith(f"{letter} no tumor.png")
        assert picture.name.count("...") == 1
        assert len(picture.name) == 60
    short = "y" * 56 + ".png"
    with uploads.take(put(uploads, encoded("PNG"), short)) as picture:
        assert picture.name == short


def test_an_upload_that_is_answered_meanwhile_does_not_disturb_the_next(uploads):
    """Folders appear and go in one thread while another one counts them."""
    stop = threading.Event()

    def come_and_go():
        while not stop.is_set():
            with contextlib.suppress(DataError), uploads.take(put(uploads, encoded("PNG"))):
                pass

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            uploads.place("a.png").parent.rmdir()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
