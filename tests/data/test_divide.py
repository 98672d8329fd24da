from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ogkd.data.case import Case, Dataset
from ogkd.data.divide import complete_splits
from ogkd.data.splits import separate_groups
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError, DataError
from ogkd.images import ImageRef
from tiny_data import case_of

NAMES = ("cyst", "stone", "tumor")
FRACTIONS = {"train": 0.6, "val": 0.1, "test": 0.3}

patients = st.none() | st.sampled_from("abcdefgh")


def dataset_of(rows: list[tuple[int, str, str | None]]) -> Dataset:
    cases = (case_of(Path(f"{n:03}.png"), *row) for n, row in enumerate(rows))
    return Dataset(tuple(cases), OneOf(NAMES))


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
        after = complete_splits(dataset_of(rows), fractions, seed)[0]
    except DataError:  # a small share of few images may come to none
        assume(False)
    counts = Counter((case.target, case.split) for case in after.cases)
    for label, total in Counter(row[0] for row in rows).items():
        for split, share in fractions.items():
            assert abs(counts[label, split] - share * total) < 1 + 1e-9


@settings(deadline=None)
@given(grouped, shares, seeds, st.randoms(use_true_random=False))
def test_groups_stay_whole_whatever_the_order_and_the_folder(rows, fractions, seed, rng):
    dataset = dataset_of(rows)
    try:
        after = complete_splits(dataset, fractions, seed)[0]
    except DataError:
        assume(False)
    assert not separate_groups(after)[1]
    assert {case.split for case in after.cases} == set(fractions)
    assert [replace(case, split="") for case in after.cases] == list(dataset.cases)
    moved = [
        replace(case, images=(ImageRef("/moved" / case.image.file),)) for case in dataset.cases
    ]
    rng.shuffle(moved)
    again = complete_splits(dataset.with_cases(moved), fractions, seed)[0]
    assert {("/moved" / case.image.file, case.split) for case in after.cases} == {
        (case.image.file, case.split) for case in again.cases
    }


def test_many_patients_come_close_to_the_fractions_in_every_class():
    rows = [
        (patient % 3 if image else (patient + 1) % 3, "", f"p{patient}")
        for patient in range(120)
        for image in range(1 + patient % 5)
    ]
    after = complete_splits(dataset_of(rows), FRACTIONS, 1)[0]
    counts = Counter((case.target, case.split) for case in after.cases)
    for label, total in Counter(row[0] for row in rows).items():
        for split, share in FRACTIONS.items():
            assert abs(counts[label, split] / total - share) < 0.03


def test_two_patients_cannot_fill_three_splits():
    with pytest.raises(DataError):
        complete_splits(dataset_of([(0, "", "a"), (1, "", "b"), (0, "", "a")]), FRACTIONS, 1)


@pytest.mark.parametrize(
    "fractions",
    [
        {},
        {"train": 1.0},
        {"train": 0.5, "Training": 0.5},
        {"train": 1.0, "test": 0.0},
        {"train": 1.5, "test": -0.5},
        {"train": float("nan"), "test": 0.5},
        {"train": 0.5, "test": 0.4},
    ],
)
def test_invalid_fractions_are_refused(fractions):
    with pytest.raises(ConfigError):
        complete_splits(dataset_of([(0, "", None), (1, "", None)]), fractions, 1)


links = st.lists(st.lists(st.integers(0, 79), min_size=2, max_size=4), max_size=8)


@settings(deadline=None)
@given(grouped, links, shares, seeds)
def test_copies_stay_together_and_every_class_can_be_learned(rows, together, fractions, seed):
    together = [sorted({n % len(rows) for n in copies}) for copies in together]
    dataset = dataset_of(rows)
    try:
        after = complete_splits(dataset, fractions, seed, together=together)[0]
    except DataError:
        assume(False)
    assert not separate_groups(after)[1]
    for copies in together:
        assert len({after.cases[n].split for n in copies}) == 1
    learned = {case.target for case in after.cases if case.split == "train"}
    assert learned == {label for label, *_ in rows}
    assert [replace(case, split="") for case in after.cases] == list(dataset.cases)
    assert after == complete_splits(dataset, fractions, seed, together=together[::-1])[0]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("images", "learned", "tested"), [(1, 1, 0), (2, 1, 1), (3, 2, 1), (4, 2, 1), (5, 3, 1)]
)
def test_a_small_class_is_learned_first_and_tested_next(images, learned, tested, seed):
    rows = [(0, "", None)] * 40 + [(1, "", None)] * 31 + [(2, "", None)] * images
    after = complete_splits(dataset_of(rows), {"train": 0.6, "val": 0.2, "test": 0.2}, seed)[0]
    counts = Counter(case.split for case in after.cases if case.target == 2)
    assert counts["train"] >= learned
    assert counts["test"] >= tested


def test_existing_splits_stay_and_a_missing_one_is_taken_from_train():
    rows = [(n % 3, "train" if n < 60 else "test", None) for n in range(90)]
    after, dropped = complete_splits(dataset_of(rows), FRACTIONS, 1)
    assert not dropped
    counts = Counter(case.split for case in after.cases)
    assert counts == {"train": 51, "val": 9, "test": 30}
    assert [case for case in after.cases if case.split == "test"] == list(
        dataset_of(rows).cases[60:]
    )
    whole = [(n % 3, ("train", "val", "test")[n % 7 % 3], None) for n in range(30)]
    assert complete_splits(dataset_of(whole), FRACTIONS, 1) == (dataset_of(whole), ())


def test_copies_and_patients_across_existing_splits_leave_the_training_part():
    rows = [(0, "train", "p"), (0, "test", "p"), (1, "train", None), (1, "val", None)]
    rows += [(2, "train", "q"), (2, "train", None)]
    after, dropped = complete_splits(dataset_of(rows), FRACTIONS, 1, together=[(2, 3), (4, 5)])
    assert [case.image.name for case in dropped] == ["000.png", "002.png"]
    assert [case.group for case in after.cases] == ["p", None, "q", None]
    assert not separate_groups(after)[1]


def test_cases_of_several_images_are_never_cut() -> None:
    cases = [
        Case(f"exam {n}", tuple(ImageRef(Path(f"{n}-{k}.png")) for k in range(5)), n % 2)
        for n in range(30)
    ]
    dataset = Dataset(tuple(cases), OneOf(("a", "b")))
    divided, _ = complete_splits(dataset, {"a": 0.5, "b": 0.5}, 3)
    assert Counter((case.split, len(case.images)) for case in divided.cases) == {
        ("a", 5): 15,
        ("b", 5): 15,
    }
