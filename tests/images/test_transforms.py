from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch.nn.functional import interpolate, pad

from ogkd.images.plain import gray_to_rgb
from ogkd.images.transforms import (
    Preprocessing,
    center_crop,
    draw_crop,
    random_resized_crop,
    to_pixels,
)

PREP = Preprocessing(size=32)
CROPS = ((0, 0, 20, 25), (3, 5, 11, 17), (8, 2, 12, 9))


@pytest.fixture(scope="module")
def torchvision() -> dict[str, np.ndarray]:
    """Outputs of the real torchvision, made by tools/make_torchvision_fixtures.py."""
    path = Path(__file__).parent / "fixtures" / "torchvision.npz"
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("index", range(5))
def test_whole_image_equals_torchvision_resize_and_center_crop(torchvision, index):
    ours = center_crop(torchvision[f"image{index}"], PREP).astype(int)
    assert np.abs(ours - torchvision[f"whole{index}"]).max() <= 1


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize("resize", ["shortest", "squash"])
@pytest.mark.parametrize("shape", [(300, 200), (31, 45), (32, 32), (7, 900)])
def test_a_gray_image_is_resized_once_to_the_same_pixels(interpolation, resize, shape):
    gray = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    once, thrice = gray_to_rgb(gray), np.stack([gray] * 3, axis=2)
    prep = Preprocessing(size=32, interpolation=interpolation, resize=resize)
    np.testing.assert_array_equal(center_crop(once, prep), center_crop(thrice, prep))
    for flip in (False, True):
        crops = [
            random_resized_crop(image, prep, np.random.default_rng(1), flip=flip)
            for image in (once, thrice)
        ]
        np.testing.assert_array_equal(*crops)


@pytest.mark.parametrize("index", range(5))
def test_pixels_equal_torchvision_to_tensor_and_normalize(torchvision, index):
    ours = to_pixels([torchvision[f"image{index}"]], PREP)[0].numpy()
    one_grey_level = 1 / 255 / min(PREP.std)
    assert np.abs(ours - torchvision[f"pixels{index}"]).max() <= one_grey_level + 1e-6


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("index", range(5))
def test_a_given_crop_equals_torchvision_resized_crop(torchvision, index, number, monkeypatch):
    crop = CROPS[number]
    monkeypatch.setattr("ogkd.images.transforms.draw_crop", lambda *_: crop)
    ours = random_resized_crop(torchvision[f"image{index}"], PREP, np.random.default_rng(0))
    assert np.abs(ours.astype(int) - torchvision[f"crop{index}_{number}"]).max() <= 1


def test_random_crops_are_distributed_as_torchvision_draws_them(torchvision):
    rng = np.random.default_rng(1)
    ours = np.array([draw_crop(90, 120, rng) for _ in range(20000)])
    theirs = torchvision["draws"]
    for column in range(4):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3


def test_squash_keeps_the_whole_width():
    image = np.zeros((10, 40, 3), np.uint8)
    image[:, :2] = 255  # a bright left edge that a centre crop would lose
    squashed = center_crop(image, Preprocessing(size=32, resize="squash"))
    cropped = center_crop(image, PREP)
    assert squashed.shape == cropped.shape == (32, 32, 3)
    assert squashed[:, 0].min() > 200
    assert cropped.max() == 0


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 500), (500, 1), (1, 90_000), (224, 224)])
def test_any_size_becomes_the_models_size(height, width):
    image = np.full((height, width, 3), 77, np.uint8)
    assert (center_crop(image, PREP) == 77).all()
    assert random_resized_crop(image, PREP, np.random.default_rng(0)).shape == (32, 32, 3)
    strip = np.zeros((4, 1001, 3), np.uint8)
    strip[:, 498:503] = 255
    assert center_crop(strip, PREP)[:, 12:20].min() > 200


@pytest.mark.parametrize("shape", [(50, 80, 3), (80, 50, 3), (9, 9, 3), (3, 300, 3)])
def test_pad_scales_the_long_side_and_fills_up_with_black_as_flair_does(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    ours = center_crop(image, Preprocessing(size=32, interpolation="bilinear", resize="pad"))
    scale = max(shape) / 32
    size = [max(1, int(side / scale)) for side in shape[:2]]
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    scaled = interpolate(pixels, size, mode="bilinear", antialias=True, align_corners=False)
    expected = pad(scaled, (0, 32 - size[1], 0, 32 - size[0]))[0].permute(1, 2, 0).numpy()
    assert np.abs(ours - expected).max() <= 1.01


def test_pad_center_makes_a_square_first_as_medclip_does():
    image = np.random.default_rng(0).integers(0, 256, (40, 90, 3), dtype=np.uint8)
    square = np.zeros((90, 90, 3), np.uint8)
    square[25:65] = image
    ours = center_crop(image, Preprocessing(size=32, resize="pad_center"))
    np.testing.assert_array_equal(ours, center_crop(square, Preprocessing(size=32)))
    small = center_crop(image[:10, :10], Preprocessing(size=32, resize="pad_center"))
    np.testing.assert_array_equal(small[11:21, 11:21], image[:10, :10])  # it is not enlarged
    assert small.sum() == image[:10, :10].sum()


@pytest.mark.parametrize(("height", "width"), [(60, 60), (60, 90), (90, 60)])
def test_a_crop_smaller_than_the_scaled_side_is_the_middle_of_it(height, width):
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    ours = center_crop(image, Preprocessing(size=24, scaled=30))
    scaled = np.asarray(Image.fromarray(image).resize((width // 2, height // 2), 3))
    top, left = (height // 2 - 24) // 2, (width // 2 - 24) // 2
    expected = scaled[top : top + 24, left : left + 24]
    np.testing.assert_array_equal(ours, expected)
    assert ours.shape == (24, 24, 3)


def test_fields_added_later_do_not_change_what_older_settings_are_called():
    assert "scaled" not in Preprocessing().identity()
    assert repr(Preprocessing()) == (
        "Preprocessing(size=224, mean=(0.48145466, 0.4578275, 0.40821073), "
        "std=(0.26862954, 0.26130258, 0.27577711), interpolation='bicubic', resize='shortest')"
    )
    assert Preprocessing(scaled=256).identity()["scaled"] == 256
