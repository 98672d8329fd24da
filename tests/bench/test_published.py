"""The published numbers: all there, named as in the project, and consistent where the paper is."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ogkd.bench import compare
from ogkd.bench.compare import published
from ogkd.data.catalog import benchmarks
from ogkd.methods import METHODS

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


PAIR = ("ogkd", "biomedcoop")
CELL = ["table", "dataset", "method", "flips"]


def _hm(base: pd.Series, novel: pd.Series) -> pd.Series:
    return 2 * base * novel / (base + novel)


@pytest.fixture(scope="module")
def accuracy() -> pd.DataFrame:
    return published().query("metric == 'accuracy'")


@pytest.fixture(scope="module")
def novel(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Base, novel and HM in columns; ablations, of which there are only averages, left out."""
    rows = accuracy.query("setting == '' and part != 'test'")
    return rows.pivot(index=CELL, columns="part", values="value")


def test_every_table_has_all_its_numbers_once() -> None:
    frame = published()
    assert frame.groupby(["table", "metric"]).size().to_dict() == {
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
    assert not frame.duplicated([*CELL, "shots", "part", "setting", "metric"]).any()


def test_methods_and_datasets_are_the_projects_own() -> None:
    frame = published()
    assert set(frame["method"]) <= set(METHODS)
    assert set(frame["dataset"]) == {*benchmarks(), "average"}
    base = set(frame.query("part == 'base'")["dataset"])
    assert base == {"average"} | {n for n, record in benchmarks().items() if record.base_to_novel}


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
    accuracy, table, dataset, method, shots, part, flips, value, std
):
    wanted = dict(zip([*CELL, "part"], (table, dataset, method, flips, part), strict=True))
    rows = accuracy[(accuracy[list(wanted)] == pd.Series(wanted)).all(axis=1)]
    rows = rows[rows["shots"].fillna(0) == (shots or 0)]
    np.testing.assert_equal(rows[["value", "std"]].to_numpy(), [[value, std or np.nan]])


def test_hm_of_a_dataset_follows_from_base_and_novel_except_in_known_cells(novel) -> None:
    cells = novel.drop(index="average", level="dataset")
    # The base column of 12 flips has one digit less.
    step = np.where(cells.index.get_level_values("flips") == 12, 0.05, 0.005)
    squares = step * cells["novel"] ** 2 + 0.005 * cells["base"] ** 2
    slack = 0.0051 + 2 * squares / (cells["base"] + cells["novel"]) ** 2
    wrong = (_hm(cells["base"], cells["novel"]) - cells["hm"]).abs() > slack
    assert set(cells.index[wrong]) == WRONG_HM


def test_averages_follow_from_the_datasets_except_in_known_cells(accuracy) -> None:
    rows = accuracy.query("setting == '' and part != 'hm' and table != 'few-shot'")
    key = ["table", "method", "part", "flips"]
    printed = rows.query("dataset == 'average'").set_index(key)["value"]
    groups = rows.query("dataset != 'average'").groupby(key)["value"]
    assert set(groups.size().groupby("part").unique().explode()) == {10, 11}
    wrong = (groups.mean() - printed).abs() > 0.0101
    assert set(wrong.index[wrong]) == WRONG_AVERAGE


def test_the_average_hm_has_two_meanings_and_we_know_which_row_has_which(novel) -> None:
    printed = novel.xs("average", level="dataset")
    means = (
        novel.drop(index="average", level="dataset").groupby(["table", "method", "flips"]).mean()
    )
    of_averages = _hm(printed["base"], printed["novel"])
    for key, row in printed.iterrows():
        if key[1] in MEAN_OF_HMS:
            assert row["hm"] == pytest.approx(means.loc[key, "hm"], abs=0.0101)
            assert row["hm"] < of_averages[key] - 0.5
        else:
            assert row["hm"] == pytest.approx(of_averages[key], abs=0.0151)


def test_printed_gains_are_the_differences_of_the_printed_averages(accuracy) -> None:
    averages = accuracy.query("dataset == 'average' and setting == ''")
    values = averages.set_index(["table", "part", "flips", "method"])["value"].to_dict()
    for row in (
        published().query("metric == 'accuracy_gain' and table != 'teacher-budget'").itertuples()
    ):
        ours, theirs = (values[row.table, row.part, row.flips, name] for name in PAIR)
        assert row.value == pytest.approx(ours - theirs, abs=0.0101)


def test_tables_that_repeat_a_number_agree(accuracy) -> None:
    averages = accuracy.query("dataset == 'average' and flips == 0")
    once = averages[averages["table"].isin(["few-shot", "base-to-novel"])]
    again = averages[averages["setting"].isin(["B", "B + GAD + LGD", "label-guided"])]
    both = again.merge(once, on=["method", "part", "shots"])
    assert len(both) == len(again) == 24
    assert (both["value_x"] == both["value_y"]).all()


def elsewhere(table: str) -> pd.DataFrame:
    """The rows of other papers, read apart from the code that prints them."""
    return pd.read_csv(Path(compare.__file__).parent / "published" / "elsewhere" / f"{table}.csv")


def test_averages_of_other_papers_stand_beside_those_of_the_paper(accuracy) -> None:
    rows = elsewhere("few-shot").set_index(["method", "datasets"])
    printed = accuracy.query("table == 'few-shot'").set_index(["method", "shots"])["value"]
    for label, name in (("BiomedCoOp (CVPR 2025)", "biomedcoop"), ("OGKD (2026)", "ogkd")):
        for K in (1, 2, 4, 8, 16):
            assert rows.loc[(label, "11"), f"K={K}"] == printed[name, K]
    assert set(rows.index.get_level_values("datasets").str.extract(r"^(\d+)")[0]) == {
        *("9", "10", "11", "14")
    }


def test_base_and_novel_of_other_papers_give_their_hm(accuracy) -> None:
    rows = elsewhere("base-to-novel").set_index(["method", "datasets"])
    assert (_hm(rows["Base"], rows["Novel"]) - rows["HM of averages"]).abs().max() < 0.016
    cells = accuracy.query("table == 'base-to-novel' and part != 'hm'")
    nine = cells.query("dataset not in ('average', 'dermamnist')")
    for label, name in (("BiomedCoOp", "biomedcoop"), ("OGKD", "ogkd")):
        recomputed = nine[nine["method"] == name].groupby("part")["value"].mean()
        row = rows.loc[(label, "9: no DermaMNIST")]
        assert row["Base"] == pytest.approx(recomputed["base"], abs=0.0051)
        assert row["Novel"] == pytest.approx(recomputed["novel"], abs=0.0051)
