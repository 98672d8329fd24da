"""Do probabilities mean what they say: reliability bins, ECE, Brier score, log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["BINS", "Bin", "bin_numbers", "bins", "brier", "brier_rows", "ece", "nll", "nll_rows"]

BINS = 15
_TINY = 1e-12  # a probability of exactly 0 for the truth would make the mean infinite


@dataclass(frozen=True)
class Bin:
    """Images whose top probability lies in (low, high]; shares are None where there is none."""

    low: float
    high: float
    images: int
    confidence: float | None  # mean top probability
    accuracy: float | None


def bin_numbers(confidence: NDArray[np.float64], count: int = BINS) -> NDArray[np.int64]:
    """The equal-width bin of each top probability, from 0; bins are closed above."""
    # 1e-9: 0.6 in a binary fraction lies a little above or below 9/15, but belongs to one bin.
    return np.clip(np.ceil(confidence * count - 1e-9).astype(np.int64) - 1, 0, count - 1)


def bins(labels: ArrayLike, probabilities: ArrayLike, count: int = BINS) -> list[Bin]:
    """The reliability diagram: confidence and accuracy of each bin of top probability."""
    truth, p = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    top, right = p.max(axis=1), p.argmax(axis=1) == truth
    place = bin_numbers(top, count)
    found = []
    for number in range(count):
        inside = place == number
        images = int(inside.sum())
        means = (float(top[inside].mean()), float(right[inside].mean())) if images else (None, None)
        found.append(Bin(number / count, (number + 1) / count, images, *means))
    return found


def ece(labels: ArrayLike, probabilities: ArrayLike, count: int = BINS) -> float:
    """Expected calibration error: mean |accuracy - confidence| over bins, weighted by images."""
    rows = [row for row in bins(labels, probabilities, count) if row.images]
    total = sum(row.images for row in rows)
    gaps = [row.images * abs((row.accuracy or 0.0) - (row.confidence or 0.0)) for row in rows]
    return sum(gaps) / total


def brier_rows(labels: ArrayLike, probabilities: ArrayLike) -> NDArray[np.float64]:
    """For each image the squared distance to the truth, summed over classes (0 to 2)."""
    truth, p = np.asarray(labels), np.array(probabilities, dtype=np.float64)
    p[np.arange(len(truth)), truth] -= 1.0
    return np.asarray((p**2).sum(axis=1))


def brier(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """The multi-class Brier score: 0 is perfect, 2 is sure and always wrong."""
    return float(brier_rows(labels, probabilities).mean())


def nll_rows(labels: ArrayLike, probabilities: ArrayLike) -> NDArray[np.float64]:
    """For each image -log p of its true class, where p counts as at least 1e-12."""
    truth, p = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    rows: NDArray[np.float64] = -np.log(np.maximum(p[np.arange(len(truth)), truth], _TINY))
    return rows


def nll(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """The mean negative log-likelihood of the true class."""
    return float(nll_rows(labels, probabilities).mean())
