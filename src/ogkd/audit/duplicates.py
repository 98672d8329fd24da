"""Images that are there twice: the same pixels, or nearly the same to the eye."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ogkd.audit.hashing import likeness, perceptual_hashes
from ogkd.audit.nearest import close_pairs
from ogkd.audit.result import NearPair
from ogkd.audit.scan import Scan

__all__ = ["MIN_LIKENESS", "Duplicates", "components", "find_duplicates"]

# Scans of one kind share their coarse layout, so few differing bits are not proof enough:
# docs/data-check.md shows how both limits were chosen.
MIN_LIKENESS = 0.85
_BLANK = 2  # grey levels between the darkest and the brightest spot
MAX_PAIRS = 200_000  # beyond this a list helps nobody


@dataclass(frozen=True)
class Duplicates:
    """Sets of equal images, pairs of similar ones, and images too flat to compare."""

    exact: tuple[tuple[int, ...], ...]
    near: tuple[NearPair, ...]
    flat: tuple[int, ...]
    complete: bool = True  # False where the list of pairs was cut


def find_duplicates(seen: Scan, *, near: int) -> Duplicates:
    """Find equal images, and those within `near` bits that also look alike pixel by pixel."""
    numbers = seen.readable
    small = seen.small()
    spread = small.max(axis=(1, 2)) - small.min(axis=(1, 2))
    # Two black images are equal, but neither shows anything that the other could give away.
    exact = _equal(seen, blank=set(numbers[spread <= _BLANK].tolist()))
    # One image stands for each set of equal ones: the others would repeat its pairs.
    repeated = {number for members in exact for number in members[1:]}
    hashes, flat = perceptual_hashes(small)
    usable = np.array([number not in repeated for number in numbers], np.bool_) & ~flat
    rows = np.flatnonzero(usable)
    pairs: list[NearPair] = []
    complete = True
    for first, second, bits in close_pairs(hashes[rows], near):
        pairs += _verified(small, numbers, rows[first], rows[second], bits)
        if len(pairs) > MAX_PAIRS:
            complete = False
            break
    pairs.sort(key=lambda pair: (-pair.likeness, pair.first, pair.second))
    return Duplicates(exact, tuple(pairs[:MAX_PAIRS]), tuple(numbers[flat].tolist()), complete)


def _equal(seen: Scan, *, blank: set[int]) -> tuple[tuple[int, ...], ...]:
    by_digest: dict[bytes, list[int]] = {}
    for number, picture in enumerate(seen.pictures):
        if picture is not None and number not in blank:
            by_digest.setdefault(picture.digest, []).append(number)
    return tuple(tuple(members) for members in by_digest.values() if len(members) > 1)


def _verified(
    small: NDArray[np.uint8],
    numbers: NDArray[np.intp],
    first: NDArray[np.intp],
    second: NDArray[np.intp],
    bits: NDArray[np.int64],
) -> list[NearPair]:
    alike = likeness(small, first, second)
    return [
        NearPair(int(numbers[first[n]]), int(numbers[second[n]]), int(bits[n]), float(alike[n]))
        for n in np.flatnonzero(alike >= MIN_LIKENESS)
    ]


def components(count: int, links: Iterable[Iterable[int]]) -> list[int]:
    """A number for each of `count` things, the same for things that any chain of links joins."""
    parent = list(range(count))

    def root(one: int) -> int:
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    for link in links:
        members = list(link)
        for other in members[1:]:
            parent[root(other)] = root(members[0])
    return [root(one) for one in range(count)]
