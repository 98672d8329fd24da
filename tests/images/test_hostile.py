"""Whatever bytes a file holds, `read_image` returns pixels or raises a DataError that names it."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from PIL import Image
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit, JPEGLosslessSV1, RLELossless

from ogkd.errors import DataError
from ogkd.features.unreadable import unreadable
from ogkd.images import find_images, npz, read_image
from tiny_images import SHADES, dicom, encapsulated, lossless_jpeg, medmnist, nifti, png

NOISE = np.random.default_rng(0).integers(0, 256, (34, 36, 3), dtype=np.uint8)
VOLUME = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)


def pillow(path, image=NOISE, **options):
    Image.fromarray(image).save(path, **options)
    return path


def baseline(path):
    stream = pillow(path.with_suffix(".jpg")).read_bytes()
    return encapsulated(path, stream, JPEGBaseline8Bit, NOISE, PhotometricInterpretation="YBR_FULL")


WAYS = {
    "png": lambda folder: pillow(folder / "a.png"),
    "deep.png": lambda folder: png(folder / "a.png", NOISE.astype(np.uint16) * 99),
    "jpg": lambda folder: pillow(folder / "a.jpg"),
    "tif": lambda folder: pillow(folder / "a.tif", compression="tiff_lzw"),
    "deep.tif": lambda folder: deep_tiff(folder / "a.tif"),
    "bmp": lambda folder: pillow(folder / "a.bmp"),
    "webp": lambda folder: pillow(folder / "a.webp"),
    "dcm": lambda folder: dicom(folder / "a.dcm", SHADES, WindowCenter=90, WindowWidth=300),
    "rle.dcm": lambda folder: dicom(folder / "a.dcm", SHADES, syntax=RLELossless),
    "j2k.dcm": lambda folder: dicom(folder / "a.dcm", NOISE, syntax=JPEG2000Lossless),
    "lossless.dcm": lambda folder: encapsulated(
        folder / "a.dcm", lossless_jpeg(SHADES, 16), JPEGLosslessSV1, SHADES
    ),
    "jpeg.dcm": lambda folder: baseline(folder / "a.dcm"),
    "nii": lambda folder: nifti(folder / "a.nii", VOLUME),
    "nii.gz": lambda folder: nifti(folder / "a.nii.gz", VOLUME),
    "npz": lambda folder: medmnist(folder / "a.npz", test_images=NOISE[None]),
}
PART = {"nii": "#axis=1,index=2", "nii.gz": "#axis=1,index=2", "npz": "#test/0"}


def deep_tiff(path):
    import tifffile

    tifffile.imwrite(path, NOISE.astype(np.uint16) * 99, photometric="rgb")
    return path


def attempt(file, way):
    """True where pixels came back; anything but a DataError is a defect."""
    npz._kept.cache_clear()
    try:
        found = read_image(f"{file}{PART.get(way, '')}")
    except DataError as error:
        told = str(error)
    else:
        told = ""
    if told:
        assert file.name in told
        return False
    assert found.dtype == np.uint8
    assert found.ndim == 3
    assert found.shape[2] == 3
    return True


@pytest.mark.filterwarnings("ignore")  # decoders grumble about bytes that are not what they were
@pytest.mark.parametrize("way", WAYS)
def test_damaged_bytes_give_pixels_or_one_clear_error(tmp_path, way):
    file = WAYS[way](tmp_path)
    whole = file.read_bytes()
    assert attempt(file, way)
    rng = random.Random(way)
    survived = 0
    for _ in range(40):
        cut = rng.randrange(len(whole))
        file.write_bytes(whole[:cut])
        survived += attempt(file, way)
    assert survived < 40
    for _ in range(60):
        changed = bytearray(whole)
        # Headers are where a changed byte does most.
        reach = len(whole) if rng.random() < 0.5 else min(len(whole), 700)
        for _ in range(rng.choice([1, 1, 4, 20])):
            changed[rng.randrange(reach)] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        file.write_bytes(changed)
        attempt(file, way)
    for junk in (b"", b"\0", b"text", bytes(2000), rng.randbytes(3000)):
        file.write_bytes(junk)
        assert not attempt(file, way)


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
