from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from ogkd.evaluation.confidence import (
    augrc,
    aurc,
    coverage_at_risk,
    e_aurc,
    risk_at_coverage,
    risk_coverage,
)

MEASURES = [
    aurc,
    e_aurc,
    augrc,
    lambda y, p: risk_at_coverage(y, p, 0.6),
    lambda y, p: coverage_at_risk(y, p, 0.3),
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

        def generalised(wrong):
            heights = np.array([0, *(wrong[:k].sum() / 6 for k in range(1, 7))])
            return np.mean((heights[1:] + heights[:-1]) / 2)

        assert aurc(labels, p) == pytest.approx(by_all_orders(labels, p, area))
        assert augrc(labels, p) == pytest.approx(by_all_orders(labels, p, generalised))
        assert risk_at_coverage(labels, p, 0.5) == pytest.approx(
            by_all_orders(labels, p, lambda wrong: wrong[:3].mean())
        )


@settings(deadline=None, max_examples=40)
@given(cases)
def test_augrc_is_what_auroc_and_accuracy_say_it_is(rows):
    labels, p = answers(*zip(*rows, strict=True))
    right = p.argmax(1) == labels
    a = right.mean()
    area = roc_auc_score(right, p.max(1)) if 0 < a < 1 else 1.0
    assert augrc(labels, p) == pytest.approx((1 - area) * a * (1 - a) + (1 - a) ** 2 / 2)


@settings(deadline=None, max_examples=40)
@given(cases)
def test_e_aurc_is_zero_for_the_best_order_and_never_below(rows):
    labels, p = answers(*zip(*rows, strict=True))
    assert e_aurc(labels, p) >= -1e-12
    right = np.sort(p.argmax(1) == labels)[::-1]
    best = answers(np.linspace(0.99, 0.51, len(rows)), right)
    assert e_aurc(*best) == pytest.approx(0)
    assert e_aurc(labels, p) == pytest.approx(aurc(labels, p) - aurc(*best))


@settings(deadline=None, max_examples=40)
@given(cases, st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]))
@example([(0.55, False)] * 12 + [(0.55, True)] * 13 + [(0.6, False)], 0.5)  # exactly a half
def test_coverage_at_risk_is_what_the_best_threshold_keeps(rows, risk):
    labels, p = answers(*zip(*rows, strict=True))
    top, wrong = p.max(1), p.argmax(1) != labels
    kept = [top >= threshold for threshold in set(top)]
    expected = max([some.mean() for some in kept if wrong[some].mean() <= risk], default=0.0)
    assert coverage_at_risk(labels, p, risk) == pytest.approx(expected)


def test_the_curve_ends_with_all_images_and_the_error_rate():
    labels, p = answers([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    coverage, risk = risk_coverage(labels, p)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    np.testing.assert_allclose(risk, [0, 1 / 2, 1 / 3, 1 / 2])
    assert aurc(labels, p) == pytest.approx(np.mean([0, 1 / 2, 1 / 3, 1 / 2]))
    assert risk_at_coverage(labels, p, 0.7) == pytest.approx(1 / 3)  # three of four
    assert risk_at_coverage(labels, p, 0.001) == 0.0  # at least one


def test_all_equal_confidence_gives_the_error_rate():
    labels, p = answers([0.5] * 8, [False] * 5 + [True] * 3)
    assert aurc(labels, p) == pytest.approx((labels != p.argmax(1)).mean())


def test_no_image_is_refused():
    with pytest.raises(ValueError, match="no image"):
        aurc([], np.zeros((0, 2)))
