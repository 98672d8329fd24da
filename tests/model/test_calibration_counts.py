"""How many calibration images are missing, where images are of patients and where not."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ogkd.model.temperature import softmax

from ogkd.errors import ConfigError
from ogkd.model.calibration import Calibration


def fitted(groups):
    """A calibration on an image for each entry of `groups`."""
    rng = np.random.default_rng(1)
    count = len(groups)
    keys = [f"{value:016x}" for value in rng.integers(0, 2**60, count)]
    return Calibration.fit(rng.normal(0, 2, (count, 3)), np.arange(count) % 3, keys, groups=groups)


def told(found, coverage):
    """Needed, in all, counting and missing images by the message."""
    with pytest.raises(ConfigError) as error:
        found.sets(softmax(np.zeros((1, 3))), coverage=coverage)
    words = r"at least (\d+) calibration images .* has (\d+), of which (\d+) count: at least (\d+)"
    return tuple(map(int, re.search(words, str(error.value)).groups()))


def test_single_images_are_missing_by_the_exact_number():
    assert told(fitted([None] * 10), 0.9) == (9, 10, 7, 3)
    fitted([None] * 13).sets(softmax(np.zeros((1, 3))), coverage=0.9)


def test_with_patients_the_images_count_that_did_not_set_the_temperature():
    """16 single images would do; of two patients, the larger may set the temperature."""
    beside = set()
    for seed in range(8):
        found = fitted(np.random.default_rng(seed).permutation(["a"] * 12 + ["b"] * 4).tolist())
        beside.add(len(found.confidences))
        if len(found.confidences) == 4:
            assert told(found, 0.9) == (9, 16, 4, 5)
        else:
            found.sets(softmax(np.zeros((1, 3))), coverage=0.9)
    assert beside == {4, 12}


def test_nothing_is_missing_where_there_are_enough():
    found = fitted([None] * 30)
    assert len(found.confidences) == 20
    assert [found.missing(held_out) for held_out in (1, 20)] == [0, 0]
    assert found.missing(21) >= 1
