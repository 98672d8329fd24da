from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ogkd.audit import duplicates
from ogkd.audit.duplicates import close_pairs

# A few words with a few bits flipped: pairs near the limit, which random words never are.
near_words = st.builds(
    lambda base, flips: base ^ sum(1 << bit for bit in flips),
    st.sampled_from([0, 2**64 - 1, 0x0123456789ABCDEF]),
    st.sets(st.integers(0, 63), max_size=12),
)
hash_lists = st.lists(st.one_of(near_words, st.integers(0, 2**64 - 1)), max_size=40)


def brute_force(hashes: list[int], distance: int) -> dict[tuple[int, int], int]:
    found = {}
    for second in range(len(hashes)):
        for first in range(second):
            bits = bin(hashes[first] ^ hashes[second]).count("1")
            if bits <= distance:
                found[first, second] = bits
    return found


def search(hashes: list[int], distance: int) -> list[tuple[int, int, int]]:
    return [
        triple
        for arrays in close_pairs(np.array(hashes, np.uint64), distance)
        for triple in zip(*(array.tolist() for array in arrays), strict=True)
    ]


@settings(max_examples=150, deadline=None)
@given(hash_lists, st.integers(0, 15))
@example([0, 2**64 - 1, 0], 0)
def test_every_pair_within_the_distance_is_found_once(hashes: list[int], distance: int) -> None:
    found = search(hashes, distance)
    assert len({(first, second) for first, second, _ in found}) == len(found)
    assert {(a, b): bits for a, b, bits in found} == brute_force(hashes, distance)


def test_chunks_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = [0] * 20 + [1] * 20
    whole = sorted(search(hashes, 2))
    monkeypatch.setattr(duplicates, "_COMPARED", 7)  # one row at a time
    assert sorted(search(hashes, 2)) == whole
    assert len(whole) == 40 * 39 // 2
