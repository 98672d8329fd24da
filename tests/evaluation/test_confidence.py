from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from ogkd.evaluation.confidence import bins, brier, ece, nll


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
