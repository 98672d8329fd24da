"""Predictive values at other frequencies: Bayes' rule, reweighted images, and coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError
from ogkd.evaluation import evaluate_predictions
from ogkd.evaluation.prevalence import PREVALENCES, screening_at
from world import predictions

counted = st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@settings(max_examples=50, deadline=None)
@given(st.floats(0.001, 0.999), counted, counted)
def test_predictive_values_are_bayes_rule(prevalence, ill, well):
    found = screening_at(prevalence, [ill, well], intervals=False)
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
    rows = [screening_at(q, [ill, well]) for q in PREVALENCES]
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
        low, high = screening_at(q, counts)["intervals"]["ppv"]
        inside += low <= ppv <= high
    assert inside >= 0.9 * 60


def judged(labels, p, normal=(0,)):
    return predictions(labels, np.log(p), task=OneOf(("normal", "cyst", "tumor"), normal))


def test_values_at_a_given_prevalence_are_those_of_images_in_this_proportion():
    """The oracle repeats normal images until findings are as frequent as is asked for."""
    rng = np.random.default_rng(3)
    labels = np.repeat([0, 1, 2], [20, 10, 10])
    p = 0.25 * np.eye(3)[labels] + 0.75 * rng.dirichlet([0.3] * 3, 40) + 1e-3
    p /= p.sum(axis=1, keepdims=True)
    found = evaluate_predictions(judged(labels, p), resamples=2, prevalence=0.1)
    rows = found["screening"]["at_prevalence"]
    assert [row["prevalence"] for row in rows] == [0.01, 0.05, 0.1, 0.2, 0.5]
    times = np.array([9, 1, 1])[labels]
    truth, flagged = np.repeat(labels, times) != 0, np.repeat(p.argmax(axis=1), times) != 0
    assert rows[2]["ppv"] == pytest.approx(truth[flagged].mean())
    assert rows[2]["npv"] == pytest.approx((~truth)[~flagged].mean())
    assert rows[2]["accuracy"] == pytest.approx((truth == flagged).mean())
    low, high = rows[2]["intervals"]["accuracy"]
    assert low < rows[2]["accuracy"] < high


def test_what_cannot_be_known_is_none():
    p = np.eye(3)[[1, 2, 1]] + 0.01
    found = evaluate_predictions(judged([1, 2, 2], p), resamples=2)
    assert [row["ppv"] for row in found["screening"]["at_prevalence"]] == [None] * 4


@pytest.mark.parametrize(
    ("prevalence", "normal"), [(0.0, (0,)), (1.0, (0,)), (float("nan"), (0,)), (0.1, ())]
)
def test_an_invalid_prevalence_is_refused(prevalence, normal):
    p = np.eye(3)[[0, 1, 2]] + 0.01
    with pytest.raises(ConfigError) as error:
        evaluate_predictions(judged([0, 1, 2], p, normal), prevalence=prevalence)
    assert error.value.argument == "prevalence"
