from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogkd.datasets.manifest import Item
from ogkd.datasets.splits import few_shot
from ogkd.errors import ConfigError


def items_of(labels: list[int]) -> list[Item]:
    return [Item(Path(f"{number}.png"), label) for number, label in enumerate(labels)]


def released(items: list[Item], shots: int, seed: int) -> list[Item]:
    """AUDIT #31, word for word, with the global functions of `random`."""
    state = random.getstate()
    try:
        random.seed(seed)
        order: list[int] = []
        for item in items:
            if item.label not in order:
                order.append(item.label)
        drawn = []
        for label in order:
            mine = [item for item in items if item.label == label]
            drawn += random.sample(mine, shots) if len(mine) >= shots else mine
        return drawn
    finally:
        random.setstate(state)


labels = st.lists(st.integers(0, 4), max_size=40)
shots = st.integers(1, 20)
seeds = st.integers(0, 2**32)


@settings(deadline=None)
@given(labels, shots, seeds)
def test_the_draw_is_the_released_one(labels, shots, seed):
    items = items_of(labels)
    assert few_shot(items, shots, seed) == released(items, shots, seed)


def test_a_class_of_exactly_the_shots_moves_the_generator_as_released():
    items = items_of([0] * 4 + [1] * 9)
    drawn = few_shot(items, 4, 1)
    assert drawn == released(items, 4, 1)
    assert drawn[4:] != few_shot(items[4:], 4, 1)


def test_classes_come_in_the_order_of_first_appearance():
    drawn = few_shot(items_of([2, 0, 2, 1, 0, 1]), 1, 3)
    assert [item.label for item in drawn] == [2, 0, 1]


@settings(deadline=None)
@given(labels, shots, seeds)
def test_each_class_gives_the_shots_or_all_it_has_and_nothing_twice(labels, shots, seed):
    items = items_of(labels)
    drawn = few_shot(items, shots, seed)
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= set(items)
    for label in set(labels):
        assert sum(item.label == label for item in drawn) == min(shots, labels.count(label))


@settings(deadline=None)
@given(labels, shots, seeds)
def test_the_draw_is_a_function_of_its_arguments_alone(labels, shots, seed):
    before = random.getstate()
    first = few_shot(items_of(labels), shots, seed)
    assert random.getstate() == before
    random.random()
    assert few_shot(items_of(labels), shots, seed) == first


def test_other_seeds_draw_other_images():
    items = items_of([0] * 50)
    assert len({tuple(few_shot(items, 5, seed)) for seed in range(1, 9)}) == 8


def test_no_shots_means_all_images_in_order():
    items = items_of([1, 0, 1])
    assert few_shot(items, None, 1) == items


@pytest.mark.parametrize("shots", [0, -3])
def test_fewer_than_one_shot_is_refused(shots):
    with pytest.raises(ConfigError, match=f"at least 1, but is {shots}"):
        few_shot(items_of([0, 1]), shots, 1)
