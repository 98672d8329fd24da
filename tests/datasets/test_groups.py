from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ogkd.datasets.groups import (
    group_facts,
    separate_groups,
    shared_groups,
    split_by_group,
    split_items,
)
from ogkd.datasets.manifest import Item, Manifest
from ogkd.errors import ConfigError, DataError
from tiny_data import item_of

NAMES = ("cyst", "stone", "tumor")
FRACTIONS = {"train": 0.6, "val": 0.1, "test": 0.3}

patients = st.none() | st.sampled_from("abcdefgh")
splits = st.sampled_from(["train", "val", "test"])


def manifest_of(rows: list[tuple[int, str, str | None]]) -> Manifest:
    items = (item_of(Path(f"{n:03}.png"), *row) for n, row in enumerate(rows))
    return Manifest(tuple(items), NAMES)


def assert_no_group_in_two(items: tuple[Item, ...] | list[Item]) -> None:
    where: dict[str, str] = {}
    for item in items:
        if item.group is not None:
            assert where.setdefault(item.group, item.split) == item.split


def test_groups_across_splits_are_found():
    manifest = manifest_of(
        [(0, "train", "p1"), (0, "test", "p1"), (1, "train", "p2"), (1, "test", None)]
    )
    assert shared_groups(manifest) == {"p1": ("train", "test")}
    facts = group_facts(manifest)
    assert (facts.images, facts.images_with_group, facts.groups) == (4, 3, 2)
    assert facts.shared == {"p1": ("train", "test")}


def test_a_dataset_without_groups_or_splits_shares_none():
    assert shared_groups(manifest_of([(0, "train", None), (0, "test", None)])) == {}
    assert shared_groups(manifest_of([(0, "", "p"), (1, "", "p")])) == {}
    assert group_facts(manifest_of([(0, "train", None)])).images_with_group == 0


rows = st.lists(st.tuples(st.integers(0, 2), splits, patients), max_size=40)


@settings(deadline=None)
@given(rows)
def test_separated_splits_never_share_a_group_and_test_is_whole(rows):
    manifest = manifest_of(rows)
    after, dropped = separate_groups(manifest)
    assert shared_groups(after) == {}
    assert_no_group_in_two(after.items)
    assert sorted([*after.items, *dropped], key=lambda item: item.image) == list(manifest.items)
    kept = set(after.items)
    test_groups = {item.group for item in manifest.items if item.split == "test"}
    judged_groups = {item.group for item in manifest.items if item.split != "train"}
    for item in manifest.items:
        strict = test_groups if item.split == "val" else judged_groups
        leaks = item.split != "test" and item.group is not None and item.group in strict
        assert (item in kept) == (not leaks)


def test_a_split_of_another_name_is_judged_on_too():
    manifest = manifest_of([(0, "train", "p"), (1, "external", "p"), (1, "train", "q")])
    after, dropped = separate_groups(manifest)
    assert [item.split for item in dropped] == ["train"]
    assert len(after.items) == 2


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
    moved = [replace(item, path="/moved" / item.image) for item in manifest.items]
    rng.shuffle(moved)
    again = split_items(Manifest(tuple(moved), NAMES), fractions, seed)
    assert {("/moved" / item.image, item.split) for item in after.items} == {
        (item.image, item.split) for item in again.items
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


def test_split_by_group_needs_groups():
    items = manifest_of([(0, "", None), (1, "", None)]).items
    with pytest.raises(DataError, match="column patient"):
        split_by_group(items, FRACTIONS, 1)
    known = manifest_of([(0, "", name) for name in "aabbccddee"]).items
    after = split_by_group(known, {"train": 0.5, "test": 0.5}, 1)
    assert_no_group_in_two(after)
    assert Counter(item.split for item in after) in (
        Counter(train=6, test=4),
        Counter(train=4, test=6),
    )


def test_two_patients_cannot_fill_three_splits():
    manifest = manifest_of([(0, "", "a"), (1, "", "b"), (0, "", "a")])
    with pytest.raises(DataError, match="3 images in 2 groups"):
        split_items(manifest, FRACTIONS, 1)


def test_a_dataset_with_splits_is_not_split_again():
    with pytest.raises(DataError, match="splits already"):
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
