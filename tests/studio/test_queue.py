from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ogkd.serve.studio.queue import (
    ASSIGNED,
    EXCLUDED,
    UNLABELLED,
    checked,
    next_images,
    uncertainty,
    with_checks,
)


def clusters(sizes, *, seed=0, spread=0.05, width=16):
    """Unit features around as many random directions, and the cluster of each row."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(len(sizes), width))
    kinds = np.repeat(np.arange(len(sizes)), sizes)
    rows = centres[kinds] + spread * rng.normal(size=(len(kinds), width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), kinds


def open_labels(count):
    return np.full(count, UNLABELLED, np.int64)


def test_the_first_images_are_one_of_each_kind():
    X, kinds = clusters([30, 20, 10, 5])
    chosen = next_images(X, open_labels(len(X)), classes=4, n=4)
    assert sorted(kinds[chosen]) == [0, 1, 2, 3]
    assert kinds[chosen[0]] == 0  # the largest first
    X, kinds = clusters([40, 40], spread=0.3)
    for row in next_images(X, open_labels(len(X)), classes=2, n=2):  # typical ones of their kind
        centre = X[kinds == kinds[row]].mean(axis=0)
        assert X[row] @ centre > np.median(X[kinds == kinds[row]] @ centre)


def test_what_is_covered_by_a_label_is_not_asked_for_again():
    X, kinds = clusters([30, 30, 30])
    labels = open_labels(len(X))
    labels[[0, 1, 2]] = 0
    labels[[30, 31, 32]] = 1
    assert kinds[next_images(X, labels, classes=2, n=1)[0]] == 2


def test_neighbours_of_one_uncertain_image_are_not_asked_for_together():
    X, kinds = clusters([10, 10, 30, 30, 30])
    labels = open_labels(len(X))
    labels[[0, 1, 10, 11]] = [0, 0, 1, 1]
    p = np.full((len(X), 2), 0.5, np.float32)
    p[kinds < 2] = [0.99, 0.01]
    p[kinds > 2] = [0.52, 0.48]
    chosen = next_images(X, labels, classes=2, probabilities=p, n=3)
    assert sorted(kinds[chosen]) == [2, 3, 4]
    alone = np.argsort(-uncertainty(p), kind="stable")[:3]
    assert set(kinds[alone]) == {2}  # what uncertainty alone would ask for


def test_each_patient_is_asked_for_before_one_comes_again():
    X, _ = clusters([30, 30])
    patients = [f"p{row % 6}" for row in range(60)]
    chosen = next_images(X, open_labels(60), classes=2, groups=patients, n=12)
    assert len({patients[row] for row in chosen[:6]}) == 6
    assert sorted(patients[row] for row in chosen[6:]) == sorted({*patients})
    labels = open_labels(60)
    labels[:5] = 0
    assert patients[next_images(X, labels, classes=2, groups=patients, n=1)[0]] == "p5"


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 25),
    st.integers(0, 30),
    st.lists(st.sampled_from([UNLABELLED, EXCLUDED, ASSIGNED, 0, 1]), min_size=25, max_size=25),
    st.booleans(),
)
def test_only_open_images_are_given_each_once(count, n, states, grouped):
    X, _ = clusters([count], spread=1.0)
    labels = np.array(states[:count], np.int64)
    groups = [f"p{row % 4}" for row in range(count)] if grouped else None
    p = np.full((count, 2), 0.5, np.float32)
    chosen = next_images(X, labels, classes=2, probabilities=p, groups=groups, n=n)
    assert len(chosen) == len(set(chosen)) == min(n, int((labels == UNLABELLED).sum()))
    assert all(labels[row] == UNLABELLED for row in chosen)


def test_what_somebody_else_is_labelling_is_covered_but_not_yet_answered():
    X, kinds = clusters([20, 20], spread=0.1)
    labels = open_labels(40)
    labels[np.flatnonzero(kinds == 0)[0]] = ASSIGNED
    assert kinds[next_images(X, labels, classes=2, n=1)[0]] == 1
    order = list(range(39, -1, -1))
    assert with_checks(list(range(8)), order, labels)[3] == 39  # as if nothing were taken


def test_every_fourth_image_comes_from_the_random_order_and_none_twice():
    order = list(range(19, -1, -1))
    labels = open_labels(20)
    mixed = with_checks(list(range(8)), order, labels)
    assert mixed == [0, 1, 2, 19, 3, 4, 5, 18]
    labels[mixed[:2]] = 0  # two were answered: the turn moves on with them
    assert with_checks([2, 3, 4, 5], order, labels) == [2, 19, 3, 4]
    labels[19] = EXCLUDED  # answered too, and never asked for again
    assert with_checks([18, 3, 4, 5], order, labels) == [18, 3, 4, 5]


def test_a_random_sample_is_what_comes_before_the_first_open_image_of_the_order():
    order = [3, 0, 4, 1, 2]
    labels = np.array([1, 0, 0, 0, EXCLUDED])
    assert checked(order, labels).tolist() == [True, True, True, True, False]
    labels[1] = UNLABELLED
    assert checked(order, labels).tolist() == [True, False, False, True, False]


def test_a_studio_s_sample_is_not_chosen_by_how_hard_an_image_is():
    """Of images whose difficulty the queue follows, the sample has the share of the whole."""
    rng = np.random.default_rng(0)
    hard = rng.random(400) < 0.3
    shares = []
    for seed in range(30):
        order = np.random.default_rng(seed).permutation(400).tolist()
        labels = open_labels(400)
        for _ in range(10):
            queue = [row for row in np.argsort(~hard, kind="stable") if labels[row] == UNLABELLED][
                :8
            ]
            labels[with_checks(queue, order, labels)] = 0
        shares.append(hard[checked(order, labels)].mean())
    assert abs(np.mean(shares) - hard.mean()) < 0.06
    assert hard[labels >= 0].mean() > 0.7  # while the labelled ones are mostly hard
