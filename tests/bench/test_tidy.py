"""One definition of averages and of their spread, for tables and figures alike."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogkd.bench.figures import FigureInput
from ogkd.bench.figures.curves import few_shot
from ogkd.bench.runs import Plan, RunsFolder, RunSpec
from ogkd.bench.tables import make_table
from ogkd.bench.tidy import (
    Condition,
    Summary,
    average_and_spread,
    changed_settings,
    collect,
    csv_of,
    spread,
)
from ogkd.errors import DataError
from tiny_runs import make_plan, specs, write_run

# The datasets vary in opposite directions: their own deviations are 5 and 15, that of the
# average is 5, so the two definitions of a spread cannot be confused.
SCORES: dict[tuple[str, int | None], list[float]]
SCORES = {("busi", 4): [0.50, 0.60], ("covid", 4): [0.90, 0.60], ("busi", 1): [0.4, 0.4]}
SCORES |= {("covid", 1): [0.3, 0.5]}


@pytest.fixture
def done(tmp_path: Path) -> tuple[RunsFolder, Plan]:
    folder, cells = RunsFolder(tmp_path), specs(["coop"], ("busi", "covid"), (1, 4))
    for _, spec in cells:
        value = SCORES[spec.dataset, spec.shots][spec.seed - 1]
        write_run(folder, spec, value, aurc=1 - value)
    return folder, make_plan(cells)


def test_the_spread_of_an_average_is_that_of_the_average_at_each_seed(
    done: tuple[RunsFolder, Plan],
) -> None:
    folder, plan = done
    summary = Summary(plan, folder.finished(plan))
    average = summary.average("coop", Condition(4, 0, None), "test", ["busi", "covid"])
    assert average is not None
    assert (average.value, average.std) == (pytest.approx(0.65), pytest.approx(0.05))
    single = summary.average("coop", Condition(4, 0, None), "test", ["covid"])
    assert single is not None
    assert single.std == pytest.approx(0.15)


def test_tables_and_figures_show_the_same_average_and_spread(done: tuple[RunsFolder, Plan]) -> None:
    folder, plan = done
    text, _, _ = make_table(folder, plan).partition("### busi")
    printed = re.search(r"\| coop \| (\S+) ± (\S+) \| (\S+) ± (\S+) \|", text)
    assert printed is not None
    ((_, figure),) = few_shot(FigureInput(plan, folder.finished(plan), None), average=True)
    (line,) = figure.axes[0].get_lines()
    (band,) = figure.axes[0].collections
    for place, mean, std in ((1, *printed.groups()[:2]), (4, *printed.groups()[2:])):
        (y,) = line.get_ydata()[line.get_xdata() == place]
        edges = band.get_paths()[0].vertices
        assert f"{y:.1f}" == mean
        assert f"{max(edges[edges[:, 0] == place, 1]) - y:.1f}" == std


def test_a_spread_needs_two_seeds() -> None:
    assert math.isnan(spread([1.0]))
    assert spread([1.0, 3.0]) == 1.0


seeds = st.dictionaries(st.integers(1, 4), st.floats(0.05, 1.0), min_size=1)


@given(st.lists(seeds, min_size=1, max_size=4))
def test_an_average_is_over_seeds_then_datasets(datasets: list[dict[int, float]]) -> None:
    value, std = average_and_spread("test", pd.DataFrame(datasets))
    means = [statistics.fmean(scores.values()) for scores in datasets]
    assert value == pytest.approx(statistics.fmean(means))
    common = set.intersection(*map(set, datasets))
    at_seed = [statistics.fmean(scores[seed] for scores in datasets) for seed in common]
    if len(common) < 2:
        assert math.isnan(std)
    else:
        assert std == pytest.approx(statistics.pstdev(at_seed), abs=1e-12)
        single = [statistics.pstdev(scores[seed] for seed in common) for scores in datasets]
        assert std <= statistics.fmean(single) + 1e-12  # what other papers print


@given(st.lists(st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)), min_size=1, max_size=4))
def test_both_harmonic_means_agree_for_one_dataset_only(pairs: list[tuple[float, float]]) -> None:
    index = pd.MultiIndex.from_product(
        [["base", "novel"], range(len(pairs))], names=["part", "dataset"]
    )
    scores = pd.DataFrame([pair[side] for side in (0, 1) for pair in pairs], index)
    of_averages, _ = average_and_spread("hm", scores)
    mean, _ = average_and_spread("mean-hm", scores)
    single = [statistics.harmonic_mean(pair) for pair in pairs]
    assert mean == pytest.approx(statistics.fmean(single))
    b, n = (statistics.fmean(pair[side] for pair in pairs) for side in (0, 1))
    assert of_averages == pytest.approx(statistics.harmonic_mean([b, n]))
    assert of_averages >= mean - 1e-9  # the harmonic mean is concave
    if len(pairs) == 1:
        assert of_averages == pytest.approx(mean)


def _asked(label: str, dataset: str = "busi", **settings: object) -> tuple[str, RunSpec]:
    return label, RunSpec(dataset=dataset, method="coop", shots=1, settings=settings)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([_asked("a"), _asked("b")], ""),
        ([_asked("a", epochs=2), _asked("b", epochs=2)], "epochs=2"),
        ([_asked("a", epochs=2), _asked("b", epochs=2), _asked("c")], "epochs=2 of a, b"),
        (
            [_asked("a", epochs=2, views=0), _asked("b", epochs=3, views=0)],
            "epochs=2 of a; views=0; epochs=3 of b",
        ),
        ([_asked("a", gamma=0.1), _asked("a", gamma=0.2)], ""),  # swept
        (
            [
                ("a", RunSpec(dataset=name, method="ogkd", preset=f"paper/few-shot/{name}"))
                for name in ("busi", "covid")
            ]
            + [("b", RunSpec(dataset="busi", method="ogkd", preset="auto"))],
            "preset=paper/few-shot/{dataset} of a; preset=auto of b",
        ),
    ],
)
def test_changed_settings_are_named_with_their_rows(
    cells: list[tuple[str, RunSpec]], expected: str
) -> None:
    assert changed_settings(make_plan(cells, "few-shot", sweep="gamma")) == expected


def test_each_label_run_and_part_is_a_record(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    fields = {"dataset": "busi", "method": "ogkd", "shots": 16, "settings": {"gamma": 0.3}}
    both = RunSpec(protocol="base-to-novel", **fields)
    other, unfinished = (RunSpec(dataset="=cmd()", method="coop", seed=seed) for seed in (2, 3))
    write_run(folder, both, {"base": 0.8, "novel": 0.6}, auroc=None, nll=-1.5)
    write_run(folder, other, 0.6)
    folder.write_plan(make_plan([("OGKD", both), ("-x", unfinished)], "few-shot", name="first"))
    folder.write_plan(make_plan([("-again", both), ("o", other)], "ablation", name="second"))
    frame = collect(folder)
    records = frame.to_dict("records")
    assert [(record["plan"], record["label"], record["part"]) for record in records] == [
        ("first", "OGKD", "base"),
        ("first", "OGKD", "novel"),
        ("second", "-again", "base"),
        ("second", "-again", "novel"),
        ("second", "o", "test"),
    ]
    record = records[1]
    assert record["run"] == both.hash
    assert (record["accuracy"], record["auroc"], record["nll"]) == (0.6, None, -1.5)
    assert (record["seconds_train"], record["together"]) == (2.0, 3)
    rows = list(csv.DictReader(csv_of(frame).splitlines()))
    assert (rows[1]["accuracy"], rows[1]["auroc"], rows[1]["nll"]) == ("0.6", "", "-1.5")
    assert json.loads(rows[1]["settings"]) == {"gamma": 0.3}
    assert (rows[2]["label"], rows[4]["dataset"]) == ("'-again", "'=cmd()")  # not formulas
    with pytest.raises(DataError):
        collect(RunsFolder(tmp_path / "empty"))
