"""Probabilities, limits and answers of several findings, and what they promise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from ogkd.model.findings import (
    FindingsCalibration,
    Limits,
    conformal_limit,
    fit_odds,
    needed_for_sensitivity,
    sigmoid,
    tolerance_limit,
)
from scipy.stats import binom

from ogkd.errors import ConfigError


def test_few_new_images_lie_below_the_conformal_limit() -> None:
    rng = np.random.default_rng(0)
    below = [
        rng.random() < conformal_limit(np.sort(rng.random(19)).tolist(), 0.9) for _ in range(20_000)
    ]
    assert abs(np.mean(below) - 0.1) < 0.01  # k / (n + 1) = 2 / 20, exactly
    assert conformal_limit([0.3] * 8, 0.9) == 0.0  # 9 are needed
    assert conformal_limit([0.3] * 9, 0.9) == 0.3


def test_the_promised_sensitivity_is_broken_no_more_often_than_promised() -> None:
    rng = np.random.default_rng(1)
    # Of uniform scores, the share below a limit is the limit itself.
    broken = [
        tolerance_limit(np.sort(rng.random(80)).tolist(), 0.9, 0.9) > 0.1 for _ in range(4_000)
    ]
    exact = [k for k in range(80) if binom.cdf(k, 80, 0.1) <= 0.1]
    rate = 1 - sum(math.comb(80, i) * 0.1**i * 0.9 ** (80 - i) for i in range(exact[-1] + 1, 81))
    assert rate <= 0.1
    assert abs(np.mean(broken) - rate) < 0.015


def test_the_fewest_images_for_a_sensitivity_are_just_enough() -> None:
    needed = needed_for_sensitivity(0.95, 0.9)
    assert needed == 45
    assert tolerance_limit([0.5] * needed, 0.95, 0.9) == 0.5
    assert tolerance_limit([0.5] * (needed - 1), 0.95, 0.9) == 0.0


def test_rescaling_equals_a_search_over_a_grid() -> None:
    rng = np.random.default_rng(2)
    z = rng.normal(0, 2, 300)
    y = (rng.random(300) < sigmoid(0.5 * z - 1.5)).astype(np.int64)
    slope, offset = fit_odds(z, y)

    def cost(a: float, b: float) -> float:
        p = 1 / (1 + np.exp(-(a * z + b)))
        prior = (math.log(a) / 0.7) ** 2 / 2 + (b / 2) ** 2 / 2
        return float(-np.log(np.where(y == 1, p, 1 - p)).sum() + prior)

    grid = [(a, b) for a in np.linspace(0.3, 0.8, 26) for b in np.linspace(-2.2, -0.8, 29)]
    assert cost(slope, offset) <= min(cost(*point) for point in grid) + 1e-6
    assert fit_odds(np.empty(0), np.empty(0, np.int64)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("p", "limits", "answer"),
    [
        (0.1, Limits(0.2, 0.7), "no"),
        (0.5, Limits(0.2, 0.7), "unsure"),
        (0.9, Limits(0.2, 0.7), "yes"),
        (0.2, Limits(0.2, 0.7), "unsure"),
        (0.7, Limits(0.2, 0.7), "unsure"),
        (0.6, Limits(0.8, 0.3), "yes"),
        (0.4, Limits(0.8, 0.3), "no"),
        (0.5, Limits(), "yes"),
        (0.49, Limits(), "no"),
    ],
)
def test_answers_between_the_limits_are_unsure_or_by_half(
    p: float, limits: Limits, answer: str
) -> None:
    assert limits.answer(p) == answer


def fitted(images: int = 400, **options: float) -> tuple[FindingsCalibration, np.ndarray]:
    rng = np.random.default_rng(3)
    y = (rng.random((images, 2)) < (0.4, 0.03)).astype(np.int64)
    z = 3 * y - 1.5 + rng.normal(0, 1, y.shape)
    y[rng.random(y.shape) < 0.2] = -1
    keys = [f"{n:04}" for n in range(images)]
    return FindingsCalibration.fit(z, y, keys, weights_sha256="w", **options), z


def test_a_calibration_has_only_held_out_images_and_reads_as_written(tmp_path: Path) -> None:
    found, z = fitted(sensitivity=0.9)
    counts = [len(one.present) + len(one.absent) for one in found.scores]
    assert all(count < 0.7 * 400 for count in counts)
    found.write(tmp_path / "c.json")
    again = FindingsCalibration.read(tmp_path / "c.json", weights_sha256="w")
    assert again == found
    assert np.array_equal(again.probabilities(z), found.probabilities(z))
    common, rare = found.limits()
    assert 0 < common.no_below < 1
    assert rare.no_below == 0.0  # too few with the finding: "no" is never said
    assert rare.yes_above < 1


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="sensitivity is a share"):
        fitted(sensitivity=1.5)
    with pytest.raises(ConfigError, match="coverage is a share"):
        fitted()[0].limits(coverage=1.0)
