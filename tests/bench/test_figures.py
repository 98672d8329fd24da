"""Figures of runs that were never run: what is averaged, which images, what is written."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fake_runs import specs, write
from PIL import Image

from ogkd.bench.figures import choose_pair, make_figures
from ogkd.bench.figures.curves import panel_of
from ogkd.bench.figures.per_dataset import mean_curve, paired
from ogkd.bench.runs import Plan, Predictions, RunsFolder, RunSpec
from ogkd.bench.tidy import Summary
from ogkd.errors import ConfigError, DataError


def texts(path: Path) -> str:
    """All text of an SVG, with line breaks between the pieces."""
    pieces = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text(encoding="utf-8"), re.DOTALL)
    return "\n".join(unescape(re.sub(r"<[^>]+>", "", piece)).strip() for piece in pieces)


def prose(path: Path) -> str:
    """The same in one line: long sentences are drawn in several."""
    return " ".join(texts(path).split())


def drawn(out: Path, names: list[str], made: tuple[RunsFolder, Plan], **more: object) -> list[Path]:
    """Make figures; every one is there twice, and not blank."""
    paths = make_figures(*made, out, names=names, **more)  # type: ignore[arg-type]
    assert {path.suffix for path in paths} == {".svg", ".png"}
    for path in paths:
        if path.suffix == ".png":
            assert len(np.unique(np.asarray(Image.open(path).convert("L")))) > 20
    return [path for path in paths if path.suffix == ".svg"]


# What is averaged


def test_a_dataset_that_lacks_a_point_is_left_out_of_all(tmp_path: Path) -> None:
    folder, plan = write(tmp_path, specs(shots=(1, 4), seeds=[1]), images=20)
    runs = folder.finished(plan)
    summary = Summary(plan, [(label, run) for label, run in runs if run is not runs[-1][1]])
    panel = panel_of(summary, "", "test", summary.conditions, "shots")
    missing = runs[-1][1].spec.dataset
    assert panel.left_out == (missing,)
    kept = [100 * run.metric("accuracy") for _, run in runs if run.spec.dataset != missing]
    assert sorted(panel.points["mean"]) == pytest.approx(sorted(kept))
    assert panel.points["std"].isna().all()


def test_the_mean_of_risk_curves_is_taken_at_equal_coverage() -> None:
    one = (np.array([0.5, 1.0]), np.array([0.0, 0.5]))
    other = (np.array([0.5, 1.0]), np.array([1.0, 0.5]))
    x, mean, std = mean_curve([one, other])
    assert (x.tolist(), mean.tolist(), std.tolist()) == ([0.5, 1.0], [0.5, 0.5], [0.5, 0.0])


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
    folder, plan = write(tmp_path, made, images=30)
    (pair,) = paired(folder.finished(plan), ("ogkd", "biomedcoop"))
    assert pair.title == "retina, 16 shots"
    assert pair.y.shape == (60,)
    assert pair.seeds == 2
    last = RunSpec(dataset="retina", method="biomedcoop", shots=16, seed=2)
    assert pair.both[1][30:] == pytest.approx(folder.read(last).predictions().probabilities)


def test_runs_on_different_images_are_refused(tmp_path: Path) -> None:
    def other(spec: RunSpec, predicted: Predictions) -> Predictions:
        return replace(
            predicted, labels=predicted.labels[:: 1 if spec.method == "ogkd" else -1].copy()
        )

    made = write(tmp_path, specs(datasets=["retina"], shots=[4]), images=20, change=other)
    with pytest.raises(DataError):
        make_figures(*made, tmp_path / "out", names=["wins"])


# What is written


def test_a_few_shot_plan_gives_every_figure_that_it_allows(tmp_path: Path) -> None:
    many = specs(("biomedcoop", "ogkd", "coop"), datasets=["retina"], shots=(1, 16))
    paths = make_figures(*write(tmp_path / "runs", many), tmp_path / "out")
    drawn_texts = {path.stem: prose(path) for path in paths if path.suffix == ".svg"}
    kinds = ("wins", "losses", "disease-mass", "disease-mass-other", "graph")
    assert set(drawn_texts) == {"few-shot", "few-shot-average", "risk-coverage"} | {
        f"{kind}-retina" for kind in kinds
    }
    assert {path.stem for path in paths if path.suffix == ".png"} == set(drawn_texts)
    assert "p of all 3 other classes, 1 − p(y)" in drawn_texts["wins-retina"]
    assert "p of all diseases but the true one" in drawn_texts["disease-mass-other-retina"]
    assert "diabetic retinopathy" in drawn_texts["graph-retina"]
    assert all("Prompts: templates" in text for text in drawn_texts.values())


def test_few_shot_curves_name_all_and_have_the_same_bytes_each_time(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    made = write(tmp_path / "runs", specs(("biomedcoop", "ogkd", "coop"), shots=(1, 16)))
    (path,) = drawn(tmp_path / "one", ["few-shot"], made)
    (again,) = drawn(tmp_path / "two", ["few-shot"], made)
    assert path.read_bytes() == again.read_bytes()
    assert path.with_suffix(".png").read_bytes() == again.with_suffix(".png").read_bytes()
    assert dict(matplotlib.rcParams) == before
    for text in ("biomedcoop", "ogkd", "coop", "retina", "busi", "Shots per class"):
        assert text in texts(path).splitlines()
    assert "Mean of 2 seeds; band: ± std over seeds" in prose(path)


def test_the_legends_of_risk_and_mass_have_the_numbers_of_the_definitions(tmp_path: Path) -> None:
    folder, plan = write(tmp_path / "runs", specs(datasets=["retina"], shots=[4], seeds=[1]))
    risk, mass = drawn(tmp_path, ["risk-coverage", "disease-mass"], (folder, plan))
    runs = dict(folder.finished(plan))
    p, y = runs["ogkd"].predictions().probabilities, runs["ogkd"].predictions().labels
    order = np.argsort(-p.max(axis=1))
    wrong = (p.argmax(axis=1) != y)[order]
    area = 100 * np.mean(np.cumsum(wrong) / np.arange(1, len(y) + 1))
    assert f"{area:.1f}\n" in texts(risk)
    total = 1 - p[y == 3, 3].astype(float)
    assert f"ogkd: Σ = {total.sum():.1f}, mean {total.mean():.2f}" in texts(mass)
    assert f"Normal images (n = {(y == 3).sum()})" in texts(mass)


def test_gamma_has_rows_that_are_not_swept_as_levels(tmp_path: Path) -> None:
    many = specs(("ogkd",), shots=[4], settings=[{"gamma": 0.0}, {"gamma": 0.5}, {}])
    made = write(tmp_path / "runs", many + specs(("biomedcoop",), shots=[4]), sweep="gamma")
    (path,) = drawn(tmp_path, ["gamma"], made)
    lines = texts(path).splitlines()
    assert {"ogkd", "ogkd (preset)", "biomedcoop", "4 shots"} <= set(lines)
    assert "Geometry strength γ" in lines


def test_noise_in_base_to_novel_has_base_novel_and_hm(tmp_path: Path) -> None:
    many = specs(shots=[16], flips=[0, 8], protocol=["base-to-novel"])
    made = write(tmp_path / "runs", many, sweep="flips", table="noise")
    (path,) = drawn(tmp_path, ["noise"], made)
    for title in ("Base, 16 shots", "Novel, 16 shots", "HM of averages, 16 shots"):
        assert title in texts(path)


@pytest.mark.filterwarnings("error")
def test_odd_names_of_classes_and_datasets_are_drawn_as_they_are(tmp_path: Path) -> None:
    odd = {"a/b $x$": ("$\\frac{", "<b> & co", "normal \x07 bell", "肺炎")}
    many = specs(datasets=odd, shots=[4], seeds=[1])
    paths = drawn(tmp_path, ["graph"], write(tmp_path / "runs", many, classes=odd))
    assert [path.name for path in paths] == ["graph-a-b-x.svg"]
    for name in ("$\\frac{", "<b> & co", "normal ? bell", "肺炎"):
        assert name in texts(paths[0])


# What cannot be drawn


def test_impossible_figures_are_named_and_the_rest_is_written(tmp_path: Path) -> None:
    made = write(tmp_path / "runs", specs(("ogkd",), datasets=["busi"], shots=[4], seeds=[1]))
    with pytest.raises(ConfigError) as caught:
        make_figures(*made, tmp_path / "out", names=["wins", "few-shot", "gamma", "graph"])
    named = re.findall(r"(?m)^- ([\w-]+): ", str(caught.value))
    assert named == ["wins", "few-shot", "gamma"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "graph-busi.svg", "graph-busi.png"}  # fmt: skip


def test_unknown_names_and_labels_raise(tmp_path: Path) -> None:
    folder, plan = write(tmp_path, specs(datasets=["busi"], shots=[4], seeds=[1]))
    for options, argument in (
        ({"names": ["gama"]}, "names"),
        ({"pair": ("ogkd", "biomedcop")}, "pair"),
        ({"pair": ("ogkd", "ogkd")}, "pair"),
    ):
        with pytest.raises(ConfigError) as caught:
            make_figures(folder, plan, tmp_path, **options)
        assert caught.value.argument == argument
    with pytest.raises(ConfigError):
        make_figures(RunsFolder(tmp_path / "empty"), plan, tmp_path)


def test_runs_that_a_figure_cannot_distinguish_raise(tmp_path: Path) -> None:
    many = specs(("ogkd",), ["busi"], [1, 4], [1], settings=[{}, {"gamma": 0.1}])
    made = write(tmp_path, many + specs(("biomedcoop",), ["busi"], [1, 4], [1]), images=20)
    for name in ("few-shot", "wins"):
        with pytest.raises(ConfigError):
            make_figures(*made, tmp_path / "out", names=[name])
