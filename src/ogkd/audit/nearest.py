"""All pairs of 64-bit hashes within a distance, without comparing every pair.

A hash is cut into 4 bands of 16 bits. If two hashes differ in at most d bits, then some band
differs in at most r = d // 4: were all four to differ in r + 1 or more, the whole would differ
in 4 (r + 1) > d bits. So it is enough to look, for each band, among the hashes whose band lies
within r bits: 1, 17, 137 or 697 places in a table of 65,536 for d below 4, 8, 12 or 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ogkd.audit.hashing import hamming

__all__ = ["MAX_DISTANCE", "close_pairs"]

MAX_DISTANCE = 15
_BANDS = 4
_BAND_BITS = 16
_CHUNK = 1 << 20  # candidate pairs held at once

Pairs = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]


def close_pairs(hashes: NDArray[np.uint64], distance: int) -> Iterator[Pairs]:
    """Arrays (first, second, bits) of the pairs within `distance`; first < second, each once."""
    if not 0 <= distance <= MAX_DISTANCE:
        raise ValueError(f"distance is 0 to {MAX_DISTANCE}, but got {distance}")
    radius = distance // _BANDS
    bands = np.ascontiguousarray(hashes).view(np.uint16).reshape(-1, _BANDS)
    for band in range(_BANDS):
        values = bands[:, band]
        order = np.argsort(values, kind="stable")
        # Hashes whose band is v stand at order[starts[v] : starts[v + 1]].
        sizes = np.bincount(values, minlength=1 << _BAND_BITS)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        for mask in _masks(radius):
            wanted = values ^ mask
            for first, places in _expand(starts[wanted], sizes[wanted]):
                second = order[places]
                keep = first < second
                first, second = first[keep], second[keep]
                bits = hamming(hashes[first], hashes[second])
                keep = bits <= distance
                # A pair that an earlier band finds too was given there.
                differing = bands[first, :band] ^ bands[second, :band]
                keep &= ~(_popcount(differing) <= radius).any(axis=1)
                if keep.any():
                    yield first[keep], second[keep], bits[keep]


def _expand(
    starts: NDArray[np.intp], counts: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Each row beside each place of its range, in chunks that fit in memory."""
    rows = np.flatnonzero(counts)
    total = np.cumsum(counts[rows])
    begin = 0
    while begin < len(rows):
        done = total[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(total, done + _CHUNK, side="right")))
        part = rows[begin:end]
        many = counts[part]
        within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        yield np.repeat(part, many), np.repeat(starts[part], many) + within
        begin = end


def _masks(radius: int) -> list[np.uint16]:
    """All 16-bit words with at most `radius` bits set."""
    return [
        np.uint16(sum(1 << bit for bit in chosen))
        for count in range(radius + 1)
        for chosen in combinations(range(_BAND_BITS), count)
    ]


def _popcount(words: NDArray[np.uint16]) -> NDArray[np.int64]:
    wide = words.astype(np.uint64)
    return hamming(wide.ravel(), np.zeros(wide.size, np.uint64)).reshape(words.shape)
