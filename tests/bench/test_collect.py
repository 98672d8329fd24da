"""One table of all results: every run once per row of a plan, nothing lost on the way."""

import csv
import json
from pathlib import Path

import pytest

from ogkd.bench.runs import RunsFolder, RunSpec
from ogkd.bench.tables import make_table
from ogkd.bench.tidy import collect
from ogkd.errors import DataError
from tiny_runs import make_plan, write_run


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    return RunsFolder(tmp_path)


def test_each_label_run_and_part_has_a_row_with_all_that_is_known(folder: RunsFolder) -> None:
    both = RunSpec(
        protocol="base-to-novel",
        dataset="busi",
        method="ogkd",
        shots=16,
        seed=3,
        settings={"gamma": 0.3},
    )
    write_run(folder, both, {"base": 0.8, "novel": 0.6}, auroc=None, nll=1.5)
    folder.write_plan(make_plan([("OGKD", both)], "base-to-novel", name="first"))
    folder.write_plan(make_plan([("ours, again", both)], "ablation", name="second"))
    rows = collect(folder)
    assert [(row["plan"], row["label"], row["part"]) for row in rows] == [
        ("first", "OGKD", "base"),
        ("first", "OGKD", "novel"),
        ("second", "ours, again", "base"),
        ("second", "ours, again", "novel"),
    ]
    row = rows[1]
    assert row["run"] == both.hash
    assert (row["accuracy"], row["auroc"], row["nll"]) == (0.6, None, 1.5)
    assert (row["dataset"], row["shots"], row["seed"]) == ("busi", 16, 3)
    assert (row["seconds_train"], row["together"], row["peak_mib"]) == (2.0, 3, 100.0)
    # The files say the same.
    assert json.loads((folder.root / "results.json").read_text()) == rows
    with (folder.root / "results.csv").open(newline="") as file:
        flat = list(csv.DictReader(file))
    assert len(flat) == 4
    assert (flat[1]["accuracy"], flat[1]["auroc"]) == ("0.6", "")
    assert json.loads(flat[1]["settings"]) == {"gamma": 0.3}
    assert set(flat[0]) == set(row)


def test_runs_of_no_plan_come_last_and_unfinished_ones_not_at_all(folder: RunsFolder) -> None:
    planned, stray, unfinished = (
        RunSpec(dataset="busi", method="coop", shots=1, seed=seed) for seed in (1, 2, 3)
    )
    write_run(folder, planned, 0.5)
    write_run(folder, stray, 0.6)
    folder.write_plan(make_plan([("coop", planned), ("coop", unfinished)], "few-shot"))
    rows = collect(folder)
    assert [(row["plan"], row["seed"]) for row in rows] == [("tiny", 1), ("", 2)]


def test_phases_that_only_some_runs_have_are_columns_for_all(folder: RunsFolder) -> None:
    for seed in (1, 2):
        write_run(folder, RunSpec(dataset="busi", method="coop", seed=seed), 0.5)
    for place in sorted((folder.root / "runs").iterdir())[:1]:
        result = json.loads((place / "result.json").read_text())
        result["seconds"]["text"] = 0.25
        del result["sha256"]  # as an older version wrote it
        (place / "result.json").write_text(json.dumps(result))
    collect(folder)
    with (folder.root / "results.csv").open(newline="") as file:
        assert sorted(row["seconds_text"] for row in csv.DictReader(file)) == ["", "0.25"]


def test_a_folder_without_runs_says_how_to_make_some(folder: RunsFolder) -> None:
    with pytest.raises(DataError, match="Run a grid into this folder first"):
        collect(folder)


def test_no_cell_is_a_formula_and_excel_gets_its_mark(folder: RunsFolder) -> None:
    spec = RunSpec(dataset="=cmd()", method="ogkd", shots=1)
    write_run(folder, spec, 0.5, nll=-1.5)
    plan = make_plan([("-ours", spec)], "few-shot")
    folder.write_plan(plan)
    collect(folder, excel=True)
    content = (folder.root / "results.csv").read_text(encoding="utf-8")
    assert content.startswith("\ufeff")
    (row,) = csv.DictReader(content.removeprefix("\ufeff").splitlines())
    assert (row["dataset"], row["label"], row["nll"]) == ("'=cmd()", "'-ours", "-1.5")
    assert "'-ours" in make_table(folder, plan, format="csv")
    collect(folder)
    assert not (folder.root / "results.csv").read_text(encoding="utf-8").startswith("\ufeff")
