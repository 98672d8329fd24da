from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ogkd.audit import duplicates
from ogkd.audit.duplicates import MAX_DISTANCE, close_pairs

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
@given(hash_lists, st.integers(0, 9))
@example([0, 2**64 - 1, 0], 0)
@example([0, 0x0003_0003_0003_0003], 8)  # two bits in every band: the tightest case
@example([0, 0x0001_0001_0001_0001], 4)
def test_every_pair_within_the_distance_is_found_once(hashes: list[int], distance: int) -> None:
    found = search(hashes, distance)
    assert len({(first, second) for first, second, _ in found}) == len(found)
    assert {(a, b): bits for a, b, bits in found} == brute_force(hashes, distance)


def test_the_largest_distance_finds_every_pair_too() -> None:
    rng = np.random.default_rng(3)
    base = int(rng.integers(0, 2**63))
    flips = [rng.choice(64, rng.integers(0, 12), replace=False) for _ in range(25)]
    hashes = [base ^ sum(1 << int(bit) for bit in one) for one in flips]
    expected = brute_force(hashes, MAX_DISTANCE)
    assert max(expected.values()) == MAX_DISTANCE
    assert {(a, b): bits for a, b, bits in search(hashes, MAX_DISTANCE)} == expected


def test_chunks_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = [0] * 20 + [1] * 20
    whole = sorted(search(hashes, 2))
    monkeypatch.setattr(duplicates, "_PAIR_CHUNK", 7)  # less than one row of candidates
    assert sorted(search(hashes, 2)) == whole
    assert len(whole) == 40 * 39 // 2


@pytest.mark.parametrize("distance", [-1, MAX_DISTANCE + 1])
def test_a_distance_out_of_range_is_refused(distance: int) -> None:
    with pytest.raises(ValueError, match="0 to 15"):
        list(close_pairs(np.zeros(2, np.uint64), distance))


def test_work_grows_far_slower_than_the_number_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    plain = duplicates.hamming

    def counting(first, second):  # type: ignore[no-untyped-def]
        nonlocal compared
        compared += len(first)
        return plain(first, second)

    monkeypatch.setattr(duplicates, "hamming", counting)
    hashes = np.random.default_rng(0).integers(0, 2**64, 20_000, np.uint64)
    assert not list(close_pairs(hashes, 6))
    assert compared < 20_000**2 / 2 / 200
