"""Plots show the numbers of evaluations, trainings and class graphs, and no others."""

from __future__ import annotations

import json

import matplotlib as mpl
import numpy as np
import pytest
import torch

import ogkd
from ogkd.data.tasks import Findings
from ogkd.errors import ConfigError
from ogkd.evaluation import evaluate_predictions
from ogkd.evaluation.confidence import risk_coverage
from world import fit, predictions

mpl.use("agg")


@pytest.fixture
def ax():
    from matplotlib.figure import Figure

    return Figure().add_subplot()


@pytest.fixture
def judged():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 150)
    return predictions(labels, 2 * np.eye(3)[labels] + rng.normal(size=(150, 3)))


def test_the_risk_coverage_curve_is_that_of_the_probabilities(judged, ax):
    result = evaluate_predictions(judged, resamples=0)
    assert ogkd.plots.risk_coverage(result, ax) is ax
    lines = {line.get_label(): line for line in ax.get_lines()}
    x, y = lines["this model"].get_data()
    coverage, risk = risk_coverage(judged.labels, judged.probabilities())
    np.testing.assert_allclose(x, coverage)
    np.testing.assert_allclose(y, risk)


def test_the_reliability_diagram_has_a_dot_for_each_bin_with_images(judged, ax):
    result = evaluate_predictions(judged, resamples=0)
    ogkd.plots.reliability(result, ax)
    dots = [collection.get_offsets()[0].tolist() for collection in ax.collections]
    rows = [row for row in result["reliability"] if row["images"]]
    np.testing.assert_allclose(dots, [[row["confidence"], row["accuracy"]] for row in rows])


def test_a_class_graph_is_drawn_with_its_names_and_weights(ax):
    W = ogkd.geometry.class_graph(torch.eye(3), alpha=1.0)
    ogkd.plots.class_graph(W, ["cyst", "stone", "tumor"], ax)
    np.testing.assert_allclose(ax.images[0].get_array(), W)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["cyst", "stone", "tumor"]
    assert [text.get_text() for text in ax.texts] == [f"{x:.2f}" for x in W.ravel().tolist()]


def test_the_history_of_a_training_is_its_log(bert_backbone, pictures, tmp_path, ax):
    model = fit(pictures, bert_backbone, method="coop", shots=2, out=tmp_path / "m")
    lines = (tmp_path / "m" / "training.jsonl").read_text().splitlines()
    assert model.history == list(map(json.loads, lines))
    loaded = ogkd.load(tmp_path / "m", backbone=bert_backbone)
    assert loaded.history == model.history
    loaded.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "training.jsonl").read_text().splitlines() == lines
    ogkd.plots.history(loaded, ax)
    x, y = ax.get_lines()[0].get_data()
    assert x.tolist() == [0, 1]
    name = ax.get_lines()[0].get_label()
    assert y.tolist() == [entry["terms"][name][0] for entry in model.history]
    in_memory = fit(pictures, bert_backbone, method="coop", shots=2)
    assert [entry["terms"] for entry in in_memory.history] == [e["terms"] for e in model.history]


def test_what_has_no_such_plot_is_refused(bert_backbone, pictures, ax):
    untrained = fit(pictures, bert_backbone, method="gda", shots=2)
    assert untrained.history is None
    with pytest.raises(ConfigError):
        ogkd.plots.history(untrained, ax)
    findings = predictions([[0, 1], [1, 0]], np.eye(2), task=Findings(("cyst", "stone")))
    with pytest.raises(ConfigError):
        ogkd.plots.reliability(evaluate_predictions(findings, resamples=0), ax)
