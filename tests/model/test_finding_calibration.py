"""Findings are calibrated as questions of two classes: against the formulas for one finding."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import binom

from ogkd.data.tasks import Findings
from ogkd.model.calibration import Calibration
from ogkd.model.scaling import (
    conformal_limit,
    fit_odds,
    held_out_for_sensitivity,
    split_units,
    tolerance_limit,
)

TASK = Findings(("mass", "nodule"))


def drawn(images=400, seed=3, noise=1.0):
    """Log-odds and labels of a frequent and a rare finding; some labels are unknown."""
    rng = np.random.default_rng(seed)
    y = (rng.random((images, 2)) < (0.4, 0.03)).astype(np.int64)
    z = 3 * y - 1.5 + rng.normal(0, noise, y.shape)
    y[rng.random(y.shape) < 0.2] = -1
    return z, y, [f"{n:04}" for n in range(images)]


class PlainFinding:
    """One finding: rescaled log-odds, and below and above which probabilities it is answered."""

    def __init__(self, z, y, first):
        fits = first & (y >= 0)
        sign = 2.0 * y[fits] - 1

        def cost(x):
            prior = (x[0] / 0.7) ** 2 / 2 + (x[1] / 2.0) ** 2 / 2
            return np.logaddexp(0.0, -sign * (math.exp(x[0]) * z[fits] + x[1])).sum() + prior

        bounds = [(-3.0, 3.0), (-20.0, 20.0)]
        x = minimize(cost, np.zeros(2), method="L-BFGS-B", bounds=bounds).x
        self.slope, self.offset = math.exp(x[0]), x[1]
        p = self.probabilities(z)
        self.present = np.sort(p[~first & (y == 1)])
        self.absent = np.sort(p[~first & (y == 0)])

    def probabilities(self, z):
        return expit(self.slope * z + self.offset).astype(np.float32)

    def no_below(self, coverage, sensitivity=None, confidence=0.9):
        n = len(self.present)
        if sensitivity is None:
            k = math.floor((1 - coverage) * (n + 1) + 1e-9)
        else:
            k = sum(binom.cdf(i, n, 1 - sensitivity) <= 1 - confidence + 1e-12 for i in range(n))
        return float(self.present[k - 1]) if k else 0.0

    def yes_above(self, coverage):
        k = math.floor((1 - coverage) * (len(self.absent) + 1) + 1e-9)
        return float(self.absent[-k]) if k else 1.0

    def answer(self, p, no_below, yes_above):
        no, yes = p < no_below, p > yes_above
        if no and yes:
            return "yes" if p >= 0.5 else "no"
        return "yes" if yes else "no" if no else "unsure"


@pytest.mark.parametrize(
    ("coverage", "sensitivity", "confidence"),
    [(0.9, None, None), (0.7, None, None), (0.9, 0.9, 0.9), (0.8, 0.6, 0.95), (0.99, 0.95, 0.9)],
)
@pytest.mark.parametrize("noise", [1.0, 8.0])
def test_probabilities_limits_and_answers_are_those_of_each_finding(
    coverage, sensitivity, confidence, noise
):
    z, y, keys = drawn(noise=noise)
    calibration = Calibration.fit(TASK, z, y, keys)
    limits = calibration.limits(coverage, sensitivity=sensitivity, confidence=confidence)
    new = 3 * drawn(300, seed=8)[0]
    p = TASK.probabilities(new, calibration)
    answers = TASK.answers(p, TASK.plausible(p, limits))
    first = split_units(keys)
    for f in range(2):
        plain = PlainFinding(z[:, f], y[:, f], first)
        question = calibration.questions[f]
        np.testing.assert_allclose([question.scale, question.shift[1]], [plain.slope, plain.offset])
        np.testing.assert_allclose(p[:, f], plain.probabilities(new[:, f]), atol=1e-6)
        no_below = plain.no_below(coverage, sensitivity, confidence or 0.9)
        yes_above = plain.yes_above(coverage)
        np.testing.assert_allclose(limits[f], [1 - yes_above, no_below], atol=1e-6)
        clear = np.abs(p[:, [f]] - [no_below, yes_above]).min(axis=1) > 1e-5
        words = [plain.answer(float(share), no_below, yes_above) for share in p[clear, f]]
        verdicts = [answers[row].verdicts[f] for row in np.flatnonzero(clear)]
        assert verdicts == words


def test_a_sensitivity_that_was_calibrated_for_is_the_default():
    z, y, keys = drawn()
    calibration = Calibration.fit(TASK, z, y, keys, sensitivity=0.8, confidence=0.7)
    asked = calibration.limits(sensitivity=0.8, confidence=0.7)
    np.testing.assert_array_equal(calibration.limits(), asked)
    assert calibration.limits()[1][1] == 0.0  # too few with the rare one: never "no"


@pytest.mark.parametrize("p", [0.3, 1e-30, 1.0])
def test_a_case_as_unlike_its_class_as_the_limit_is_still_plausible(p):
    """Ties count as plausible, also where the probability has been rounded to 0 or 1."""
    z = np.full((120, 2), np.clip(math.log(p) - math.log1p(-min(p, 1 - 1e-9)), -80, 80))
    y = np.tile(np.arange(120) % 2, (2, 1)).T
    calibration = Calibration.fit(TASK, z, y, [f"{n:04}" for n in range(120)])
    probabilities = TASK.probabilities(z[:1], calibration)
    assert TASK.plausible(probabilities, calibration.limits()).all()


def test_few_new_cases_lie_below_the_conformal_limit():
    rng = np.random.default_rng(0)
    below = [
        rng.random() < conformal_limit(np.sort(rng.random(19)).tolist(), 0.9) for _ in range(20_000)
    ]
    assert abs(np.mean(below) - 0.1) < 0.01  # k / (n + 1) = 2 / 20, exactly
    assert conformal_limit([0.3] * 8, 0.9) == 0.0  # 9 are needed
    assert conformal_limit([0.3] * 9, 0.9) == 0.3


def test_the_guaranteed_sensitivity_is_missed_no_more_often_than_stated():
    rng = np.random.default_rng(1)
    # Of uniform scores, the share below a limit is the limit itself.
    missed = [
        tolerance_limit(np.sort(rng.random(80)).tolist(), 0.9, 0.9) > 0.1 for _ in range(4_000)
    ]
    exact = [k for k in range(80) if binom.cdf(k, 80, 0.1) <= 0.1]
    rate = 1 - sum(math.comb(80, i) * 0.1**i * 0.9 ** (80 - i) for i in range(exact[-1] + 1, 81))
    assert rate <= 0.1
    assert abs(np.mean(missed) - rate) < 0.015


def test_the_fewest_cases_for_a_sensitivity_are_just_enough():
    needed = held_out_for_sensitivity(0.95, 0.9)
    assert needed == 45
    assert tolerance_limit([0.5] * needed, 0.95, 0.9) == 0.5
    assert tolerance_limit([0.5] * (needed - 1), 0.95, 0.9) == 0.0


def test_rescaling_equals_a_search_over_a_grid():
    rng = np.random.default_rng(2)
    z = rng.normal(0, 2, 300)
    y = (rng.random(300) < expit(0.5 * z - 1.5)).astype(np.int64)

    def cost(a, b):
        p = expit(a * z + b)
        prior = (math.log(a) / 0.7) ** 2 / 2 + (b / 2) ** 2 / 2
        return float(-np.log(np.where(y == 1, p, 1 - p)).sum() + prior)

    grid = [(a, b) for a in np.linspace(0.3, 0.8, 26) for b in np.linspace(-2.2, -0.8, 29)]
    assert cost(*fit_odds(z, y)) <= min(cost(*point) for point in grid) + 1e-6
    assert fit_odds(np.empty(0), np.empty(0, np.int64)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("p", "no_below", "yes_above", "verdict"),
    [
        (0.1, 0.2, 0.7, "no"),
        (0.5, 0.2, 0.7, "unsure"),
        (0.9, 0.2, 0.7, "yes"),
        (0.25, 0.25, 0.75, "unsure"),
        (0.75, 0.25, 0.75, "unsure"),
        (0.6, 0.8, 0.3, "yes"),
        (0.4, 0.8, 0.3, "no"),
        (0.5, None, None, "yes"),
        (0.49, None, None, "no"),
    ],
)  # fmt: skip
def test_answers_between_the_limits_are_unsure_and_where_they_overlap_by_half(
    p, no_below, yes_above, verdict
):
    task, shares = Findings(("mass",)), np.array([[p]], dtype=np.float32)
    plausible = None
    if no_below is not None:
        plausible = task.plausible(shares, [np.array([1 - yes_above, no_below])])
    (answer,) = task.answers(shares, plausible)
    assert answer.verdicts == (verdict,)
    assert answer.prediction == ("mass" if verdict == "yes" else "none")
    assert answer.unsure == (verdict == "unsure")
