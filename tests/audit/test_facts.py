from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ogkd.audit.findings import data_findings, gather_facts
from ogkd.audit.result import Facts, Finding, Record, ScannedImage

NAMES = ("benign", "malignant")


def picture(width: int = 64, height: int = 64, *, gray: bool = True) -> ScannedImage:
    return ScannedImage(width, height, gray, b"", np.zeros((64, 64), np.uint8))


def records(
    counts: dict[tuple[str, str], int], *, groups: bool = False
) -> tuple[list[Record], list[ScannedImage | None]]:
    made = [
        Record(f"{split}/{label}/{n}.png", label, split, f"{split}{label}{n}" if groups else None)
        for (split, label), count in counts.items()
        for n in range(count)
    ]
    return made, [picture() for _ in made]


def judged(
    made: Sequence[Record], pictures: Sequence[ScannedImage | None]
) -> tuple[Facts, dict[str, Finding]]:
    facts = gather_facts(made, NAMES, pictures)
    return facts, {finding.kind: finding for finding in data_findings(facts, made, pictures)}


def test_counts_are_by_split_and_class_and_imbalance_is_of_what_is_learned_from() -> None:
    made, pictures = records(
        {("train", "benign"): 60, ("train", "malignant"): 20, ("test", "benign"): 1}, groups=True
    )
    facts, found = judged(made, pictures)
    assert facts.counts == {
        "train": {"benign": 60, "malignant": 20},
        "test": {"benign": 1, "malignant": 0},
    }
    assert facts.imbalance == 3
    assert facts.groups == 81
    assert set(found) == {"class-missing"}
    assert found["class-missing"].severity == "warning"


def test_a_class_that_cannot_be_learned_is_an_error() -> None:
    made, pictures = records({("train", "benign"): 20, ("test", "malignant"): 20}, groups=True)
    facts = gather_facts(made, NAMES, pictures)
    missing = [one for one in data_findings(facts, made, pictures) if one.kind == "class-missing"]
    assert [one.severity for one in missing] == ["error", "warning"]
    assert "malignant" in missing[0].what
    assert facts.imbalance is None


@pytest.mark.parametrize(("count", "few"), [(15, True), (16, False)])
def test_fewer_than_sixteen_images_of_a_class_are_told(count: int, few: bool) -> None:
    made, pictures = records({("", "benign"): 100, ("", "malignant"): count}, groups=True)
    assert ("class-small" in judged(made, pictures)[1]) == few


@pytest.mark.parametrize(("many", "uneven"), [(199, False), (200, True)])
def test_ten_times_as_many_images_are_uneven(many: int, uneven: bool) -> None:
    made, pictures = records({("", "benign"): many, ("", "malignant"): 20}, groups=True)
    assert ("imbalance" in judged(made, pictures)[1]) == uneven


def test_unknown_groups_are_a_warning_and_partly_known_ones_a_note() -> None:
    made, pictures = records({("", "benign"): 20, ("", "malignant"): 20})
    assert judged(made, pictures)[1]["groups-unknown"].severity == "warning"
    made[0] = Record(made[0].file, "benign", "", "p1")
    found = judged(made, pictures)[1]
    assert "groups-unknown" not in found
    assert len(found["groups-partial"].where) == 39


def test_a_group_in_two_splits_is_an_error_that_names_files_of_both() -> None:
    made, pictures = records({("train", "benign"): 20, ("test", "malignant"): 20}, groups=True)
    made[3] = Record("train/a.png", "benign", "train", "patient 7")
    made[30] = Record("test/b.png", "malignant", "test", "patient 7")
    leak = judged(made, pictures)[1]["group-leak"]
    assert leak.severity == "error"
    assert [case.files for case in leak.where] == [("train/a.png", "test/b.png")]
    assert "patient 7" in leak.where[0].note


def test_a_group_within_one_split_is_no_leak() -> None:
    made, pictures = records({("train", "benign"): 20, ("train", "malignant"): 20}, groups=True)
    made[:2] = [Record(f"train/{n}.png", "benign", "train", "p") for n in range(2)]
    assert "group-leak" not in judged(made, pictures)[1]


def test_a_size_that_gives_the_class_away_is_a_shortcut() -> None:
    made, pictures = records({("", "benign"): 20, ("", "malignant"): 20}, groups=True)
    assert "shortcut" not in judged(made, pictures)[1]
    told = [picture(64 if one.label == "benign" else 80) for one in made]
    assert "size" in judged(made, told)[1]["shortcut"].what
    told = [picture(gray=one.label == "benign") for one in made]
    assert "colour" in judged(made, told)[1]["shortcut"].what


def test_a_size_of_its_own_for_each_image_tells_nothing() -> None:
    made, _ = records({("", "benign"): 20, ("", "malignant"): 20}, groups=True)
    assert "shortcut" not in judged(made, [picture(64 + n) for n in range(40)])[1]


def test_unreadable_images_count_in_the_classes_but_not_in_the_sizes() -> None:
    made, pictures = records({("", "benign"): 20, ("", "malignant"): 20}, groups=True)
    pictures[:2] = [None, picture(10, 40, gray=False)]
    facts, found = judged(made, pictures)
    assert facts.counts[""]["benign"] == 20
    assert facts.sizes == {"64 x 64": 38, "10 x 40": 1}
    assert (facts.gray, facts.colour) == (38, 1)
    assert [case.files for case in found["tiny"].where] == [(made[1].file,)]
