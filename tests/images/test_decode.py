from __future__ import annotations

import os

import numpy as np
import pytest
import tifffile
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from ogkd.errors import DataError
from ogkd.features.unreadable import unreadable
from ogkd.images import ImageRef, decode, decode_once
from ogkd.images.decode import find_images, look_at, read_image
from ogkd.images.plain import stretch
from ogkd.images.ref import as_stored
from tiny_images import SHADES, dicom, nifti, own_range, png

GRADIENT = np.tile(np.arange(64, dtype=np.uint8) * 4, (48, 1))  # [48, 64]


def save(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "webp"])
def test_lossless_rgb_is_read_as_it_is(tmp_path, ending):
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    options = {"lossless": True} if ending == "webp" else {}
    assert np.array_equal(read_image(save(tmp_path / f"a.{ending}", image, **options)), image)


@pytest.mark.parametrize("samples", [1, 2, 3, 4])
@pytest.mark.parametrize("high", [4095, 65535])
def test_png_keeps_all_sixteen_bits_whatever_its_channels(tmp_path, samples, high):
    shape = (20, 30) if samples == 1 else (20, 30, samples)
    deep = np.random.default_rng(0).integers(0, high + 1, shape, dtype=np.uint16)
    colour = {1: deep, 2: deep[..., :1], 3: deep, 4: deep[..., :3]}[samples]
    expected = np.broadcast_to(own_range(colour.reshape(20, 30, -1)), (20, 30, 3))
    np.testing.assert_array_equal(read_image(png(tmp_path / "a.png", deep)), expected)


@pytest.mark.parametrize("kind", [np.uint16, np.int16, np.uint32, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(9, 11), (9, 11, 3), (9, 11, 4)], ids=["gray", "rgb", "rgba"])
def test_tiff_of_any_depth_spans_its_own_range(tmp_path, kind, shape):
    rng = np.random.default_rng(0)
    deep = (rng.random(shape) * 5e4).astype(kind)
    if kind == np.uint32:
        deep = deep * 60_000 + 2**30  # beyond what fits in 31 bits
    photometric = "minisblack" if len(shape) == 2 else "rgb"
    tifffile.imwrite(tmp_path / "a.tif", deep, photometric=photometric)
    colour = own_range(deep[..., :3] if deep.ndim == 3 else deep[:, :, None])
    expected = np.broadcast_to(colour, (9, 11, 3))
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif"), expected)
    if len(shape) == 2:
        tifffile.imwrite(tmp_path / "a.tif", deep, photometric="miniswhite")
        np.testing.assert_array_equal(read_image(tmp_path / "a.tif"), 255 - expected)


def test_a_turned_picture_can_be_read_as_it_is_stored_and_has_another_key_then(tmp_path):
    image = Image.fromarray(np.dstack([GRADIENT] * 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned, plain = ImageRef(tmp_path / "turned.jpg"), ImageRef(tmp_path / "plain.jpg")
    image.save(turned.file, exif=exif, quality=95)
    image.save(plain.file, quality=95)
    stored = as_stored(turned)
    assert read_image(turned).shape == (64, 48, 3)
    assert as_stored(plain) is plain  # its key, and what is kept under it, stay
    assert np.array_equal(read_image(stored), read_image(plain))
    assert len({stored.key, turned.key, plain.key}) == 3
    assert ImageRef.of(str(stored)) == stored
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    broken = ImageRef(tmp_path / "broken.jpg")
    assert as_stored(broken) is broken


def test_files_that_cannot_be_read_are_named(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)
    contents = {"zero.png": b"", "text.png": b"not an image", "page.gif": b"GIF89a" + b"\0" * 20}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for ending in ("png", "jpg", "tif", "webp"):
        path = save(tmp_path / f"cut.{ending}", noise)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (tmp_path / "empty.dcm").touch()
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "broken.png").symlink_to(tmp_path / "nowhere.png")
    nifti(tmp_path / "volume.nii", np.arange(24, dtype=np.int16).reshape(2, 3, 4))
    os.mkfifo(tmp_path / "pipe.png")
    bad = [*find_images([tmp_path]), *map(ImageRef, (tmp_path, tmp_path / "gone.png"))]
    bad.append(ImageRef(tmp_path / "page.gif"))
    reasons = {file.image: file.reason for file in unreadable(bad)}
    assert list(reasons) == bad
    assert all(str(image.file) in reason for image, reason in reasons.items())


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), MemoryError()])
def test_refusals_of_the_system_name_the_file(tmp_path, monkeypatch, error):
    file = save(tmp_path / "a.png", GRADIENT)

    def refuse(*words, **options):
        raise error

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(DataError, match=r"a\.png"):
        read_image(file)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_folder_without_permission_is_an_error_not_an_absence(tmp_path):
    (tmp_path / "inside").mkdir()
    save(tmp_path / "a.png", GRADIENT)
    (tmp_path / "inside").chmod(0)
    try:
        with pytest.raises(DataError, match=r"Cannot search .*inside"):
            find_images([tmp_path])
    finally:
        (tmp_path / "inside").chmod(0o700)


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "1", "RGBA", "LA", "CMYK", "I;16"])
def test_an_image_that_was_read_is_rgb_and_can_be_written_to(tmp_path, mode):
    gray = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30))
    picture = gray if mode == "I;16" else gray.convert("L").convert(mode)
    file = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    picture.save(file)
    pixels = read_image(file)
    np.testing.assert_array_equal(pixels, look_at(file))
    assert pixels.shape == (20, 30, 3)
    assert pixels.flags.c_contiguous
    pixels[0, 0] = 7, 8, 9
    assert pixels[0, 0].tolist() == [7, 8, 9]


def test_images_are_found_at_any_depth_by_ending_or_content(tmp_path):
    images = ("a/x/y/3.tiff", "b/1.jpg", "b/2.PNG", "b/scan.nii.gz", "c.DCM")
    for name in (*images, "a/notes.txt", ".hidden/4.png", "b/.5.png", "b/m.npz", "b/c.gz", "IM1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("IM0002", "1.2.840.5", "DICOMDIR", "other.txt"):
        dicom(tmp_path / name, SHADES)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    found = [ref.file.relative_to(tmp_path).as_posix() for ref in find_images([tmp_path])]
    assert found == sorted(["1.2.840.5", "IM0002", *images])
    address = tmp_path / "b" / "scan.nii.gz#axis=2,index=0"
    assert find_images([address]) == [ImageRef.of(address)]
    for absent in (
        tmp_path / "a" / "notes",
        tmp_path / "w.nii#axis=2,index=0",
        tmp_path / ".hidden/x",
    ):
        with pytest.raises(DataError):
            find_images([absent])


@pytest.mark.parametrize("value", [0, 7, 255])
@pytest.mark.parametrize("place", [(0, 0), (1, 1), (40, 69), (99, 99)])
def test_a_blank_image_is_refused_where_it_would_be_learned_from(tmp_path, place, value):
    pixels = np.full((100, 100, 3), value, np.uint8)
    blank = save(tmp_path / "a.png", pixels)
    np.testing.assert_array_equal(read_image(blank), pixels)
    with pytest.raises(DataError):
        read_image(blank, blank=False)
    pixels[place] ^= 1
    other = save(tmp_path / "b.png", pixels)
    np.testing.assert_array_equal(read_image(other, blank=False), pixels)


def test_within_decode_once_a_file_is_decoded_once_and_again_when_it_changes(tmp_path, monkeypatch):
    file, paths = save(tmp_path / "a.png", GRADIENT), []
    read = decode._read_file
    monkeypatch.setattr(decode, "_read_file", lambda ref: paths.append(ref.file) or read(ref))
    with decode_once():
        first = read_image(file)
        first[:] = 0  # what a caller does with its copy changes nothing
        with decode_once():
            (tmp_path / "b").symlink_to(tmp_path)
            assert np.array_equal(look_at(tmp_path / "b" / "a.png")[..., 0], GRADIENT)
        assert len(paths) == 1
        save(file, GRADIENT[::-1, ::2])
        assert np.array_equal(read_image(file)[..., 0], GRADIENT[::-1, ::2])
        assert len(paths) == 2
        monkeypatch.setattr(decode, "_FULLEST", 0)  # there is no room for another
        save(file, GRADIENT)
        assert np.array_equal(read_image(file), read_image(file))
        assert len(paths) == 4
    read_image(file)
    assert len(paths) == 5


@given(hnp.arrays(np.float64, (3, 4), elements=st.floats(allow_nan=False, allow_infinity=False)))
@example(np.array([[-1.7e308, 0.0, 1e292, 1.7e308]]))
@example(np.array([[-np.finfo(np.float64).max, 3e292]]))
def test_scaling_keeps_order_and_spans_the_bytes(values):
    flat, out = values.ravel(), stretch(values).ravel().astype(int)
    order = np.argsort(flat, kind="stable")
    assert (np.diff(out[order]) >= 0).all()
    if flat.max() > flat.min():
        assert (out.min(), out.max()) == (0, 255)
    else:
        assert (out == 0).all()


def test_what_is_not_valid_does_not_count_and_is_black():
    values = np.array([[0, 10, 20, 10_000]])
    valid = np.array([[True, True, True, False]])
    assert stretch(values, valid=valid).tolist() == [[0, 128, 255, 0]]
    assert stretch(np.full((1, 2), np.nan)).tolist() == [[0, 0]]
