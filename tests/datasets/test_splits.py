from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogkd.datasets.manifest import Item, Manifest

from ogkd.datasets.splits import (
    base_and_novel,
    few_shot,
    flip_labels,
    keep_classes,
    shortfalls,
    support_and_val,
)
from ogkd.errors import ConfigError
from tiny_data import item_of


def items_of(labels: list[int]) -> list[Item]:
    return [item_of(Path(f"{number}.png"), label) for number, label in enumerate(labels)]


def released(
    train: list[Item], shots: int, seed: int, val: list[Item] | None = None
) -> list[list[Item]]:
    """fidelity.md, 31, word for word, with the global functions of `random`."""
    state = random.getstate()
    try:
        random.seed(seed)
        found = []
        for items, count in ((train, shots), (val or [], min(shots, 4))):
            order: list[int] = []
            for item in items:
                if item.label not in order:
                    order.append(item.label)
            drawn = []
            for label in order:
                mine = [item for item in items if item.label == label]
                drawn += random.sample(mine, count) if len(mine) >= count else mine
            found.append(drawn)
        return found
    finally:
        random.setstate(state)


labels = st.lists(st.integers(0, 4), max_size=40)
shots = st.integers(1, 20)
seeds = st.integers(0, 2**32)
samplings = st.sampled_from(["released", "nested"])


@settings(deadline=None)
@given(labels, shots, seeds)
def test_the_draw_is_the_released_one(labels, shots, seed):
    items = items_of(labels)
    assert few_shot(items, shots, seed) == released(items, shots, seed)[0]


@settings(deadline=None)
@given(labels, labels, shots, seeds)
def test_the_validation_images_are_the_released_ones(train, val, shots, seed):
    ours = support_and_val(items_of(train), items_of(val), shots, seed)
    assert list(ours) == released(items_of(train), shots, seed, items_of(val))


def test_published_seeds_keep_their_meaning():
    """Numbers written down once, from Python's own generator: a change here breaks old results."""
    items = items_of([0] * 10 + [2] * 12 + [1] * 3)
    numbers = [int(item.image.file.stem) for item in few_shot(items, 4, 1)]
    assert numbers == [2, 1, 4, 0, 17, 21, 20, 16, 22, 23, 24]


def test_a_class_of_exactly_the_shots_moves_the_generator_as_released():
    items = items_of([0] * 4 + [1] * 9)
    drawn = few_shot(items, 4, 1)
    assert drawn == released(items, 4, 1)[0]
    assert drawn[4:] != few_shot(items[4:], 4, 1)


def test_classes_come_in_the_order_of_first_appearance():
    drawn = few_shot(items_of([2, 0, 2, 1, 0, 1]), 1, 3)
    assert [item.label for item in drawn] == [2, 0, 1]


@settings(deadline=None)
@given(labels, shots, seeds, samplings)
def test_each_class_gives_the_shots_or_all_it_has_and_nothing_twice(labels, shots, seed, sampling):
    items = items_of(labels)
    drawn = few_shot(items, shots, seed, sampling=sampling)
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) <= set(items)
    for label in set(labels):
        assert sum(item.label == label for item in drawn) == min(shots, labels.count(label))


@settings(deadline=None)
@given(labels, shots, seeds, samplings)
def test_the_draw_is_a_function_of_its_arguments_alone(labels, shots, seed, sampling):
    before = random.getstate()
    first = few_shot(items_of(labels), shots, seed, sampling=sampling)
    assert random.getstate() == before
    random.random()
    assert few_shot(items_of(labels), shots, seed, sampling=sampling) == first


@pytest.mark.parametrize("sampling", ["released", "nested"])
def test_other_seeds_draw_other_images(sampling):
    items = items_of([0] * 50)
    drawn = {tuple(few_shot(items, 5, seed, sampling=sampling)) for seed in range(1, 9)}
    assert len(drawn) == 8


@settings(deadline=None)
@given(labels, shots, shots, seeds)
def test_nested_shots_are_among_those_of_any_larger_number(labels, one, other, seed):
    items = items_of(labels)
    few, many = sorted((one, other))
    small = few_shot(items, few, seed, sampling="nested")
    assert set(small) <= set(few_shot(items, many, seed, sampling="nested"))


@settings(deadline=None)
@given(labels, shots, seeds, st.randoms(use_true_random=False))
def test_the_nested_draw_does_not_depend_on_the_order_or_the_folder(labels, shots, seed, rng):
    items = items_of(labels)
    mixed = [item_of(Path("/moved/here") / item.image.file, item.label) for item in items]
    rng.shuffle(mixed)
    drawn = few_shot(items, shots, seed, sampling="nested")
    moved = few_shot(mixed, shots, seed, sampling="nested")
    assert [Path("/moved/here") / item.image.file for item in drawn] == [
        item.image.file for item in moved
    ]


def test_nested_classes_draw_independently_of_each_other():
    items = [
        item_of(Path(f"{label}/{number:02}.png"), label) for label in (0, 1) for number in range(40)
    ]
    drawn = few_shot(items, 8, 1, sampling="nested")
    names = [{item.image.name for item in drawn if item.label == label} for label in (0, 1)]
    assert names[0] != names[1]
    alone = few_shot(items[40:], 8, 1, sampling="nested")
    assert alone == drawn[8:]


def test_every_image_has_the_same_chance():
    items = items_of([0] * 10)
    for sampling in ("released", "nested"):
        draws = (few_shot(items, 3, seed, sampling=sampling) for seed in range(1000))
        counts = Counter(item for drawn in draws for item in drawn)
        assert all(240 < counts[item] < 360 for item in items)  # 300 expected, 4 sigma


def test_no_shots_means_all_images_in_order():
    items = items_of([1, 0, 1])
    assert few_shot(items, None, 1) == items


@pytest.mark.parametrize("shots", [0, -3])
def test_fewer_than_one_shot_is_refused(shots):
    for sampling in ("released", "nested"):
        with pytest.raises(ConfigError, match=f"at least 1, but is {shots}"):
            few_shot(items_of([0, 1]), shots, 1, sampling=sampling)


def test_an_unknown_sampling_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="released, nested, but is 'nest'"):
        few_shot(items_of([0, 1]), None, 1, sampling="nest")  # type: ignore[arg-type]


def test_classes_with_fewer_images_than_shots_are_told():
    drawn = few_shot(items_of([0] * 9 + [1] * 3 + [2] * 4), 4, 1)
    names = ["cyst", "stone", "tumor", "absent"]
    assert shortfalls(names, drawn, 4) == {"stone": 3}
    assert shortfalls(names, drawn, None) == {}


@given(st.integers(2, 60))
def test_base_is_the_first_half_rounded_up_and_novel_the_rest(count):
    base, novel = base_and_novel([f"c{number}" for number in range(count)])
    assert base + novel == tuple(range(count))
    assert len(base) - len(novel) in (0, 1)


def test_base_and_novel_need_two_classes():
    with pytest.raises(ConfigError, match="there are 1"):
        base_and_novel(["cyst"])


@settings(deadline=None)
@given(labels, st.sets(st.integers(0, 4), min_size=1))
def test_kept_classes_are_numbered_anew_with_their_names(labels, kept):
    names = tuple(f"class {label}" for label in range(5))
    before = Manifest(tuple(items_of(labels)), names)
    after = keep_classes(before, sorted(kept, reverse=True))
    assert after.class_names == tuple(names[label] for label in sorted(kept))
    assert [(item.image, after.class_names[item.label]) for item in after.items] == [
        (item.image, names[item.label]) for item in before.items if item.label in kept
    ]


@pytest.mark.parametrize("labels", [[], [0, 0], [-1], [2]])
def test_classes_that_are_not_there_cannot_be_kept(labels):
    with pytest.raises(ConfigError, match="from 0 to 1"):
        keep_classes(Manifest(tuple(items_of([0, 1])), ("a", "b")), labels)


flip_cases = st.tuples(
    st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 12), seeds
).filter(lambda case: case[1] <= max(Counter(case[0]).values()))


@settings(deadline=None)
@given(flip_cases)
def test_exactly_k_of_each_class_are_flipped_to_another_allowed_class(case):
    labels, flips, seed = case
    items = items_of(labels)
    after = flip_labels(items, flips, seed, allowed=range(5))
    assert [item.image for item in after] == [item.image for item in items]
    flipped = [(old.label, new.label) for old, new in zip(items, after, strict=True) if old != new]
    assert all(old != new and 0 <= new < 5 for old, new in flipped)
    counts = Counter(old for old, _ in flipped)
    for label, count in Counter(labels).items():
        assert counts[label] == min(flips, count)


@settings(deadline=None)
@given(flip_cases, st.randoms(use_true_random=False))
def test_flips_do_not_depend_on_the_order_and_more_flips_keep_the_fewer(case, rng):
    labels, flips, seed = case
    items = items_of(labels)
    after = flip_labels(items, flips, seed, allowed=range(5))
    mixed = list(items)
    rng.shuffle(mixed)
    assert set(flip_labels(mixed, flips, seed, allowed=[4, 3, 2, 1, 0])) == set(after)
    fewer = flip_labels(items, max(0, flips - 1), seed, allowed=range(5))
    for item, less, more in zip(items, fewer, after, strict=True):
        assert less in (item, more)


def test_flips_in_base_to_novel_stay_among_the_base_classes():
    items = items_of([0] * 16 + [1] * 16 + [2] * 16)
    after = flip_labels(items, 16, 1, allowed=(0, 1, 2))
    assert {item.label for item in after} == {0, 1, 2}
    assert not any(old.label == new.label for old, new in zip(items, after, strict=True))


def test_new_labels_are_spread_evenly_over_the_other_classes():
    items = items_of([1] * 2000 + [0] * 1)
    after = flip_labels(items, 2000, 5, allowed=range(5))
    counts = Counter(item.label for item in after[:2000])
    assert set(counts) == {0, 2, 3, 4}
    assert all(420 < count < 580 for count in counts.values())  # 500 expected, 4 sigma


@pytest.mark.parametrize(
    ("flips", "allowed", "words"),
    [
        (-1, (0, 1), "0 to 3 .the images per class., but is -1"),
        (4, (0, 1), "but is 4"),
        (1, (0,), "at least two classes"),
        (1, (0, 2), "every class that has images"),
    ],
)
def test_flips_that_cannot_be_are_refused(flips, allowed, words):
    with pytest.raises(ConfigError, match=words):
        flip_labels(items_of([0, 0, 0, 1]), flips, 1, allowed=allowed)
