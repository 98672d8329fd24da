"""Duplicate images: equal pixels, and pairs that look nearly the same.

Near duplicates are found by perceptual hashes: each of 64 bits says whether one of the 64 lowest
frequencies of the grey image (cosine transform, without the mean) lies above their median, so
brightness and contrast do not matter. Candidates are then compared pixel by pixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.audit.result import NearPair, ScannedImage

SIDE = 64  # side of the small grey images that are hashed and compared
# Scans of one kind share their coarse layout, so a few differing bits are not proof enough:
# docs/evidence/trust.md shows how both limits were chosen.
MIN_LIKENESS = 0.85
MAX_PAIRS = 200_000  # a longer list helps nobody
_BLANK = 2  # grey levels between the darkest and the brightest pixel
_FLAT = 1.0  # grey levels: with less contrast than this, the bits would be noise
_AROUND = 9  # pixels: the neighbourhood that a pixel is compared with
_QUIET = 4.0  # grey levels: structure weaker than this counts less, as it may be noise
_CHUNK = 1024  # images
_COMPARED = 1 << 24  # pairs of hashes compared at once

Pairs = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]


@dataclass(frozen=True)
class Duplicates:
    """Sets of equal images, pairs of similar ones, and images too flat to compare."""

    exact: tuple[tuple[int, ...], ...]
    near: tuple[NearPair, ...]
    flat: tuple[int, ...]
    complete: bool = True  # False if the list of pairs was cut


def find_duplicates(images: Sequence[ScannedImage | None], *, near: int) -> Duplicates:
    """Find equal images, and those within `near` bits that also look alike pixel by pixel.

    An image that could not be read is None.
    """
    readable = [(number, image) for number, image in enumerate(images) if image is not None]
    numbers = np.array([number for number, _ in readable], np.intp)
    small = np.array([image.small for _, image in readable], np.uint8).reshape(-1, SIDE, SIDE)
    spread = small.max(axis=(1, 2)) - small.min(axis=(1, 2))
    # Two black images are equal, but neither shows anything that the other could give away.
    exact = _equal(
        [image for image, range_ in zip(readable, spread, strict=True) if range_ > _BLANK]
    )
    # One image represents each set of equal ones: the others would repeat its pairs.
    repeated = {number for members in exact for number in members[1:]}
    hashes, flat = perceptual_hashes(small)
    rows = np.flatnonzero(~flat & ~np.isin(numbers, list(repeated)))
    pairs: list[NearPair] = []
    for first, second, bits in close_pairs(hashes[rows], near):
        left, right = rows[first], rows[second]
        alike = likeness(small, left, right)
        pairs += [
            NearPair(int(numbers[left[n]]), int(numbers[right[n]]), int(bits[n]), float(alike[n]))
            for n in np.flatnonzero(alike >= MIN_LIKENESS)
        ]
        if len(pairs) > MAX_PAIRS:
            break
    complete = len(pairs) <= MAX_PAIRS
    pairs.sort(key=lambda pair: (-pair.likeness, pair.first, pair.second))
    return Duplicates(exact, tuple(pairs[:MAX_PAIRS]), tuple(numbers[flat].tolist()), complete)


def _equal(images: Iterable[tuple[int, ScannedImage]]) -> tuple[tuple[int, ...], ...]:
    by_digest: dict[bytes, list[int]] = {}
    for number, image in images:
        by_digest.setdefault(image.digest, []).append(number)
    return tuple(tuple(members) for members in by_digest.values() if len(members) > 1)


def small_gray(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An RGB image as a grey one of SIDE x SIDE, each pixel the mean of what it covers."""
    gray = Image.fromarray(image).convert("L")
    # Pillow's bilinear filter widens with the scale: no aliasing, so copies of other sizes agree.
    return np.asarray(gray.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def _cosines(count: int) -> NDArray[np.float32]:
    """The first rows of the orthonormal DCT-II: [count, SIDE]."""
    phase = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    waves = np.cos(np.arange(count)[:, None] * phase) * np.sqrt(2.0 / SIDE)
    waves[0] /= np.sqrt(2.0)
    return np.asarray(waves, np.float32)


# Row and column of the 64 lowest frequencies except the mean, by distance from it.
_LOWEST = sorted((u * u + v * v, u, v) for u in range(12) for v in range(12))[1:65]
_, _ROWS, _COLUMNS = np.array(_LOWEST).T
_WAVES = _cosines(int(max(_ROWS.max(), _COLUMNS.max())) + 1)


def perceptual_hashes(small: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Hashes of small grey images [N, SIDE, SIDE], and which are flat, so their hash is noise."""
    hashes = np.zeros(len(small), np.uint64)
    flat = np.zeros(len(small), np.bool_)
    weights = np.uint64(1) << np.arange(64, dtype=np.uint64)
    for start in range(0, len(small), _CHUNK):
        part = slice(start, start + _CHUNK)
        grid = _WAVES @ small[part].astype(np.float32) @ _WAVES.T
        low = grid[:, _ROWS, _COLUMNS]  # [n, 64]
        above = low > np.median(low, axis=1, keepdims=True)
        hashes[part] = np.where(above, weights, np.uint64(0)).sum(axis=1, dtype=np.uint64)
        # The transform preserves lengths, so this is the contrast that the bits are based on.
        flat[part] = np.sqrt((low**2).sum(axis=1)) / SIDE < _FLAT
    return hashes, flat


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
    """Each pixel relative to its neighbourhood: unit vectors [N, SIDE * SIDE].

    Otherwise the outline that all scans of one kind share (a round fundus on black) would
    outweigh everything that is particular to an image.
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


def close_pairs(hashes: NDArray[np.uint64], distance: int) -> Iterator[Pairs]:
    """Arrays (first, second, bits) of the pairs within `distance`; first < second, each once.

    With bits as -1 and 1, the product of two hashes is 64 - 2 x the number of differing bits, so
    all pairs of a block of hashes are one product of matrices.
    """
    bits = np.unpackbits(np.ascontiguousarray(hashes).view(np.uint8).reshape(-1, 8), axis=1)
    signs = bits.astype(np.float32) * 2 - 1  # [N, 64]
    rows = max(1, _COMPARED // max(1, len(signs)))
    for start in range(0, len(signs) - 1, rows):
        products = signs[start : start + rows] @ signs[start:].T
        first, second = np.nonzero(products >= 64 - 2 * distance)
        first, second = first[first < second], second[first < second]
        if len(first):
            differing = (64 - products[first, second]) / 2
            yield first + start, second + start, differing.astype(np.int64)
