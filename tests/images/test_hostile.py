"""Files that cannot be read are named, each with its reason."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from ogkd.errors import DataError
from ogkd.features.unreadable import unreadable
from ogkd.images import decode, find_images, read_image
from tiny_images import nifti

NOISE = np.random.default_rng(0).integers(0, 256, (34, 36, 3), dtype=np.uint8)
VOLUME = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)


def pillow(path, image=NOISE, **options):
    Image.fromarray(image).save(path, **options)
    return path


def test_every_kind_of_bad_file_is_collected_with_its_reason(tmp_path):
    good = pillow(tmp_path / "good.png")
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "empty.dcm").touch()
    (tmp_path / "cut.jpg").write_bytes(pillow(tmp_path / "x.jpg").read_bytes()[:300])
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "broken.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "volume.nii").write_bytes(nifti(tmp_path / "v.nii", VOLUME).read_bytes())
    (tmp_path / "v.nii").unlink()
    os.mkfifo(tmp_path / "pipe.png")
    bad = {file.image.name: file.reason for file in unreadable(find_images([tmp_path]))}
    words = {
        "text.png": "not a readable image",
        "empty.dcm": "is empty",
        "cut.jpg": "damaged",
        "loop.png": "leads back to itself",
        "broken.png": "no file",
        "volume.nii": "axis=2,index=middle",
        "pipe.png": "not a regular file",
    }
    assert bad.keys() == words.keys()
    for name, word in words.items():
        assert word in bad[name]
        assert str(tmp_path / name) in bad[name]
    assert good.name not in bad


def test_a_file_without_permission_is_named(tmp_path, monkeypatch):
    file = pillow(tmp_path / "a.png")

    def refuse(*words, **options):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(DataError, match=r"No permission to read .*a\.png"):
        read_image(file)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_folder_without_permission_is_an_error_not_an_absence(tmp_path):
    (tmp_path / "inside").mkdir()
    pillow(tmp_path / "a.png")
    (tmp_path / "inside").chmod(0)
    try:
        with pytest.raises(DataError, match=r"Cannot search .*inside"):
            find_images([tmp_path])
    finally:
        (tmp_path / "inside").chmod(0o700)


def test_an_image_that_memory_does_not_suffice_for_is_named(tmp_path, monkeypatch):
    def read(*args, **options):
        raise MemoryError

    monkeypatch.setattr(decode, "read_plain", read)
    with pytest.raises(DataError, match=r"not enough memory to read .*a.png"):
        read_image(pillow(tmp_path / "a.png"))
