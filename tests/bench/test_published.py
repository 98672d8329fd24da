"""The published numbers: all there, named as in the project, and consistent where the paper is."""

from collections import Counter

import pytest

from ogkd.bench.compare import Published, published
from ogkd.data.catalog import benchmarks
from ogkd.methods import METHODS

Key = tuple[str, str, str, str, int, int | None]

# Cells whose printed value does not follow from the cells it is made of:
# docs/reference/benchmark-tables.md.
WRONG_HM = {
    ("base-to-novel", "btmri", "kgcoop", 0),  # by one hundredth
    ("noise-base-to-novel", "chmnist", "biomedcoop", 2),
    ("noise-base-to-novel", "dermamnist", "biomedcoop", 2),
    ("noise-base-to-novel", "lungcolon", "biomedcoop", 2),
    ("noise-base-to-novel", "retina", "biomedcoop", 2),
    ("noise-base-to-novel", "octmnist", "biomedcoop", 8),
}
WRONG_AVERAGE = {
    ("base-to-novel", "biomedcoop", "base", 0),
    ("noise-base-to-novel", "biomedcoop", "base", 2),
    ("noise-base-to-novel", "biomedcoop", "novel", 2),
    ("noise-base-to-novel", "biomedcoop", "base", 8),
    ("noise-base-to-novel", "ogkd", "base", 12),
}
MEAN_OF_HMS = {"zero-shot", "coop", "cocoop", "kgcoop", "prograd"}  # the others: HM of averages


def _hm(base: float, novel: float) -> float:
    return 2 * base * novel / (base + novel)


def _value(like: Published, **change: str) -> float:
    fields = ("table", "dataset", "method", "shots", "part", "flips", "setting", "metric")
    wanted = {name: getattr(like, name) for name in fields} | change
    (row,) = (row for row in published() if all(getattr(row, key) == wanted[key] for key in wanted))
    return row.value


def _datasets(row: Published) -> list[float]:
    return [
        one.value
        for one in published()
        if (one.table, one.method, one.part, one.flips, one.metric)
        == (row.table, row.method, row.part, row.flips, row.metric)
        and one.dataset != "average"
    ]


def test_every_table_has_all_its_numbers() -> None:
    counts = Counter((row.table, row.metric) for row in published())
    assert counts == {
        ("base-to-novel", "accuracy"): 11 * 7 * 3,
        ("base-to-novel", "accuracy_gain"): 3,
        ("few-shot", "accuracy"): 3 + 10 * 5,
        ("components", "accuracy"): 3 * 8,
        ("lgd-variants", "accuracy"): 3 * 8,
        ("noise-base-to-novel", "accuracy"): 4 * 11 * 6,
        ("noise-base-to-novel", "accuracy_gain"): 4 * 3,
        ("noise-few-shot", "accuracy"): 12 * 4 * 2,
        ("noise-few-shot", "accuracy_gain"): 4,
        ("teacher-budget", "accuracy_gain"): 4,
    }


def test_no_cell_is_there_twice() -> None:
    keys = Counter(
        (r.table, r.dataset, r.method, r.shots, r.part, r.flips, r.setting, r.metric)
        for r in published()
    )
    assert max(keys.values()) == 1


def test_methods_and_datasets_are_the_projects_own() -> None:
    assert {row.method for row in published()} <= set(METHODS)
    assert {row.dataset for row in published()} == {*benchmarks(), "average"}
    assert {row.part for row in published()} == {"test", "base", "novel", "hm"}
    b2n = {row.dataset for row in published() if row.part == "base"}
    assert b2n == {"average"} | {n for n, one in benchmarks().items() if one.base_to_novel}


@pytest.mark.parametrize(
    ("table", "dataset", "method", "shots", "part", "flips", "value", "std"),
    [
        ("base-to-novel", "dermamnist", "biomedcoop", 16, "novel", 0, 74.10, None),
        ("base-to-novel", "octmnist", "zero-shot", None, "base", 0, 56.60, None),
        ("base-to-novel", "average", "ogkd", 16, "hm", 0, 77.28, None),
        ("few-shot", "average", "tip-adapter-f", 1, "test", 0, 51.17, 8.33),
        ("few-shot", "average", "ogkd", 16, "test", 0, 73.80, 1.38),
        ("few-shot", "average", "zero-shot-selective", None, "test", 0, 53.72, None),
        ("noise-base-to-novel", "retina", "biomedcoop", 16, "novel", 16, 72.60, None),
        ("noise-few-shot", "busi", "ogkd", 16, "test", 12, 65.54, None),
    ],
)
def test_cells_read_by_eye_from_the_paper(
    table: str,
    dataset: str,
    method: str,
    shots: int | None,
    part: str,
    flips: int,
    value: float,
    std: float | None,
) -> None:
    (row,) = (
        row
        for row in published()
        if (row.table, row.dataset, row.method, row.shots, row.part, row.flips, row.metric)
        == (table, dataset, method, shots, part, flips, "accuracy")
    )
    assert (row.value, row.std) == (value, std)


def test_hm_of_a_dataset_follows_from_base_and_novel_except_in_known_cells() -> None:
    wrong = set()
    for row in published():
        if row.part != "hm" or row.dataset == "average" or row.metric != "accuracy":
            continue
        base, novel = _value(row, part="base"), _value(row, part="novel")
        # The base column of 12 flips has one digit less.
        step = 0.05 if row.flips == 12 else 0.005
        slack = 0.0051 + 2 * (step * novel**2 + 0.005 * base**2) / (base + novel) ** 2
        if abs(_hm(base, novel) - row.value) > slack:
            wrong.add((row.table, row.dataset, row.method, row.flips))
    assert wrong == WRONG_HM


def test_averages_follow_from_the_datasets_except_in_known_cells() -> None:
    wrong = set()
    for row in published():
        values = _datasets(row)
        if row.dataset != "average" or row.part == "hm" or not values:
            continue
        assert len(values) == (11 if row.part == "test" else 10)
        if abs(sum(values) / len(values) - row.value) > 0.0101:
            wrong.add((row.table, row.method, row.part, row.flips))
    assert wrong == WRONG_AVERAGE


def test_the_average_hm_has_two_meanings_and_we_know_which_row_has_which() -> None:
    for row in published():
        if (row.dataset, row.part, row.metric) != ("average", "hm", "accuracy"):
            continue
        own = _datasets(row)
        if row.method in MEAN_OF_HMS:
            assert row.value == pytest.approx(sum(own) / len(own), abs=0.0101)
            assert row.value < _hm(_value(row, part="base"), _value(row, part="novel")) - 0.5
        else:
            expected = _hm(_value(row, part="base"), _value(row, part="novel"))
            assert row.value == pytest.approx(expected, abs=0.0151)


def test_printed_gains_are_the_differences_of_the_printed_averages() -> None:
    for row in published():
        if row.metric == "accuracy_gain" and row.table != "teacher-budget":
            ours, theirs = (
                _value(row, metric="accuracy", method=name) for name in ("ogkd", "biomedcoop")
            )
            assert row.value == pytest.approx(ours - theirs, abs=0.0101)


def test_tables_that_repeat_a_number_agree() -> None:
    few_shot = {(r.method, r.shots): r.value for r in published() if r.table == "few-shot"}
    b2n = {
        (r.method, r.part): r.value
        for r in published()
        if (r.table, r.dataset, r.metric) == ("base-to-novel", "average", "accuracy")
    }
    repeated = [r for r in published() if r.setting in ("B", "B + GAD + LGD", "label-guided")]
    assert len(repeated) == 24
    for row in repeated:
        expected = (
            few_shot[row.method, row.shots] if row.part == "test" else b2n[row.method, row.part]
        )
        assert row.value == expected
