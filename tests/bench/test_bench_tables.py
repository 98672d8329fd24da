"""Tables of a plan: the right numbers in the right cells, and nothing that misleads."""

import re
from pathlib import Path

import pytest

from ogkd.bench.runs import Plan, RunsFolder
from ogkd.bench.tables import make_table
from ogkd.errors import ConfigError
from tiny_runs import make_plan, specs, write_run

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


def _few_shot(folder: RunsFolder, missing: tuple[object, ...] = ()) -> Plan:
    cells = specs(("coop", "kgcoop", "ogkd"), ("busi", "covid"), shots=(1, 4))
    for method, spec in cells:
        assert spec.shots is not None
        if (spec.dataset, method, spec.shots, spec.seed) != missing:
            value = SCORES[spec.dataset, method, spec.shots][spec.seed - 1]
            counts = [spec.shots, 3 if spec.dataset == "covid" else spec.shots]
            write_run(folder, spec, value, aurc=1 - value, auroc=None, images_per_class=counts)
    return make_plan(cells)


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
    return folder, _few_shot(folder)


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    return RunsFolder(tmp_path)


def test_few_shot_means_over_seeds_then_datasets(done: tuple[RunsFolder, Plan]) -> None:
    text = make_table(*done)
    cells = _markdown(text)
    assert list(cells) == ["Average over 2 datasets", "busi", "covid"]
    assert cells["busi"]["coop"]["K=1"] == "45.0 ± 5.0"
    assert cells["covid"]["ogkd"] == {"K=1": "20.0 ± 0.0", "K=4": "**51.0 ± 1.0**"}
    # By seed (40 + 30) / 2 and (50 + 30) / 2.
    assert cells["Average over 2 datasets"]["coop"]["K=1"] == "**37.5 ± 2.5**"
    assert "fewer than K images, all of which were used: covid 3 (K=4)." in text


def test_best_is_bold_second_underlined_and_ties_share(done: tuple[RunsFolder, Plan]) -> None:
    average = _markdown(make_table(*done))["Average over 2 datasets"]
    assert average["kgcoop"]["K=1"] == "<ins>35.0 ± 2.0</ins>"
    assert average["ogkd"]["K=1"] == "<ins>35.0 ± 0.0</ins>"
    assert average["ogkd"]["K=4"].startswith("**60.5")
    assert average["coop"]["K=4"].startswith("<ins>51.5")
    assert average["kgcoop"]["K=4"] == "47.5 ± 0.0"


def test_an_average_with_missing_runs_is_in_brackets_and_not_ranked(folder: RunsFolder) -> None:
    cells = _markdown(make_table(folder, _few_shot(folder, missing=("covid", "ogkd", 4, 2))))
    assert cells["Average over 2 datasets"]["ogkd"]["K=4"] == "(60.0, 1/2)"
    assert cells["covid"]["ogkd"]["K=4"] == "(50.0)"  # one seed is left
    assert cells["Average over 2 datasets"]["coop"]["K=4"].startswith("**")


@pytest.mark.parametrize("metric", ["auroc", "kappa"])  # None in the result; not there at all
def test_a_measure_that_is_undefined_leaves_the_cell_empty(
    done: tuple[RunsFolder, Plan], metric: str
) -> None:
    cells = _markdown(make_table(*done, metric=metric))
    assert set(cells["busi"]["coop"].values()) == {""}
    with pytest.raises(ConfigError):
        make_table(*done, metric="acuracy")


BASE_AND_NOVEL = {
    ("busi", "coop"): (0.8, 0.2),
    ("busi", "ogkd"): (0.7, 0.3),
    ("covid", "coop"): (0.6, 0.6),
    ("covid", "ogkd"): (0.5, 0.9),
}


def _base_to_novel(folder: RunsFolder, table: str, flips: tuple[int, ...] = (0,)) -> Plan:
    cells = specs(
        ("coop", "ogkd"), ("busi", "covid"), shots=[16], flips=flips, protocol=["base-to-novel"]
    )
    for method, spec in cells:
        base, novel = BASE_AND_NOVEL[spec.dataset, method]
        shift = {1: -0.1, 2: 0.1}[spec.seed]
        write_run(folder, spec, {"base": base + shift, "novel": novel - spec.flips / 100})
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


def test_noise_in_base_to_novel_has_a_row_for_each_number_of_flips(folder: RunsFolder) -> None:
    cells = _markdown(make_table(folder, _base_to_novel(folder, "noise", (2, 8))))
    assert list(cells) == [f"{name}, K=16" for name in ("Average over 2 datasets", "busi", "covid")]
    covid = cells["covid, K=16"]
    assert list(covid) == ["coop, 2 flips", "ogkd, 2 flips", "coop, 8 flips", "ogkd, 8 flips"]
    assert covid["coop, 8 flips"]["Base"] == "**60.0**"
    assert covid["ogkd, 8 flips"]["Base"] == "50.0"  # of two the other one needs no mark
    assert covid["ogkd, 8 flips"]["Novel"] == "**82.0**"
    average = cells["Average over 2 datasets, K=16"]["ogkd, 8 flips"]
    assert average["HM of averages"] == f"**{_hm(0.6, 0.52):.1f}**"
    assert average["Mean of HMs"] == f"**{(_hm(0.7, 0.22) + _hm(0.5, 0.82)) / 2:.1f}**"


def test_a_sweep_has_its_values_in_order_and_a_block_per_shots(folder: RunsFolder) -> None:
    gammas = [{"gamma": value} for value in (1.0, 0, 0.3)]
    cells = specs(["ogkd"], ["busi"], (1, 16), [1], settings=gammas)
    cells += specs(["biomedcoop"], ["busi"], (1, 16), [1])
    for method, spec in cells:
        write_run(
            folder, spec, 0.4 if method == "biomedcoop" else 0.5 + spec.settings["gamma"] / 10
        )
    cells_by_block = _markdown(make_table(folder, make_plan(cells, "sweep", sweep="gamma")))
    assert list(cells_by_block) == ["busi, K=1", "busi, K=16"]
    assert cells_by_block["busi, K=1"] == {
        "ogkd": {"not swept": "", "gamma=0": "50.0", "gamma=0.3": "<ins>53.0</ins>"}
        | {"gamma=1.0": "**60.0**"},
        "biomedcoop": {"not swept": "40.0", "gamma=0": "", "gamma=0.3": "", "gamma=1.0": ""},
    }
