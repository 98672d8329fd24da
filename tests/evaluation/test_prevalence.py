"""Predictive values at other frequencies: Bayes' rule, reweighted images, and coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogkd.errors import ConfigError
from ogkd.evaluation import LabelledPredictions, evaluate_predictions
from ogkd.evaluation.metrics import increasing_interval, mean_interval
from ogkd.evaluation.prevalence import PREVALENCES, accuracy_at, screening_at

counted = st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@settings(max_examples=50, deadline=None)
@given(st.floats(0.001, 0.999), counted, counted)
def test_predictive_values_are_bayes_rule(prevalence, ill, well):
    found = screening_at((prevalence, 1 - prevalence), (True, False), [ill, well], intervals=False)
    se, sp = ill[0] / ill[1], well[0] / well[1]
    flagged = prevalence * se + (1 - prevalence) * (1 - sp)
    if se:
        assert found["ppv"] == pytest.approx(prevalence * se / flagged)
    if sp:
        assert found["npv"] == pytest.approx(
            (1 - prevalence) * sp / ((1 - prevalence) * sp + prevalence * (1 - se))
        )
    assert found["accuracy"] == pytest.approx(prevalence * se + (1 - prevalence) * sp)
    assert found["intervals"] == {"ppv": None, "npv": None, "accuracy": None}


@settings(max_examples=10, deadline=None)
@given(counted, counted)
def test_the_value_lies_in_its_interval_and_ppv_rises_with_prevalence(ill, well):
    rows = [screening_at((q, 1 - q), (True, False), [ill, well]) for q in PREVALENCES]
    for row in rows:
        for key, ends in row["intervals"].items():
            if row[key] is not None:
                assert ends[0] - 1e-9 <= row[key] <= ends[1] + 1e-9
    ppv = [row["ppv"] for row in rows if row["ppv"] is not None]
    assert ppv == sorted(ppv)


def test_intervals_contain_the_truth_as_often_as_they_say():
    rng, truth, q = np.random.default_rng(0), (0.8, 0.9), 0.05
    ppv = q * truth[0] / (q * truth[0] + (1 - q) * (1 - truth[1]))
    inside = 0
    for _ in range(60):
        counts = [(int(rng.binomial(60, share)), 60) for share in truth]
        low, high = screening_at((q, 1 - q), (True, False), counts)["intervals"]["ppv"]
        inside += low <= ppv <= high
    assert inside >= 0.9 * 60


def test_the_mean_is_the_case_of_equal_frequencies():
    counts = [(3, 5), (9, 10), (1, 7)]
    found = accuracy_at(np.full(3, 1 / 3), counts)
    assert found["accuracy"] == pytest.approx(np.mean([3 / 5, 9 / 10, 1 / 7]))
    assert found["intervals"]["accuracy"] == pytest.approx(mean_interval(counts))
    assert increasing_interval(counts, lambda s: s[0]) != mean_interval(counts)


def predictions(labels, p, normal=(0,)):
    count = len(labels)
    return LabelledPredictions(
        labels=np.asarray(labels),
        logits=np.log(p).astype(np.float32),
        features=np.zeros((count, 2), np.float32),
        images=[],
        groups=[None] * count,
        keys=[str(number) for number in range(count)],
        class_names=("normal", "cyst", "tumor"),
        normal=normal,
    )


def test_an_evaluation_at_a_prior_is_that_of_images_in_these_proportions():
    """The oracle repeats images until the classes have the frequencies that are asked for."""
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], 20)
    p = 0.25 * np.eye(3)[labels] + 0.75 * rng.dirichlet([0.3] * 3, 60) + 1e-3
    p /= p.sum(axis=1, keepdims=True)
    prior = {"normal": 0.7, "cyst": 0.1, "tumor": 0.2}
    found = evaluate_predictions(predictions(labels, p), resamples=2, prior=prior)["at_prior"]
    times = np.array([7, 1, 2])[labels]
    truth = np.repeat(labels, times)
    weighted = p * np.array([0.7, 0.1, 0.2])
    for key, q in {"as_is": p, "with_prior": weighted}.items():
        said = np.repeat(q.argmax(axis=1), times)
        assert found[key]["whole"]["accuracy"] == pytest.approx((said == truth).mean())
        flagged = said != 0
        assert found[key]["screening"]["ppv"] == pytest.approx((truth != 0)[flagged].mean())
        assert found[key]["screening"]["npv"] == pytest.approx((truth == 0)[~flagged].mean())
        low, high = found[key]["whole"]["intervals"]["accuracy"]
        assert low < found[key]["whole"]["accuracy"] < high
    assert found["absent"] == []


def test_what_cannot_be_known_is_none():
    p = np.eye(3)[[1, 2, 1]] + 0.01
    found = evaluate_predictions(
        predictions([1, 2, 2], p),
        resamples=2,
        prior=dict.fromkeys(("normal", "cyst", "tumor"), 1 / 3),
    )
    assert found["at_prior"]["absent"] == ["normal"]
    assert found["at_prior"]["as_is"]["whole"]["accuracy"] is None
    assert [row["ppv"] for row in found["screening"]["at_prevalence"]] == [None] * 4
    with pytest.raises(ConfigError, match="sums to"):
        evaluate_predictions(predictions([1], p[:1]), prior={"normal": 1, "cyst": 1, "tumor": 1})
