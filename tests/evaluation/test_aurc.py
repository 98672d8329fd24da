from __future__ import annotations

import itertools

import numpy as np
import pytest

from ogkd.evaluation.metrics import aurc


def by_all_orders(labels, p):
    """The mean over every order of the images that respects confidence."""
    confidence, wrong = p.max(1), p.argmax(1) != labels
    values = []
    for order in itertools.permutations(range(len(labels))):
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order)):
            risks = [wrong[list(order[:k])].mean() for k in range(1, len(order) + 1)]
            values.append(np.mean(risks))
    return np.mean(values)


def test_ties_count_by_expectation():
    rng = np.random.default_rng(0)
    for _ in range(20):
        top = rng.choice([0.6, 0.7, 0.9], 6)
        p = np.stack([top, 1 - top], 1)
        labels = rng.integers(0, 2, 6)
        assert aurc(labels, p) == pytest.approx(by_all_orders(labels, p))


def test_the_order_of_images_does_not_matter():
    rng = np.random.default_rng(1)
    p = rng.dirichlet([1, 1, 1], 50).round(1)
    labels = rng.integers(0, 3, 50)
    order = rng.permutation(50)
    assert aurc(labels, p) == pytest.approx(aurc(labels[order], p[order]))


def test_all_equal_confidence_gives_the_error_rate():
    p = np.full((8, 2), 0.5)
    assert aurc(np.array([0, 0, 0, 1, 1, 1, 1, 1]), p) == pytest.approx(5 / 8)


def test_no_image_is_refused():
    with pytest.raises(ValueError, match="no image"):
        aurc([], np.zeros((0, 2)))
