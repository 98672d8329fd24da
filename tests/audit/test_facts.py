from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ogkd.audit.findings import data_findings, gather_facts
from ogkd.audit.result import Facts, Finding, Record, ScannedImage

NAMES = ("benign", "malignant")


def picture(width: int = 64, height: int = 64, *, gray: bool = True) -> ScannedImage:
    return ScannedImage(width, height, gray, b"", np.zeros((64, 64), np.uint8))


def record(file: str, label: str, split: str, group: str | None) -> Record:
    return Record(file, label, split, group, names=(label,), image=picture())


def records(counts: dict[tuple[str, str], int], *, groups: bool = False) -> list[Record]:
    return [
        record(f"{split}/{label}/{n}.png", label, split, f"{split}{label}{n}" if groups else None)
        for (split, label), count in counts.items()
        for n in range(count)
    ]


def judged(made: Sequence[Record]) -> tuple[Facts, dict[str, Finding]]:
    facts = gather_facts(made, NAMES)
    return facts, {finding.kind: finding for finding in data_findings(facts, made)}


def test_counts_are_by_split_and_class_and_imbalance_is_of_what_is_learned_from() -> None:
    made = records(
        {("train", "benign"): 60, ("train", "malignant"): 20, ("test", "benign"): 1}, groups=True
    )
    facts, found = judged(made)
    assert facts.counts == {
        "train": {"benign": 60, "malignant": 20},
        "test": {"benign": 1, "malignant": 0},
    }
    assert facts.imbalance == 3
    assert facts.groups == 81
    assert set(found) == {"class-missing"}
    assert found["class-missing"].severity == "warning"


def test_a_class_that_cannot_be_learned_is_an_error() -> None:
    made = records({("train", "benign"): 20, ("test", "malignant"): 20}, groups=True)
    facts = gather_facts(made, NAMES)
    missing = [one for one in data_findings(facts, made) if one.kind == "class-missing"]
    assert [one.severity for one in missing] == ["error", "warning"]
    assert "malignant" in missing[0].what
    assert facts.imbalance is None


@pytest.mark.parametrize(
    ("benign", "malignant", "kind", "expected"),
    [
        (100, 15, "class-small", True),
        (100, 16, "class-small", False),
        (199, 20, "imbalance", False),
        (200, 20, "imbalance", True),
    ],
)
def test_few_or_uneven_images_are_named(
    benign: int, malignant: int, kind: str, expected: bool
) -> None:
    made = records({("", "benign"): benign, ("", "malignant"): malignant}, groups=True)
    assert (kind in judged(made)[1]) == expected


def test_unknown_groups_are_a_warning_and_partly_known_ones_a_note() -> None:
    made = records({("", "benign"): 20, ("", "malignant"): 20})
    assert judged(made)[1]["groups-unknown"].severity == "warning"
    made[0] = record(made[0].file, "benign", "", "p1")
    found = judged(made)[1]
    assert "groups-unknown" not in found
    assert len(found["groups-partial"].where) == 39


def test_a_group_in_two_splits_is_an_error_that_names_files_of_both() -> None:
    made = records({("train", "benign"): 20, ("test", "malignant"): 20}, groups=True)
    made[3] = record("train/a.png", "benign", "train", "patient 7")
    made[30] = record("test/b.png", "malignant", "test", "patient 7")
    leak = judged(made)[1]["group-leak"]
    assert leak.severity == "error"
    assert [case.files for case in leak.where] == [("train/a.png", "test/b.png")]
    assert "patient 7" in leak.where[0].note


def test_unreadable_images_count_in_the_classes_but_not_in_the_sizes() -> None:
    made = records({("", "benign"): 20, ("", "malignant"): 20}, groups=True)
    made[:2] = [
        replace(one, image=image)
        for one, image in zip(made, (None, picture(10, 40, gray=False)), strict=False)
    ]
    facts, found = judged(made)
    assert facts.counts[""]["benign"] == 20
    assert facts.sizes == {"64 x 64": 38, "10 x 40": 1}
    assert (facts.gray, facts.colour) == (38, 1)
    assert [case.files for case in found["tiny"].where] == [(made[1].file,)]
