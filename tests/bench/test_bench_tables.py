"""Tables of a plan: the right numbers in the right cells, and nothing that misleads."""

import re
from pathlib import Path

import pytest

from ogkd.bench.runs import Plan, RunsFolder, RunSpec
from ogkd.bench.tables import make_table
from ogkd.errors import ConfigError
from tiny_runs import make_plan, write_run

Accuracy = dict[tuple[str, str, int], list[float]]  # by dataset, method and shots: of each seed

SCORES: Accuracy = {
    ("busi", "coop", 1): [0.40, 0.50],
    ("busi", "coop", 4): [0.60, 0.62],
    ("busi", "kgcoop", 1): [0.46, 0.50],
    ("busi", "kgcoop", 4): [0.55, 0.55],
    ("busi", "ogkd", 1): [0.50, 0.50],
    ("busi", "ogkd", 4): [0.70, 0.70],
    ("covid", "coop", 1): [0.30, 0.30],
    ("covid", "coop", 4): [0.40, 0.44],
    ("covid", "kgcoop", 1): [0.20, 0.24],
    ("covid", "kgcoop", 4): [0.40, 0.40],
    ("covid", "ogkd", 1): [0.20, 0.20],
    ("covid", "ogkd", 4): [0.50, 0.52],
}


def _few_shot(folder: RunsFolder, scores: Accuracy, missing: tuple[object, ...] = ()) -> Plan:
    cells = []
    for (dataset, method, shots), values in scores.items():
        for seed, value in enumerate(values, start=1):
            spec = RunSpec(dataset=dataset, method=method, shots=shots, seed=seed)
            cells.append((method, spec))
            if (dataset, method, shots, seed) != missing:
                write_run(folder, spec, value, aurc=1 - value, auroc=None)
    return make_plan(cells, "few-shot")


def _markdown(text: str) -> dict[str, dict[str, dict[str, str]]]:
    """Block, row and column of every cell."""
    cells_by_block: dict[str, dict[str, dict[str, str]]] = {}
    for block in text.split("### ")[1:]:
        title, *lines = block.splitlines()
        rows = [re.split(r" *\| *", line)[1:-1] for line in lines if line.startswith("|")]
        header, _, *body = rows
        cells_by_block[title] = {
            row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in body
        }
    return cells_by_block


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunsFolder, Plan]:
    """The runs of SCORES, all finished; tests only read them."""
    folder = RunsFolder(tmp_path_factory.mktemp("runs"))
    return folder, _few_shot(folder, SCORES)


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    return RunsFolder(tmp_path)


def test_few_shot_means_over_seeds_then_datasets(done: tuple[RunsFolder, Plan]) -> None:
    cells = _markdown(make_table(*done))
    assert list(cells) == ["Average over 2 datasets", "busi", "covid"]
    assert cells["busi"]["coop"]["K=1"] == "45.0 ± 5.0"
    assert cells["covid"]["ogkd"] == {"K=1": "20.0 ± 0.0", "K=4": "**51.0 ± 1.0**"}
    # By seed (40 + 30) / 2 and (50 + 30) / 2.
    assert cells["Average over 2 datasets"]["coop"]["K=1"] == "**37.5 ± 2.5**"


def test_best_is_bold_second_underlined_and_ties_share(done: tuple[RunsFolder, Plan]) -> None:
    cells = _markdown(make_table(*done))
    average = cells["Average over 2 datasets"]
    assert average["kgcoop"]["K=1"] == "<ins>35.0 ± 2.0</ins>"
    assert average["ogkd"]["K=1"] == "<ins>35.0 ± 0.0</ins>"
    assert average["ogkd"]["K=4"].startswith("**60.5")
    assert average["coop"]["K=4"].startswith("<ins>51.5")
    assert average["kgcoop"]["K=4"] == "47.5 ± 0.0"


def test_an_average_with_missing_runs_is_in_brackets_and_not_ranked(folder: RunsFolder) -> None:
    plan = _few_shot(folder, SCORES, missing=("covid", "ogkd", 4, 2))
    text = make_table(folder, plan)
    cells = _markdown(text)
    assert cells["Average over 2 datasets"]["ogkd"]["K=4"] == "(60.0, 1/2)"
    assert cells["covid"]["ogkd"]["K=4"] == "(50.0)"  # one seed is left
    assert cells["Average over 2 datasets"]["coop"]["K=4"].startswith("**")
    assert "not compared" in text


@pytest.mark.parametrize("metric", ["auroc", "kappa"])  # None in the result; not there at all
def test_a_measure_that_is_undefined_leaves_the_cell_empty(
    done: tuple[RunsFolder, Plan], metric: str
) -> None:
    cells = _markdown(make_table(*done, metric=metric))
    assert set(cells["busi"]["coop"].values()) == {""}


def _base_to_novel(folder: RunsFolder, table: str, flips: tuple[int, ...] = (0,)) -> Plan:
    scores = {
        ("busi", "coop"): (0.8, 0.2),
        ("busi", "ogkd"): (0.7, 0.3),
        ("covid", "coop"): (0.6, 0.6),
        ("covid", "ogkd"): (0.5, 0.9),
    }
    cells = []
    for (dataset, method), (base, novel) in scores.items():
        for noise in flips:
            for seed, shift in ((1, -0.1), (2, 0.1)):
                spec = RunSpec(
                    protocol="base-to-novel",
                    dataset=dataset,
                    method=method,
                    shots=16,
                    seed=seed,
                    flips=noise,
                )
                write_run(folder, spec, {"base": base + shift, "novel": novel - noise / 100})
                cells.append((method, spec))
    return make_plan(cells, table, sweep="flips" if len(flips) > 1 else None)


def _hm(base: float, novel: float) -> float:
    return 200 * base * novel / (base + novel)


def test_base_to_novel_has_both_harmonic_means_of_an_average(folder: RunsFolder) -> None:
    cells = _markdown(make_table(folder, _base_to_novel(folder, "base-to-novel")))
    # Of a dataset: of the means over seeds, not the mean of the seeds' own.
    assert cells["busi"]["coop"]["HM"] == f"{_hm(0.8, 0.2):.1f}"
    average = cells["Average over 2 datasets"]["coop"]
    assert list(average) == ["Base", "Novel", "HM of averages", "Mean of HMs"]
    assert average["HM of averages"] == f"{_hm(0.7, 0.4):.1f}"
    assert average["Mean of HMs"] == f"{(_hm(0.8, 0.2) + _hm(0.6, 0.6)) / 2:.1f}"


def test_noise_on_novel_classes_has_datasets_in_rows_and_a_block_per_flips(
    folder: RunsFolder,
) -> None:
    cells = _markdown(make_table(folder, _base_to_novel(folder, "noise", (2, 8))))
    assert list(cells) == ["2 flips", "8 flips"]
    assert list(cells["8 flips"]) == ["busi", "covid", "average", "Mean of HMs"]
    row = cells["8 flips"]["covid"]
    assert row["coop Base"] == "**60.0**"
    assert row["ogkd Base"] == "50.0"  # of two the other one needs no mark
    assert row["ogkd Novel"] == "**82.0**"
    assert cells["8 flips"]["average"]["ogkd HM"] == f"**{_hm(0.6, 0.52):.1f}**"
    mean = (_hm(0.7, 0.22) + _hm(0.5, 0.82)) / 2
    assert cells["8 flips"]["Mean of HMs"]["ogkd HM"] == f"**{mean:.1f}**"


def test_a_sweep_has_its_values_in_order_and_a_block_per_shots(folder: RunsFolder) -> None:
    cells = []
    for shots in (1, 16):
        for gamma in (1.0, 0, 0.3):
            spec = RunSpec(dataset="busi", method="ogkd", shots=shots, settings={"gamma": gamma})
            write_run(folder, spec, 0.5 + gamma / 10)
            cells.append(("ogkd", spec))
        spec = RunSpec(dataset="busi", method="biomedcoop", shots=shots)
        write_run(folder, spec, 0.4)
        cells.append(("biomedcoop", spec))
    cells_by_block = _markdown(make_table(folder, make_plan(cells, "sweep", sweep="gamma")))
    assert list(cells_by_block) == ["busi, K=1", "busi, K=16"]
    assert cells_by_block["busi, K=1"] == {
        "ogkd": {"not swept": "", "gamma=0": "50.0", "gamma=0.3": "<ins>53.0</ins>"}
        | {"gamma=1.0": "**60.0**"},
        "biomedcoop": {"not swept": "40.0", "gamma=0": "", "gamma=0.3": "", "gamma=1.0": ""},
    }


def test_latex_is_balanced_escaped_and_has_two_decimals(folder: RunsFolder) -> None:
    scores = {(f"a_{key[0]}&", *key[1:]): value for key, value in SCORES.items()}
    text = make_table(folder, _few_shot(folder, scores), format="latex")
    assert re.findall(r"\\begin\{(\w+)\}", text).count("tabular") == 3
    for name in ("table", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}")
    assert text.count("{") == text.count("}")
    assert "a\\_busi\\&" in text
    assert "\\textbf{37.50 $\\pm$ 2.50}" in text
    for line in text.splitlines():
        if line.endswith("\\\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == 2


def test_unknown_metrics_and_formats_raise(
    done: tuple[RunsFolder, Plan],
) -> None:
    with pytest.raises(ConfigError):
        make_table(*done, metric="acuracy")
    with pytest.raises(ConfigError):
        make_table(*done, format="html")  # type: ignore[arg-type]


def test_a_table_says_where_there_were_fewer_images_than_k(folder: RunsFolder) -> None:
    cells = []
    for dataset, counts in (("busi", [16, 16]), ("covid", [16, 4])):
        spec = RunSpec(dataset=dataset, method="gda", shots=16, seed=1)
        write_run(folder, spec, 0.5, images_per_class=counts)
        cells.append(("gda", spec))
    text = make_table(folder, make_plan(cells, "few-shot"))
    assert "fewer than K images, all of which were used: covid 4 (K=16)." in text
    assert "busi 1" not in text
