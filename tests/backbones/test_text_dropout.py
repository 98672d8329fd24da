"""Dropout masks: SplitMix64 in whole numbers, the same bits on every device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ogkd.backbones.base import TextDropout
from pretend_device import THERE, pretending


def split_mix(key, count):
    """The generator as its author wrote it, one number at a time, in Python's whole numbers."""
    found, mask = [], 2**64 - 1
    for _ in range(count):
        key = (key + 0x9E3779B97F4A7C15) & mask
        z = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        found.append(z ^ (z >> 31))
    return np.array(found, dtype=np.uint64)


def masks(keys, sizes, rate=0.25, device="cpu"):
    dropout = TextDropout(keys)
    return [dropout(torch.ones(size, device=device), rate).cpu() > 0 for size in sizes]


def test_masks_are_those_of_the_generator_four_to_a_number():
    keys = (2**64 - 5, 7)
    first, second = masks(keys, [(2, 3, 5), (4, 9)])
    for row, key in enumerate(keys):
        shorts = split_mix(key, 4 + 5).view(np.int16)  # 15 and 18 values: 4 and 5 numbers
        kept = shorts >= 0.25 * 2**16 - 2**15
        assert first[row].flatten().tolist() == kept[:15].tolist()
        assert second[2 * row : 2 * row + 2].flatten().tolist() == kept[16 : 16 + 18].tolist()


def test_the_device_draws_the_same_bits_and_copies_only_the_keys():
    sizes = [(2, 700), (4, 33), (2, 5)]
    expected = masks((1, 2), sizes)
    with pretending() as count:
        dropout = TextDropout((1, 2))
        values = [torch.ones(size).to(THERE) for size in sizes]
        before = count.there
        found = [dropout(mine, 0.25) for mine in values]
        assert count.there - before == 1
        assert all(
            torch.equal(mine.cpu() > 0, other) for mine, other in zip(found, expected, strict=True)
        )


def test_coins_of_neighbouring_places_and_streams_do_not_depend_on_each_other():
    (kept,) = masks((1, 2), [(2, 200_000)], rate=0.5)
    coins = kept.double() - 0.5
    for lag in (1, 2, 4):
        assert abs((coins[0, lag:] * coins[0, :-lag]).mean()) < 0.003  # 0.25 if they were equal
    assert abs((coins[0] * coins[1]).mean()) < 0.003
    assert kept.double().mean().item() == pytest.approx(0.5, abs=0.005)
