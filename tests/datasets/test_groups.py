from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogkd.datasets.groups import components, separate_groups, shared_groups
from ogkd.datasets.manifest import Item, Manifest

from tiny_data import item_of

NAMES = ("cyst", "stone", "tumor")

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


def test_a_dataset_without_groups_or_splits_shares_none():
    assert shared_groups(manifest_of([(0, "train", None), (0, "test", None)])) == {}
    assert shared_groups(manifest_of([(0, "", "p"), (1, "", "p")])) == {}


rows = st.lists(st.tuples(st.integers(0, 2), splits, patients), max_size=40)


@settings(deadline=None)
@given(rows)
def test_separated_splits_never_share_a_group_and_test_is_whole(rows):
    manifest = manifest_of(rows)
    after, dropped = separate_groups(manifest)
    assert shared_groups(after) == {}
    assert_no_group_in_two(after.items)
    assert sorted([*after.items, *dropped], key=lambda item: str(item.image)) == list(
        manifest.items
    )
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


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([], [0, 1, 2, 3]),
        ([(0, 1), (1, 3)], [0, 0, 2, 0]),
        ([(2, 3), (0, 1), (3, 1)], [0, 0, 0, 0]),
    ],
)
def test_components_join_what_a_chain_of_links_joins(links, expected):
    found = components(4, links)
    as_first_seen = [found.index(root) for root in found]
    assert as_first_seen == expected
