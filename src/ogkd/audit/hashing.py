"""Perceptual hashes: 64 bits that stay nearly the same when an image is resized or recompressed.

Each bit says whether one of the 64 lowest frequencies of the grey image (cosine transform,
without the mean) lies above their median, so brightness and contrast do not matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["SIDE", "hamming", "likeness", "perceptual_hashes", "small_gray"]

SIDE = 64  # side of the small grey images that are hashed and compared
_FLAT = 1.0  # grey levels: with less contrast than this, the bits would be noise
_AROUND = 9  # pixels: the surroundings that a pixel is measured against
_QUIET = 4.0  # grey levels: structure weaker than this counts less, as it may be noise
_CHUNK = 1024


def small_gray(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An RGB image as a grey one of SIDE x SIDE, each pixel the mean of what it covers."""
    gray = Image.fromarray(image).convert("L")
    # Bilinear in Pillow widens with the scale: no aliasing, so copies of other sizes agree.
    return np.asarray(gray.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def _frequencies() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row and column of the 64 lowest frequencies but the mean, by distance from it."""
    side = 12
    every = [(u * u + v * v, u, v) for u in range(side) for v in range(side) if u or v]
    chosen = sorted(every)[:64]
    return np.array([u for _, u, _ in chosen]), np.array([v for _, _, v in chosen])


_ROWS, _COLUMNS = _frequencies()


def _cosines(count: int) -> NDArray[np.float32]:
    """The first rows of the orthonormal DCT-II: [count, SIDE]."""
    place = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    waves = np.cos(np.arange(count)[:, None] * place) * np.sqrt(2.0 / SIDE)
    waves[0] /= np.sqrt(2.0)
    return np.asarray(waves, np.float32)


_WAVES = _cosines(int(max(_ROWS.max(), _COLUMNS.max())) + 1)


def perceptual_hashes(small: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Hashes of small grey images [N, SIDE, SIDE], and which are flat and so have no meaning."""
    hashes = np.zeros(len(small), np.uint64)
    flat = np.zeros(len(small), np.bool_)
    weights = np.uint64(1) << np.arange(64, dtype=np.uint64)
    for start in range(0, len(small), _CHUNK):
        part = slice(start, start + _CHUNK)
        grid = _WAVES @ small[part].astype(np.float32) @ _WAVES.T
        low = grid[:, _ROWS, _COLUMNS]  # [n, 64]
        above = low > np.median(low, axis=1, keepdims=True)
        hashes[part] = np.where(above, weights, np.uint64(0)).sum(axis=1, dtype=np.uint64)
        # The transform keeps lengths, so this is the contrast that the bits rest on.
        flat[part] = np.sqrt((low**2).sum(axis=1)) / SIDE < _FLAT
    return hashes, flat


_BITS = np.array([bin(value).count("1") for value in range(1 << 16)], np.uint8)


def hamming(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The number of bits in which hashes differ, pair by pair."""
    words = np.ascontiguousarray(first ^ second).view(np.uint16).reshape(-1, 4)
    return np.asarray(_BITS[words].sum(axis=1, dtype=np.int64))


def likeness(
    small: NDArray[np.uint8], first: NDArray[np.intp], second: NDArray[np.intp]
) -> NDArray[np.float64]:
    """The correlation of the fine structure of each pair: 1 for a copy, brighter or not."""
    result = np.empty(len(first))
    for start in range(0, len(first), _CHUNK):
        part = slice(start, start + _CHUNK)
        result[part] = (_structure(small[first[part]]) * _structure(small[second[part]])).sum(1)
    return result


def _structure(small: NDArray[np.uint8]) -> NDArray[np.float64]:
    """What is left when each pixel is measured against its surroundings: unit vectors [N, ...].

    Otherwise the outline, which all scans of one kind share (a round fundus on black), would
    outweigh everything that makes an image this image.
    """
    from scipy.ndimage import uniform_filter

    values = small.astype(np.float64)
    around = (0, _AROUND, _AROUND)
    mean = uniform_filter(values, around, mode="nearest")
    variance = uniform_filter(values**2, around, mode="nearest") - mean**2
    local = (values - mean) / (np.sqrt(np.maximum(variance, 0)) + _QUIET)
    flat = local.reshape(len(small), -1)
    flat -= flat.mean(axis=1, keepdims=True)
    return np.asarray(flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-9))
