"""Selective prediction: how risk falls where the model may abstain on images it is unsure of.

Confidence is the largest probability. Images of equal confidence have no order of their own:
every value is the expectation over all orders, so the order of the input never matters.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["augrc", "aurc", "coverage_at_risk", "e_aurc", "risk_at_coverage", "risk_coverage"]


def risk_coverage(
    labels: ArrayLike, probabilities: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coverage k/n and error rate among the k most confident images, k = 1..n."""
    errors, _ = _errors(labels, probabilities)
    kept = np.arange(1, len(errors) + 1)
    return kept / len(errors), errors / kept


def aurc(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean error rate among the k most confident, k=1..n.

    >>> aurc([0, 1], [[0.9, 0.1], [0.6, 0.4]])  # right where sure, wrong where not
    0.25
    """
    return float(risk_coverage(labels, probabilities)[1].mean())


def e_aurc(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """AURC above that of the best order of the same errors, all of them last; 0 is ideal."""
    errors, _ = _errors(labels, probabilities)
    kept = np.arange(1, len(errors) + 1)
    best = np.maximum(0, kept - (len(errors) - errors[-1])) / kept
    return float((errors / kept - best).mean())


def augrc(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Area under the generalised risk-coverage curve: errors that get through, k most confident.

    The generalised risk is the share of all images that are kept and wrong; the area is by
    trapezoids from (0, 0). It equals (1 - AUROC) a (1 - a) + (1 - a)^2 / 2 with accuracy a and
    the AUROC of confidence telling right from wrong (Traub et al., NeurIPS 2024).
    """
    errors, _ = _errors(labels, probabilities)
    n = len(errors)
    return float((errors.sum() - errors[-1] / 2) / n**2)


def risk_at_coverage(labels: ArrayLike, probabilities: ArrayLike, coverage: float) -> float:
    """Error rate among the most confident share of images (at least one)."""
    errors, _ = _errors(labels, probabilities)
    kept = max(1, math.ceil(coverage * len(errors) - 1e-9))
    return float(errors[kept - 1] / kept)


def coverage_at_risk(labels: ArrayLike, probabilities: ArrayLike, max_risk: float) -> float:
    """The largest share of images that a threshold can keep with at most that error rate; else 0.

    A threshold keeps all images of equal confidence or none. This looks at the labels it is
    judged by: a promise for future images is `Calibration.threshold`.
    """
    errors, ends = _errors(labels, probabilities)
    kept = [int(end) for end in ends if errors[end - 1] / end <= max_risk]
    return max(kept, default=0) / len(errors)


def _errors(
    labels: ArrayLike, probabilities: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Expected errors among the k most confident, k = 1..n, and the k where ties end."""
    truth, p = np.asarray(labels), np.asarray(probabilities)
    if len(truth) == 0:
        raise ValueError("There is no image to judge.")
    wrong = (p.argmax(axis=1) != truth).astype(np.float64)
    _, tie = np.unique(-p.max(axis=1), return_inverse=True)  # 0: the most confident
    sizes = np.bincount(tie)
    each = (np.bincount(tie, weights=wrong) / sizes).repeat(sizes)
    return np.asarray(each.cumsum()), np.asarray(sizes.cumsum())
