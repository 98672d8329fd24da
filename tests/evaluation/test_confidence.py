from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from ogkd.evaluation.confidence import bin_numbers, bins, brier, ece, nll, risk_at_coverage


def draw(count=500, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, classes, count), rng.dirichlet([0.5] * classes, count)


def test_nll_and_brier_are_those_of_scikit_learn():
    labels, p = draw()
    assert nll(labels, p) == pytest.approx(log_loss(labels, p, labels=range(4)))
    two, q = draw(classes=2)
    assert brier(two, q) == pytest.approx(2 * brier_score_loss(two, q[:, 1]))
    onehot = np.eye(4)[labels]
    assert brier(labels, p) == pytest.approx(((p - onehot) ** 2).sum(1).mean())


def test_ece_is_the_gap_by_plain_counting():
    labels, p = draw(seed=3)
    top, right = p.max(1), p.argmax(1) == labels
    gap = 0.0
    for number in range(15):
        inside = (top > number / 15) & (top <= (number + 1) / 15)
        if inside.any():
            gap += inside.mean() * abs(top[inside].mean() - right[inside].mean())
    assert ece(labels, p) == pytest.approx(gap)


def test_bins_hold_every_image_once_and_are_closed_above():
    top = np.array([1 / 3, 0.6, 0.6 + 1e-6, 1.0])
    found = bins([0] * 4, np.stack([top, 1 - top], 1))
    assert sum(row.images for row in found) == 4
    assert [row.high for row in found if row.images] == pytest.approx([0.6, 10 / 15, 1.0])
    assert found[0].images == 0
    assert found[0].accuracy is None


def test_honest_probabilities_have_almost_no_calibration_error():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 100_000)
    labels = (p.cumsum(1) > rng.random((len(p), 1))).argmax(1)
    assert ece(labels, p) < 0.01
    assert ece((labels + 1) % 3, p) > 0.2


def test_a_truth_of_probability_0_does_not_make_the_loss_infinite():
    assert nll([0, 1], [[0.0, 1.0], [0.0, 1.0]]) == pytest.approx(-np.log(1e-12) / 2)


def test_every_top_probability_has_its_bin_from_nothing_to_a_rounded_one():
    top = np.array([0.0, 1e-3, 1 / 15, 0.07, 0.6, 1.0, 1.0 + 1e-7])
    assert bin_numbers(top).tolist() == [0, 0, 0, 1, 8, 14, 14]


def test_bins_follow_each_other_from_0_to_1():
    found = bins([0], [[0.7, 0.3]], 4)
    assert [(row.low, row.high) for row in found] == [
        (0, 0.25),
        (0.25, 0.5),
        (0.5, 0.75),
        (0.75, 1),
    ]


def test_the_calibration_error_of_confident_mistakes_is_their_confidence():
    assert ece([1, 1], [[0.9, 0.1], [0.8, 0.2]]) == pytest.approx(0.85)


def test_no_coverage_at_all_still_means_the_most_confident_image():
    p = [[0.9, 0.1], [0.6, 0.4]]
    assert risk_at_coverage([0, 1], p, 0.0) == 0
    assert risk_at_coverage([1, 0], p, 0.0) == 1
