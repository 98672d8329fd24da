from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ogkd.datasets.groups import shared_groups
from ogkd.datasets.manifest import Item, Manifest

from ogkd.datasets.divide import complete_splits, split_items
from ogkd.errors import ConfigError, DataError
from ogkd.images import ImageRef
from tiny_data import item_of

NAMES = ("cyst", "stone", "tumor")
FRACTIONS = {"train": 0.6, "val": 0.1, "test": 0.3}

patients = st.none() | st.sampled_from("abcdefgh")


def manifest_of(rows: list[tuple[int, str, str | None]]) -> Manifest:
    items = (item_of(Path(f"{n:03}.png"), *row) for n, row in enumerate(rows))
    return Manifest(tuple(items), NAMES)


def assert_no_group_in_two(items: tuple[Item, ...] | list[Item]) -> None:
    where: dict[str, str] = {}
    for item in items:
        if item.group is not None:
            assert where.setdefault(item.group, item.split) == item.split


plain = st.lists(st.tuples(st.integers(0, 2), st.just(""), st.none()), min_size=12, max_size=80)
grouped = st.lists(st.tuples(st.integers(0, 2), st.just(""), patients), min_size=12, max_size=80)
seeds = st.integers(0, 10**6)
shares = st.lists(st.integers(1, 10), min_size=2, max_size=3).map(
    lambda parts: {
        name: part / sum(parts) for name, part in zip(["train", "val", "test"], parts, strict=False)
    }
)


@settings(deadline=None)
@given(plain, shares, seeds)
def test_without_groups_every_class_is_divided_to_within_one_image(rows, fractions, seed):
    try:
        after = split_items(manifest_of(rows), fractions, seed)
    except DataError:  # a small share of few images may come to none
        assume(False)
    counts = Counter((item.label, item.split) for item in after.items)
    for label, total in Counter(row[0] for row in rows).items():
        for split, share in fractions.items():
            assert abs(counts[label, split] - share * total) < 1 + 1e-9


@settings(deadline=None)
@given(grouped, shares, seeds, st.randoms(use_true_random=False))
def test_groups_stay_whole_whatever_the_order_and_the_folder(rows, fractions, seed, rng):
    manifest = manifest_of(rows)
    try:
        after = split_items(manifest, fractions, seed)
    except DataError:
        assume(False)
    assert_no_group_in_two(after.items)
    assert {item.split for item in after.items} == set(fractions)
    assert [replace(item, split="") for item in after.items] == list(manifest.items)
    moved = [replace(item, image=ImageRef("/moved" / item.image.file)) for item in manifest.items]
    rng.shuffle(moved)
    again = split_items(Manifest(tuple(moved), NAMES), fractions, seed)
    assert {("/moved" / item.image.file, item.split) for item in after.items} == {
        (item.image.file, item.split) for item in again.items
    }


def test_many_patients_come_close_to_the_fractions_in_every_class():
    rows = [
        (patient % 3 if image else (patient + 1) % 3, "", f"p{patient}")
        for patient in range(120)
        for image in range(1 + patient % 5)
    ]
    after = split_items(manifest_of(rows), FRACTIONS, 1)
    counts = Counter((item.label, item.split) for item in after.items)
    for label, total in Counter(row[0] for row in rows).items():
        for split, share in FRACTIONS.items():
            assert abs(counts[label, split] / total - share) < 0.03


def test_another_seed_gives_another_split():
    manifest = manifest_of([(number % 3, "", None) for number in range(60)])
    assert len({split_items(manifest, FRACTIONS, seed) for seed in range(8)}) == 8
    assert split_items(manifest, FRACTIONS, 3) == split_items(manifest, FRACTIONS, 3)


def test_two_patients_cannot_fill_three_splits():
    manifest = manifest_of([(0, "", "a"), (1, "", "b"), (0, "", "a")])
    with pytest.raises(DataError, match="3 images in 2 groups"):
        split_items(manifest, FRACTIONS, 1)


def test_a_dataset_with_splits_is_not_split_again():
    with pytest.raises(DataError, match="already has splits"):
        split_items(manifest_of([(0, "train", None), (1, "test", None)]), FRACTIONS, 1)


@pytest.mark.parametrize(
    ("fractions", "words"),
    [
        ({}, "two or more"),
        ({"train": 1.0}, "two or more"),
        ({"train": 0.5, "Training": 0.5}, "two or more"),
        ({"train": 1.0, "test": 0.0}, "above 0"),
        ({"train": 1.5, "test": -0.5}, "above 0"),
        ({"train": float("nan"), "test": 0.5}, "above 0"),
        ({"train": 0.5, "test": 0.4}, "add up to 0.9"),
    ],
)
def test_fractions_that_make_no_sense_are_refused(fractions, words):
    with pytest.raises(ConfigError, match=words):
        split_items(manifest_of([(0, "", None), (1, "", None)]), fractions, 1)


links = st.lists(st.lists(st.integers(0, 79), min_size=2, max_size=4), max_size=8)


@settings(deadline=None)
@given(grouped, links, shares, seeds)
def test_copies_stay_together_and_every_class_can_be_learned(rows, together, fractions, seed):
    together = [sorted({n % len(rows) for n in one}) for one in together]
    manifest = manifest_of(rows)
    try:
        after = split_items(manifest, fractions, seed, together=together)
    except DataError:
        assume(False)
    assert_no_group_in_two(after.items)
    for one in together:
        assert len({after.items[n].split for n in one}) == 1
    learned = {item.label for item in after.items if item.split == "train"}
    assert learned == {label for label, *_ in rows}
    assert [replace(item, split="") for item in after.items] == list(manifest.items)
    assert after == split_items(manifest, fractions, seed, together=together[::-1])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("images", "learned", "tested"), [(1, 1, 0), (2, 1, 1), (3, 2, 1), (4, 2, 1), (5, 3, 1)]
)
def test_a_small_class_is_learned_first_and_tested_next(images, learned, tested, seed):
    rows = [(0, "", None)] * 40 + [(1, "", None)] * 31 + [(2, "", None)] * images
    after = split_items(manifest_of(rows), {"train": 0.6, "val": 0.2, "test": 0.2}, seed)
    counts = Counter(item.split for item in after.items if item.label == 2)
    assert counts["train"] >= learned
    assert counts["test"] >= tested


def test_existing_splits_stay_and_a_missing_one_is_taken_from_train():
    rows = [(n % 3, "train" if n < 60 else "test", None) for n in range(90)]
    after, dropped = complete_splits(manifest_of(rows), FRACTIONS, 1)
    assert not dropped
    counts = Counter(item.split for item in after.items)
    assert counts == {"train": 51, "val": 9, "test": 30}
    assert [item for item in after.items if item.split == "test"] == list(
        manifest_of(rows).items[60:]
    )
    whole = [(n % 3, ("train", "val", "test")[n % 7 % 3], None) for n in range(30)]
    assert complete_splits(manifest_of(whole), FRACTIONS, 1) == (manifest_of(whole), ())


def test_copies_and_patients_across_existing_splits_leave_the_training_part():
    rows = [(0, "train", "p"), (0, "test", "p"), (1, "train", None), (1, "val", None)]
    rows += [(2, "train", "q"), (2, "train", None)]
    after, dropped = complete_splits(manifest_of(rows), FRACTIONS, 1, together=[(2, 3), (4, 5)])
    assert [item.image.name for item in dropped] == ["000.png", "002.png"]
    assert [item.group for item in after.items] == ["p", None, "q", None]
    assert shared_groups(after) == {}


def test_without_splits_it_divides_as_split_items_does():
    manifest = manifest_of([(n % 3, "", None) for n in range(30)])
    assert complete_splits(manifest, FRACTIONS, 4) == (split_items(manifest, FRACTIONS, 4), ())
