"""Reliability, proper scores and selective prediction, against scikit-learn and plain counting."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss

from ogkd.evaluation.confidence import (
    aurc,
    bin_numbers,
    bins,
    brier,
    ece,
    nll,
    risk_at_coverage,
    risk_coverage,
)


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


def test_ece_is_the_gap_by_plain_counting_in_bins_that_hold_every_image_once():
    labels, p = draw(seed=3)
    top, right = p.max(1), p.argmax(1) == labels
    gap, rows = 0.0, bins(labels, p)
    for number, row in enumerate(rows):
        inside = (top > number / 15) & (top <= (number + 1) / 15)
        assert row["images"] == inside.sum()
        if inside.any():
            assert row["accuracy"] == pytest.approx(right[inside].mean())
            gap += inside.mean() * abs(top[inside].mean() - right[inside].mean())
    assert ece(labels, p) == pytest.approx(gap)


def test_a_truth_of_probability_0_does_not_make_the_loss_infinite():
    assert nll([0, 1], [[0.0, 1.0], [0.0, 1.0]]) == pytest.approx(-np.log(1e-12) / 2)


def test_every_top_probability_has_its_bin_from_nothing_to_a_rounded_one():
    top = np.array([0.0, 1e-3, 1 / 15, 0.07, 0.6, 1.0, 1.0 + 1e-7])
    assert bin_numbers(top).tolist() == [0, 0, 0, 1, 8, 14, 14]


MEASURES = [
    aurc,
    lambda y, p: risk_at_coverage(y, p, 0.6),
    lambda y, p: risk_coverage(y, p)[1].tolist(),
]


def answers(top, right):
    """Labels and probabilities of two classes with these confidences."""
    top = np.asarray(top, dtype=float)
    return np.where(right, 0, 1), np.stack([top, 1 - top], 1)


cases = st.lists(st.tuples(st.sampled_from([0.55, 0.6, 0.7, 0.9]), st.booleans()), min_size=1)


def by_all_orders(labels, p, measure):
    """The mean over every order of the images that respects confidence."""
    confidence, wrong = p.max(1), p.argmax(1) != labels
    orders = [
        list(order)
        for order in itertools.permutations(range(len(labels)))
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order))
    ]
    return np.mean([measure(wrong[order]) for order in orders])


@settings(deadline=None, max_examples=40)
@given(cases, st.randoms(use_true_random=False))
def test_the_order_of_images_does_not_matter_at_all(rows, random):
    shuffled = random.sample(rows, len(rows))
    before, after = (answers(*zip(*some, strict=True)) for some in (rows, shuffled))
    for measure in MEASURES:
        assert measure(*before) == measure(*after)


def test_ties_count_by_expectation():
    rng = np.random.default_rng(0)
    for _ in range(10):
        labels, p = answers(rng.choice([0.6, 0.7, 0.9], 6), rng.random(6) < 0.5)

        def area(wrong):
            return np.mean([wrong[:k].mean() for k in range(1, 7)])

        assert aurc(labels, p) == pytest.approx(by_all_orders(labels, p, area))
        assert risk_at_coverage(labels, p, 0.5) == pytest.approx(
            by_all_orders(labels, p, lambda wrong: wrong[:3].mean())
        )
