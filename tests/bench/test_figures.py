"""Figures of simulated runs: which images and numbers they show, and what is written."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ogkd.bench.figures import FigureInput, choose_pair, make_figures, style
from ogkd.bench.figures.curves import few_shot
from ogkd.bench.figures.per_dataset import (
    density,
    disease_mass,
    margins,
    mean_curve,
    neighbour_mass,
    paired,
)
from ogkd.bench.runs import FinishedRun, Plan, RunsFolder, RunSpec
from ogkd.data.catalog import benchmarks
from ogkd.errors import ConfigError, DataError
from tiny_runs import make_plan, simulate, specs, write_run

Made = tuple[RunsFolder, Plan]
P = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6], [0.3, 0.4, 0.3]])
Y = np.array([0, 0, 2, 2])


# The numbers behind the figures


def test_the_margin_is_the_difference_of_logits_and_finite_for_a_probability_of_zero() -> None:
    z = np.array([[3.0, 1.0, -2.0], [0.0, 4.0, 5.5]])
    p = np.exp(z + np.array([[7.0], [-2.0]]))
    p /= p.sum(axis=1, keepdims=True)
    assert margins(p, np.array([0, 1])) == pytest.approx([2.0, -1.5])
    zero = np.array([[1.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    assert margins(zero, np.array([0, 1])) == pytest.approx([87.336, -87.336], abs=1e-3)


def test_neighbour_mass_by_hand() -> None:
    # The nearest to 0 is 2, to 1 it is 0, to 2 the first of two equal ones.
    W = np.array([[0.1, 0.2, 0.7], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]])
    assert neighbour_mass(P, Y, W, k=1) == pytest.approx([0.1, 0.3, 0.1, 0.3])
    assert neighbour_mass(P, np.array([1, 1, 1, 1]), W, k=1) == pytest.approx(P[:, 0])


@given(st.integers(2, 5), st.integers(0, 2**31))
def test_with_all_other_classes_as_neighbours_the_mass_is_what_the_truth_lacks(
    classes: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    p, y = rng.dirichlet(np.full(classes, 0.2), 8), rng.integers(0, classes, 8)
    mass = neighbour_mass(p, y, rng.random((classes, classes)), k=classes)
    assert mass == pytest.approx(1 - p[np.arange(8), y], abs=1e-9)


def test_disease_mass_by_hand_with_and_without_the_true_class() -> None:
    assert disease_mass(P, [2]) == pytest.approx([0.9, 0.7, 0.4, 0.7])
    assert disease_mass(P, [0, 2]) == pytest.approx([0.2, 0.5, 0.3, 0.4])
    assert disease_mass(P, [2], without=Y) == pytest.approx([0.2, 0.5, 0.4, 0.7])
    assert P[0, 0] == 0.7  # the input is left as it was


def test_density_of_probabilities_has_its_whole_mass_between_zero_and_one() -> None:
    grid = np.linspace(0, 1, 2001)
    values = np.random.default_rng(4).beta(0.4, 2.0, size=200)
    heights, cut = density(values, grid, (0.0, 1.0)), density(values, grid)
    assert heights is not None
    assert cut is not None
    assert np.trapezoid(heights, grid) == pytest.approx(1.0, abs=2e-3)
    assert np.trapezoid(cut, grid) < 0.97
    for few in (values[:9], np.full(20, 0.3)):  # or equal
        assert density(few, grid) is None


def test_the_mean_of_risk_curves_is_taken_at_equal_coverage() -> None:
    one = (np.array([0.5, 1.0]), np.array([0.0, 0.5]))
    other = (np.array([0.5, 1.0]), np.array([1.0, 0.5]))
    x, mean, std = mean_curve([one, other])
    assert (x.tolist(), mean.tolist(), std.tolist()) == ([0.5, 1.0], [0.5, 0.5], [0.5, 0.0])


def test_a_point_with_unfinished_runs_is_left_out(tmp_path: Path) -> None:
    labelled = specs(datasets=["busi"], shots=(1, 4))
    folder, plan = simulate(RunsFolder(tmp_path), labelled, images=20)
    *runs, (label, last) = folder.finished(plan)
    ((_, figure),) = few_shot(FigureInput(plan, runs, None), average=False)
    lines = {line.get_color(): line.get_xydata() for line in figure.axes[0].get_lines()}
    assert sorted(map(len, lines.values())) == [1, 2]
    (short,) = (points for points in lines.values() if len(points) == 1)
    both = [run.metric("accuracy") for name, run in runs if (name, run.spec.shots) == (label, 1)]
    assert (last.spec.shots, short.tolist()) == (4, [[1, pytest.approx(100 * np.mean(both))]])
    assert "1 point" in figure.get_suptitle()


# Which runs and images are compared


def test_the_pair_is_the_whole_ogkd_and_biomedcoop_else_the_first_two() -> None:
    rows = {"B": "biomedcoop", "B + GAD": "ogkd", "B + GAD + LGD": "ogkd", "c": "coop"}
    assert choose_pair(rows) == ("B + GAD + LGD", "B")
    tuned = {"biomedcoop": "biomedcoop", "ogkd": "ogkd", "ogkd (auto)": "ogkd"}
    assert choose_pair(tuned) == ("ogkd", "biomedcoop")
    assert choose_pair({"x": "coop", "y": "gda"}) == ("x", "y")
    assert choose_pair({"x": "coop"}) is None


def test_runs_pair_at_the_most_shots_that_both_have_and_seeds_are_pooled(tmp_path: Path) -> None:
    made = specs(datasets=["retina"]) + specs(("ogkd",), ["retina"], shots=(32,))
    folder, plan = simulate(RunsFolder(tmp_path), made, images=30)
    (pair,) = paired(folder.finished(plan), ("ogkd", "biomedcoop"))
    assert pair.title == "retina, 16 shots"
    assert pair.y.shape == (60,)
    assert pair.seeds == 2
    last = RunSpec(dataset="retina", method="biomedcoop", shots=16, seed=2)
    assert pair.both[1][30:] == pytest.approx(folder.read(last).predictions().probabilities)


def test_runs_on_different_images_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = simulate(RunsFolder(tmp_path), specs(datasets=["retina"], shots=[4]), images=20)
    predictions = FinishedRun.predictions

    def reversed_for_ogkd(self: FinishedRun, part: str = "test") -> Any:
        given = predictions(self, part)
        return replace(given, labels=given.labels[:: -1 if self.spec.method == "ogkd" else 1])

    monkeypatch.setattr(FinishedRun, "predictions", reversed_for_ogkd)
    with pytest.raises(DataError):
        make_figures(*made, tmp_path / "out", names=["wins"])


# What is written


def prose(path: Path) -> str:
    """All text of an SVG in one line: long sentences are drawn in several."""
    pieces = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text(encoding="utf-8"), re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", "", piece)).strip() for piece in pieces)


def drawn(made: Made, out: Path, *names: str) -> dict[str, str]:
    """The text of figures by their name; each is there twice, and not blank."""
    paths = make_figures(*made, out, names=names or None)
    assert {path.stem for path in paths if path.suffix == ".png"} == {path.stem for path in paths}
    for path in paths:
        if path.suffix == ".png":
            assert len(np.unique(np.asarray(Image.open(path).convert("L")))) > 20
    return {path.stem: prose(path) for path in paths if path.suffix == ".svg"}


def test_a_few_shot_plan_gives_every_figure_that_it_allows(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    many = specs(("biomedcoop", "ogkd", "coop"), datasets=["retina"], shots=(1, 16))
    made = simulate(RunsFolder(tmp_path / "runs"), many)
    texts = drawn(made, tmp_path / "out")
    names = "few-shot", "few-shot-average", "risk-coverage"
    assert set(texts) == {*names, "wins-retina", "disease-mass-retina", "graph-retina"}
    for word in ("biomedcoop", "ogkd", "coop", "Shots per class"):
        assert word in texts["few-shot"]
    assert "Mean of 2 seeds; band: ± std over seeds" in texts["few-shot"]
    assert "p of the 3 nearest of 3 other classes in W" in texts["wins-retina"]
    assert "p of all diseases but the true one" in texts["disease-mass-retina"]
    assert "diabetic retinopathy" in texts["graph-retina"]
    assert all("Prompts: templates" in text for text in texts.values())
    drawn(made, tmp_path / "again")
    for path in (tmp_path / "out").iterdir():  # the same bytes each time
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_what_is_published_over_the_same_datasets_is_drawn_hollow(tmp_path: Path) -> None:
    names = [name for name in benchmarks() if name != "kneexray"]
    for datasets in ([*names, "kneexray"], names[:2]):
        folder = RunsFolder(tmp_path / str(len(datasets)))
        many = specs(("ogkd",), datasets=datasets, shots=(1, 16), seeds=(1,))
        for _, spec in many:
            write_run(folder, spec, 0.6)
        plan = make_plan(many)
        make_figures(folder, plan, folder.root / "out", names=["few-shot-average"])
        text = prose(folder.root / "out" / "few-shot-average.svg")
        assert ("Hollow: published elsewhere" in text) == (len(datasets) == 11)
        assert ("BiomedAP" in text) == (len(datasets) == 11)
        assert "Evi-Steer" not in text  # which is over nine of them


def test_the_legends_of_risk_wins_and_mass_have_the_numbers_of_the_definitions(
    tmp_path: Path,
) -> None:
    labelled = specs(datasets=["retina"], shots=[4], seeds=[1])
    folder, plan = simulate(RunsFolder(tmp_path / "runs"), labelled)
    texts = drawn((folder, plan), tmp_path, "risk-coverage", "wins", "disease-mass")
    runs = dict(folder.finished(plan))
    y = runs["ogkd"].predictions().labels
    p, q = (runs[name].predictions().probabilities for name in ("ogkd", "biomedcoop"))
    right, other = (both.argmax(axis=1) == y for both in (p, q))
    wrong = ~right[np.argsort(-p.max(axis=1))]
    area = 100 * np.mean(np.cumsum(wrong) / np.arange(1, len(y) + 1))
    assert f" {area:.1f} " in texts["risk-coverage"]
    for better, count in (("ogkd right", right & ~other), ("biomedcoop right", other & ~right)):
        words = rf"{better}, \w+ wrong \(n = {count.sum()}\)"
        assert len(re.findall(words, texts["wins-retina"])) == 2  # margin and mass
    total = 1 - p[y == 3, 3].astype(float)
    assert f"ogkd: Σ = {total.sum():.1f}, mean {total.mean():.2f}" in texts["disease-mass-retina"]
    assert f"Normal images (n = {(y == 3).sum()})" in texts["disease-mass-retina"]
    missed = (~right & ~other & (y != 3)).sum()
    assert f"Both wrong on a disease (n = {missed})" in texts["disease-mass-retina"]


def test_a_sweep_has_rows_that_are_not_swept_as_levels(tmp_path: Path) -> None:
    many = specs(("ogkd",), shots=[4], settings=[{"gamma": 0.0}, {"gamma": 0.5}, {}])
    many += specs(("biomedcoop",), shots=[4])
    made = simulate(RunsFolder(tmp_path / "runs"), many, sweep="gamma")
    text = drawn(made, tmp_path, "sweep")["sweep-gamma"]
    for words in ("ogkd (preset)", "biomedcoop", "4 shots", "Geometry strength γ"):
        assert words in text


def test_noise_in_base_to_novel_has_base_novel_and_hm(tmp_path: Path) -> None:
    many = specs(shots=[16], flips=[0, 8], protocol=["base-to-novel"])
    made = simulate(RunsFolder(tmp_path / "runs"), many, sweep="flips", table="noise")
    text = drawn(made, tmp_path, "sweep")["sweep-flips"]
    for title in ("Base, 16 shots", "Novel, 16 shots", "HM of averages, 16 shots"):
        assert title in text


@pytest.mark.filterwarnings("error")
def test_unusual_names_of_classes_and_datasets_are_drawn_as_they_are(tmp_path: Path) -> None:
    unusual = {"a/b $x$": ("$\\frac{", "<b> & co", "normal \x07 bell", "肺炎")}
    many = specs(datasets=unusual, shots=[4], seeds=[1])
    texts = drawn(simulate(RunsFolder(tmp_path / "runs"), many, unusual), tmp_path, "graph")
    assert set(texts) == {"graph-a-b-x"}
    for name in ("$\\frac{", "<b> & co", "normal ? bell", "肺炎"):
        assert name in texts["graph-a-b-x"]


# What cannot be drawn


def test_impossible_figures_are_named_and_the_rest_is_written(tmp_path: Path) -> None:
    labelled = specs(("ogkd",), datasets=["busi"], shots=[4], seeds=[1])
    made = simulate(RunsFolder(tmp_path / "runs"), labelled)
    with pytest.raises(ConfigError) as caught:
        make_figures(*made, tmp_path / "out", names=["wins", "few-shot", "sweep", "graph"])
    named = re.findall(r"(?m)^- ([\w-]+): ", str(caught.value))
    assert named == ["wins", "few-shot", "sweep"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "graph-busi.svg", "graph-busi.png"}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"names": ["gama"]}, "names"),
        ({"pair": ("ogkd", "biomedcop")}, "pair"),
        ({"pair": ("ogkd", "ogkd")}, "pair"),
    ],
)
def test_unknown_names_and_labels_raise(tmp_path: Path, options: Any, argument: str) -> None:
    made = simulate(RunsFolder(tmp_path), specs(datasets=["busi"], shots=[4], seeds=[1]))
    with pytest.raises(ConfigError) as caught:
        make_figures(*made, tmp_path, **options)
    assert caught.value.argument == argument


@pytest.mark.parametrize("name", ["few-shot", "wins"])
def test_runs_that_a_figure_cannot_distinguish_raise(tmp_path: Path, name: str) -> None:
    many = specs(("ogkd",), ["busi"], [1, 4], [1], settings=[{}, {"gamma": 0.1}])
    many += specs(("biomedcoop",), ["busi"], [1, 4], [1])
    made = simulate(RunsFolder(tmp_path), many, images=20)
    with pytest.raises(ConfigError):
        make_figures(*made, tmp_path / "out", names=[name])


def test_the_footer_is_below_the_legend_and_the_legend_below_the_axes():
    figure, axes = style.grid(2, "x", "y", height=2.0)
    names = ("ogkd", "coop", "kgcoop", "biomedcoop", "zero-shot", "tip-adapter-f")
    handles = {name: axes[0].plot([0, 1], [0, 1])[0] for name in names}
    style.legend_below(figure, handles)
    style.footer(figure, "words " * 30)
    figure.get_layout_engine().execute(figure)
    boxes = [ax.get_tightbbox() for ax in axes]
    boxes += [figure.legends[0].get_window_extent(), figure.texts[-1].get_window_extent()]
    assert min(box.y0 for box in boxes[:-2]) > boxes[-2].y1
    assert boxes[-2].y0 > boxes[-1].y1
