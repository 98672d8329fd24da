"""Disease against normal, where some classes stand for "nothing found"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ogkd.evaluation.metrics import auroc, share

__all__ = ["screening_columns", "screening_masks"]


def screening_masks(
    labels: ArrayLike, probabilities: ArrayLike, normal: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which images are of a disease, and which are called one: the top class is not normal."""
    said = np.asarray(probabilities).argmax(axis=1)
    return ~np.isin(labels, normal), ~np.isin(said, normal)


def screening_columns(
    labels: ArrayLike,
    probabilities: ArrayLike,
    normal: Sequence[int],
    weights: NDArray[np.float64],
) -> dict[str, NDArray[np.float64]]:
    """Sensitivity, specificity and AUROC of 1 - p(normal), [R], for weights [R, N] of images.

    A disease called another disease counts as found: this is about who is sent on.
    """
    ill, flagged = screening_masks(labels, probabilities, normal)
    score = 1 - np.asarray(probabilities, dtype=np.float64)[:, list(normal)].sum(axis=1)
    return {
        "sensitivity": share(weights @ (ill & flagged), weights @ ill),
        "specificity": share(weights @ (~ill & ~flagged), weights @ ~ill),
        "auroc": auroc(ill, score, weights),
    }
