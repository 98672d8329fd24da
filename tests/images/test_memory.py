"""Images that are not files are read as their files are, one by one."""

from __future__ import annotations

import io
import tempfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from ogkd.errors import DataError
from ogkd.images import ImageRef, SliceRule, decode, image_refs, read_image
from tiny_images import dicom, nifti, png

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (9, 7, 3)).astype(np.uint8)
GRAY = RGB[:, :, 0]


def saved(image, kind="PNG", **options):
    memory = io.BytesIO()
    image.save(memory, kind, **options)
    return memory.getvalue()


def contents(images):
    return [ref if type(ref) is ImageRef else ref.content for ref in image_refs(images)]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP", "WEBP"])
def test_a_file_its_bytes_and_its_picture_are_the_same(kind, tmp_path):
    content = saved(Image.fromarray(RGB), kind)
    (tmp_path / "a").write_bytes(content)
    expected = read_image(tmp_path / "a")
    for form in (content, bytearray(content), memoryview(content)):
        np.testing.assert_array_equal(read_image(form), expected)
    with Image.open(io.BytesIO(content)) as picture:
        np.testing.assert_array_equal(read_image(picture), expected)
    np.testing.assert_array_equal(read_image(expected), expected)


@pytest.mark.parametrize(
    "form",
    [
        RGB,
        RGB / 255.0,
        (RGB / 255).astype(np.float32),
        np.dstack([RGB, GRAY]),  # transparency is left out
        torch.tensor(RGB),
        torch.tensor(RGB).permute(2, 0, 1),
        torch.tensor(RGB).permute(2, 0, 1) / 255,
        Image.fromarray(np.dstack([RGB, GRAY]), "RGBA"),
    ],
)
def test_forms_of_one_picture(form):
    np.testing.assert_array_equal(read_image(form), RGB)


@pytest.mark.parametrize(
    "form", [GRAY, GRAY[..., None], torch.tensor(GRAY), torch.tensor(GRAY)[None], GRAY / 255]
)
def test_forms_of_one_gray_picture(form):
    np.testing.assert_array_equal(read_image(form), np.repeat(GRAY[..., None], 3, axis=2))


@pytest.mark.parametrize("kind", [np.uint16, np.int16, np.int32, np.uint32])
def test_deep_numbers_are_scaled_as_in_files(kind, tmp_path):
    values = (GRAY.astype(kind) * 30) + kind(500)
    file = png(tmp_path / "deep.png", values.astype(np.uint16))
    np.testing.assert_array_equal(read_image(values), read_image(file))


def test_bytes_of_dicom_and_of_a_slice_are_read(tmp_path):
    file = dicom(tmp_path / "a.dcm", GRAY)
    np.testing.assert_array_equal(read_image(file.read_bytes()), read_image(file))
    volume = RNG.integers(0, 99, (5, 6, 7)).astype(np.int16)
    for name in ("v.nii", "v.nii.gz"):
        file = nifti(tmp_path / name, volume)
        (ref,) = image_refs(file.read_bytes())
        found = read_image(ref.sliced(SliceRule.parse("axis=2,index=3")))
        np.testing.assert_array_equal(found, read_image(f"{file}#axis=2,index=3"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "The image is not a readable image: it is empty"),
        (b"no picture", "The image is not a readable image. Known formats"),
        (saved(Image.fromarray(RGB))[:90], "The image is damaged or cut short"),
        (RGB - 300.5, r"float64 values from -300 to -45.5.*floats from 0 to 1"),
        (np.full((4, 4), np.nan), "float64 values from nan"),
        (RGB.astype(np.int64), "int64 values"),
        (RGB.astype(complex), "complex128 values"),
        (RGB[0, 0], r"shape \(3,\), not an image"),
        (RGB[None], r"shape \(1, 9, 7, 3\), not an image"),
        (torch.zeros(5, 9, 7), r"shape \(5, 9, 7\), not an image"),
        (np.zeros((0, 4), np.uint8), r"shape \(0, 4\), not an image"),
        (3.5, "of type float"),
        (None, "of type NoneType"),
    ],
)
def test_what_is_not_an_image_is_refused_in_words(content, message, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(DataError, match=message) as error:
        read_image(content)
    assert str(tmp_path) not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", [RGB, Image.fromarray(RGB), saved(Image.fromarray(RGB)), "a.png"])
def test_the_limit_of_pixels_holds_for_all(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    png(tmp_path / "a.png", RGB)
    monkeypatch.setattr(decode, "MAX_PIXELS", 60)
    monkeypatch.setattr(Image.Image, "load", None)  # it is not decoded
    with pytest.raises(DataError, match="more than the limit of 60"):
        read_image(form)


class Pairs(Dataset):
    """Never ends its iteration: only its length does."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, number):
        return self.images[number % len(self.images)], number


def test_one_image_is_one_and_a_batch_several():
    assert len(contents(RGB)) == len(contents(GRAY)) == len(contents("a.png")) == 1
    assert len(contents(torch.zeros(3, 5, 5))) == len(contents(b"abc")) == 1
    assert len(contents(np.zeros((4, 9, 7, 3)))) == len(contents(np.zeros((4, 9, 7)))) == 4
    assert len(contents(torch.zeros(4, 3, 9, 7))) == len(contents(torch.zeros(4, 9, 7))) == 4
    assert contents(np.array(["a.png", "b.png"])) == [ImageRef.of("a.png"), ImageRef.of("b.png")]
    assert contents([]) == []
    (first, second) = contents((RGB, "b.png"))
    assert first is RGB
    assert second == ImageRef.of("b.png")


@pytest.mark.parametrize(
    "images",
    [
        *(3, None, {"a": 1}, DataLoader([1]), np.zeros(4), np.zeros((2, 2, 2, 2, 2))),
        [{"scan": RGB, "label": 1}],
    ],
)
def test_what_is_not_a_collection_of_images_is_refused(images):
    with pytest.raises(DataError):
        [read_image(ref) for ref in image_refs(images)]


@pytest.mark.parametrize(
    "images",
    [
        Pairs(list(np.stack([RGB, RGB + 1, RGB + 2, RGB + 3]))),
        [(RGB, 0), (RGB + 1, 1), (RGB + 2, 0), (RGB + 3, 0)],
        [{"image": RGB + step, "label": 3} for step in range(4)],
        (RGB + step for step in range(4)),
    ],
)
def test_collections_with_and_without_labels_give_their_images(images):
    found = [read_image(ref) for ref in image_refs(images)]
    np.testing.assert_array_equal(found, [RGB + step for step in range(4)])
