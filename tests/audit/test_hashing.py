from __future__ import annotations

import io

import numpy as np
import pytest
import scipy.fft
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from ogkd.audit.duplicates import SIDE, likeness, perceptual_hashes, small_gray


def bits_between(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> int:
    hashes, flat = perceptual_hashes(np.stack([small_gray(first), small_gray(second)]))
    assert not flat.any()
    return bin(int(hashes[0] ^ hashes[1])).count("1")


def test_hash_is_the_sign_of_low_frequencies_about_their_median_by_scipys_transform() -> None:
    small = np.random.default_rng(0).integers(0, 256, (3, SIDE, SIDE)).astype(np.uint8)
    hashes, _ = perceptual_hashes(small)
    for image, found in zip(small, hashes, strict=True):
        grid = scipy.fft.dctn(image.astype(float), norm="ortho")
        order = sorted(
            ((u, v) for u in range(SIDE) for v in range(SIDE) if (u, v) != (0, 0)),
            key=lambda place: (place[0] ** 2 + place[1] ** 2, place),
        )[:64]
        low = np.array([grid[place] for place in order])
        expected = sum(1 << n for n, value in enumerate(low) if value > np.median(low))
        assert bin(int(found) ^ expected).count("1") == 0


def jpeg(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=60)
    return Image.open(buffer)


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.resize((image.width // 2, image.height // 2)),
        lambda image: image.resize((image.width * 2, image.height * 2)),
        jpeg,
        lambda image: ImageEnhance.Brightness(image).enhance(0.8),
        lambda image: ImageEnhance.Contrast(image).enhance(0.7),
        lambda image: image.convert("L").convert("RGB"),
    ],
    ids=["half", "double", "jpeg", "darker", "less contrast", "grey"],
)
def test_a_changed_copy_keeps_nearly_all_bits(change, texture) -> None:  # type: ignore[no-untyped-def]
    for seed in range(5):
        original = texture(seed)
        copy = np.asarray(change(Image.fromarray(original)).convert("RGB"))
        assert bits_between(original, copy) <= 4
        small = np.stack([small_gray(original), small_gray(copy)])
        assert likeness(small, np.array([0]), np.array([1]))[0] > 0.99
        assert bits_between(original, texture(seed + 10)) > 12


@pytest.mark.parametrize("level", [0, 127, 255])
def test_an_even_image_is_called_flat(level: int) -> None:
    even = np.full((1, SIDE, SIDE), level, np.uint8)
    assert perceptual_hashes(even)[1].tolist() == [True]
    speck = even.copy()
    speck[0, 3, 3] ^= 1
    assert perceptual_hashes(speck)[1].tolist() == [True]


def test_likeness_of_an_image_with_itself_is_one_and_with_its_negative_minus_one() -> None:
    small = np.random.default_rng(1).integers(0, 256, (1, SIDE, SIDE)).astype(np.uint8)
    both = np.concatenate([small, 255 - small])
    found = likeness(both, np.array([0, 0]), np.array([0, 1]))
    np.testing.assert_allclose(found, [1.0, -1.0])
