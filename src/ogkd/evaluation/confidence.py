"""How far a model's confidence can be trusted: reliability, proper scores, selective prediction.

Confidence is the largest probability. Images of equal confidence have no natural order, so every
value that depends on order is the expectation over all orders: the input order never matters.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

BINS = 15
_TINY = 1e-12  # a true class of probability 0 would make the mean infinite


def bin_numbers(confidence: NDArray[np.float64], count: int = BINS) -> NDArray[np.int64]:
    """The equal-width bin of each top probability, from 0; bins are closed above."""
    # 1e-9: as a binary fraction 0.6 lies slightly off 9/15, but belongs to one bin.
    return np.clip(np.ceil(confidence * count - 1e-9).astype(np.int64) - 1, 0, count - 1)


def bins(
    labels: ArrayLike, probabilities: ArrayLike, count: int = BINS
) -> list[dict[str, float | None]]:
    """The reliability diagram: images whose top probability lies in (low, high], bin by bin.

    `confidence` is their mean top probability and `accuracy` their share of right answers, both
    None in an empty bin.
    """
    truth, p = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    top, correct = p.max(axis=1), p.argmax(axis=1) == truth
    bin_of = bin_numbers(top, count)
    inside = [bin_of == number for number in range(count)]
    return [
        {
            "low": number / count,
            "high": (number + 1) / count,
            "images": int(rows.sum()),
            "confidence": float(top[rows].mean()) if rows.any() else None,
            "accuracy": float(correct[rows].mean()) if rows.any() else None,
        }
        for number, rows in enumerate(inside)
    ]


def ece(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Expected calibration error: mean |accuracy - confidence| over bins, weighted by images."""
    truth, p = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    top, correct = p.max(axis=1), p.argmax(axis=1) == truth
    gaps = np.bincount(bin_numbers(top), weights=correct - top, minlength=BINS)
    return float(np.abs(gaps).sum() / len(truth))


def brier_rows(labels: ArrayLike, probabilities: ArrayLike) -> NDArray[np.float64]:
    """For each image the squared distance to the truth, summed over classes (0 to 2)."""
    truth, p = np.asarray(labels), np.array(probabilities, dtype=np.float64)
    p[np.arange(len(truth)), truth] -= 1.0
    return np.asarray((p**2).sum(axis=1))


def brier(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """The multi-class Brier score: 0 is perfect, 2 is always wrong with full confidence."""
    return float(brier_rows(labels, probabilities).mean())


def nll_rows(labels: ArrayLike, probabilities: ArrayLike) -> NDArray[np.float64]:
    """For each image -log p of its true class, with p clipped to at least 1e-12."""
    truth, p = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    rows: NDArray[np.float64] = -np.log(np.maximum(p[np.arange(len(truth)), truth], _TINY))
    return rows


def nll(labels: ArrayLike, probabilities: ArrayLike) -> float:
    return float(nll_rows(labels, probabilities).mean())


def risk_coverage(
    labels: ArrayLike, probabilities: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coverage k/n and error rate among the k most confident images, k = 1..n."""
    errors = _errors(labels, probabilities)
    kept = np.arange(1, len(errors) + 1)
    return kept / len(errors), errors / kept


def aurc(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean error rate among the k most confident, k=1..n.

    >>> aurc([0, 1], [[0.9, 0.1], [0.6, 0.4]])  # correct if confident, wrong if not
    0.25
    """
    return float(risk_coverage(labels, probabilities)[1].mean())


def risk_at_coverage(labels: ArrayLike, probabilities: ArrayLike, coverage: float) -> float:
    """Error rate among the most confident share of images (at least one image)."""
    errors = _errors(labels, probabilities)
    kept = max(1, math.ceil(coverage * len(errors) - 1e-9))
    return float(errors[kept - 1] / kept)


def _errors(labels: ArrayLike, probabilities: ArrayLike) -> NDArray[np.float64]:
    """Expected errors among the k most confident, k = 1..n."""
    truth, p = np.asarray(labels), np.asarray(probabilities)
    if len(truth) == 0:
        raise ValueError("There are no images to evaluate.")
    wrong = (p.argmax(axis=1) != truth).astype(np.float64)
    _, tie = np.unique(-p.max(axis=1), return_inverse=True)  # 0: the most confident
    sizes = np.bincount(tie)
    return np.asarray((np.bincount(tie, weights=wrong) / sizes).repeat(sizes).cumsum())
