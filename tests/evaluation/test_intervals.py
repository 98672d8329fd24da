from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, t

from ogkd.evaluation.metrics import (
    class_metrics,
    effective_counts,
    exact_interval,
    interval,
    resample_weights,
    resampling_units,
    summary_metrics,
)
from world import predictions


def columns(labels, p, groups=None, **how):
    options = {"resamples": 400} | how
    return class_metrics(predictions(labels, p, groups=groups), p.astype(np.float32), **options)


def table(unit, resamples):
    return np.concatenate(list(resample_weights(unit, resamples=resamples)))


def test_a_resample_has_as_many_images():
    found = table(resampling_units(40), 1000)
    assert found.shape == (1000, 40)
    assert (found.sum(axis=1) == 40).all()
    assert found.mean() == pytest.approx(1)
    assert found.var() == pytest.approx(1 - 1 / 40, abs=0.05)  # binomial(40, 1/40)


def test_images_of_a_group_are_drawn_together():
    groups = ["p", "q", None, "p", None, "q", "p"]
    unit = resampling_units(7, groups)
    assert unit.tolist() == [0, 1, 2, 0, 3, 1, 0]
    found = table(unit, 50)
    assert (found[:, 0] == found[:, 3]).all()
    assert (found[:, 1] == found[:, 5]).all()
    assert not (found[:, 2] == found[:, 4]).all()


def test_patients_with_many_alike_images_make_the_interval_wider():
    rng = np.random.default_rng(0)
    right = np.repeat(rng.random(40) < 0.7, 10)
    p = np.where(right[:, None], [0.9, 0.1], [0.1, 0.9])
    labels = np.zeros(400, int)
    widths = []
    for groups in (None, [f"p{row // 10}" for row in range(400)]):
        low, high = columns(labels, p, groups).interval("accuracy")
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0] * np.sqrt(10), rel=0.25)


def test_resampled_numbers_are_those_of_the_resampled_images():
    rng = np.random.default_rng(2)
    labels, p = rng.integers(0, 3, 60), rng.dirichlet([1, 1, 1], 60).round(2)
    again = columns(labels, p, graded=range(3), resamples=20)
    for row, weights in enumerate(table(resampling_units(60), 20)):
        rows = np.repeat(np.arange(60), weights.astype(int))
        expected = summary_metrics(labels[rows], p[rows].astype(np.float32), graded=range(3))
        for key in ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "kappa", "brier", "nll"):
            assert again._resampled[key][row] == pytest.approx(expected[key], abs=1e-6), key


def test_all_right_is_not_called_certain():
    p = np.eye(2)[[0] * 10 + [1] * 4]
    found = columns([0] * 10 + [1] * 4, p)
    assert found.interval("accuracy") == pytest.approx(exact_interval(14, 14))
    assert found.interval("class/recall", 1)[0] < 0.5  # four of four
    patients = columns([0] * 10 + [1] * 4, p, ["p"] * 5 + ["q"] * 5 + ["r"] * 4)
    assert patients.interval("accuracy")[0] < found.interval("accuracy")[0]


def test_four_patients_who_are_all_right_or_all_wrong_are_not_called_certain():
    groups = [f"p{row // 5}" for row in range(20)]
    labels = np.repeat([0, 1], 10)
    right, wrong = (columns(labels, np.eye(2)[c], groups) for c in (labels, 1 - labels))
    assert right.interval("class/auroc", 1) == pytest.approx(exact_interval(2, 2))
    assert right.interval("auroc") is right.interval("macro_f1") is right.interval("nll") is None
    assert wrong.interval("class/f1", 0)[1] > 0.4  # none of four is right
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1], 20)
    assert columns(labels, p, groups).interval("brier") is None  # four patients alone
    assert columns(labels, p).interval("brier") is not None


def test_f1_has_the_exact_interval_of_the_share_of_hits_among_both():
    p = np.eye(2)[[0] * 8 + [1] * 6]
    low, high = columns([0] * 6 + [1] * 8, p).interval("class/f1", 1)
    share = exact_interval(6, 8)
    assert [low, high] == pytest.approx([2 * end / (1 + end) for end in share])


@pytest.mark.parametrize(("part", "whole"), [(0, 5), (3, 9), (20, 20)])
def test_exact_intervals_are_those_of_scipy(part, whole):
    expected = binomtest(part, whole).proportion_ci(0.95, "exact")
    assert exact_interval(part, whole) == pytest.approx([expected.low, expected.high])
    assert exact_interval(0, 0) is None


@pytest.mark.parametrize("size", [1, 5])
def test_the_interval_of_balanced_accuracy_holds_as_often_as_stated(size):
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        labels = np.repeat([0, 1], [8 * size, 24 * size])
        chance = np.array([0.9, 0.6])[labels]
        right = rng.random(len(labels) // size).repeat(size) < chance  # alike within a patient
        p = np.eye(2)[np.where(right, labels, 1 - labels)]
        groups = None if size == 1 else [f"p{row // size}" for row in range(len(labels))]
        low, high = columns(labels, p, groups, resamples=2).interval("balanced_accuracy")
        held += low <= 0.75 <= high
    assert held >= 200 * 0.95 - 3 * np.sqrt(200 * 0.95 * 0.05)


def test_what_no_resample_defines_has_no_interval():
    assert interval([np.nan] * 10) is interval([1.0]) is None
    assert interval([1.0, 2.0, np.nan, np.nan, np.nan]) is None
    assert interval([1.0, 2.0, np.nan]) == pytest.approx([1.025, 1.975])
    assert interval(np.arange(101.0), 0.9) == pytest.approx([5, 95])
    p = np.eye(3)[[0, 1, 1, 0]]
    found = columns([0, 1, 0, 0], p)
    assert found.value("class/recall", 2) is None
    assert found.interval("class/recall", 2) is None
    assert columns([0, 1, 0, 0], p, resamples=0).interval("accuracy") is None


def test_effective_images_are_those_of_korn_and_graubard():
    hits = np.array([1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 1], dtype=bool)
    part, whole = effective_counts(hits, np.repeat(np.arange(3), 4))
    clusters, rate = np.array([3, 1, 3]), 7 / 12
    variance = 3 / 2 * ((clusters - 4 * rate) ** 2).sum() / 12**2
    few = (t.ppf(0.975, 11) / t.ppf(0.975, 2)) ** 2
    assert whole == pytest.approx(rate * (1 - rate) / variance * few)
    assert part == pytest.approx(rate * whole)
    assert whole < 12


@pytest.mark.parametrize(
    ("hits", "patients", "expected"),
    [
        (np.tile([True, True, False], 100), np.arange(300) // 3, (200, 300)),  # every one is alike
        (np.ones(9, bool), np.zeros(9, int), (1, 1)),
        (np.array([True, False]), np.zeros(2, int), (0.5, 1)),
    ],
)
def test_effective_images_of_extreme_patients(hits, patients, expected):
    assert effective_counts(hits, patients) == expected
