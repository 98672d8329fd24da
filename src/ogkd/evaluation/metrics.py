"""How good are predictions: plain functions of labels and probabilities.

What counts alone can say is computed from confusion matrices [..., C, C] (rows: the truth), so
that a thousand resampled ones cost no more code than one. A value that is not defined is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ogkd.evaluation.reliability import brier, ece, nll
from ogkd.evaluation.selective import aurc

__all__ = [
    "auroc",
    "class_columns",
    "classification_metrics",
    "confusion_matrix",
    "mean_of_known",
    "plain",
    "quadratic_kappa",
    "share",
    "summary_columns",
    "summary_metrics",
]

Array = NDArray[np.float64]


def confusion_matrix(labels: ArrayLike, said: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Counts [C, C]: row the truth, column what was said."""
    pairs = np.asarray(labels) * classes + np.asarray(said)
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def share(part: Array, whole: Array) -> Array:
    """What part of the whole; NaN where the whole is nothing."""
    nothing = np.full(np.shape(whole), np.nan)
    return np.asarray(np.divide(part, whole, out=nothing, where=np.asarray(whole) > 0))


def class_columns(confusion: ArrayLike) -> dict[str, Array]:
    """Precision, recall, specificity and F1 of each class, [..., C]."""
    table = np.asarray(confusion, dtype=np.float64)
    hits = table.diagonal(axis1=-2, axis2=-1)
    truth, said = table.sum(axis=-1), table.sum(axis=-2)
    others = truth.sum(axis=-1, keepdims=True) - truth
    return {
        "precision": share(hits, said),
        "recall": share(hits, truth),
        "specificity": share(others - (said - hits), others),
        "f1": share(2 * hits, truth + said),
    }


def summary_columns(
    confusion: ArrayLike, *, graded: bool | Sequence[int] = False
) -> dict[str, Array]:
    """Accuracy, balanced accuracy, macro-F1 and, of graded classes, quadratic kappa: [...].

    `graded` is True where the classes are grades in order, or their labels from grade to grade.
    """
    table = np.asarray(confusion, dtype=np.float64)
    rows = class_columns(table)
    hits = table.diagonal(axis1=-2, axis2=-1).sum(axis=-1)
    found = {
        "accuracy": share(hits, table.sum(axis=(-2, -1))),
        "balanced_accuracy": mean_of_known(rows["recall"]),  # of the classes that occur
        "macro_f1": mean_of_known(rows["f1"]),  # of those that occur or are said
    }
    if not graded:
        return found
    grades = list(range(table.shape[-1])) if graded is True else list(graded)
    return found | {"kappa": quadratic_kappa(table[..., grades, :][..., grades])}


def quadratic_kappa(confusion: ArrayLike) -> Array:
    """Cohen's kappa with quadratic weights: 1 is agreement, 0 is chance, for ordered classes."""
    table = np.asarray(confusion, dtype=np.float64)
    grades = np.arange(table.shape[-1])
    w = (grades[:, None] - grades) ** 2
    truth, said = table.sum(axis=-1), table.sum(axis=-2)
    total = table.sum(axis=(-2, -1))
    chance = ((truth[..., :, None] * said[..., None, :]) * w).sum(axis=(-2, -1))
    return 1 - share((table * w).sum(axis=(-2, -1)) * total, chance)


def auroc(positive: ArrayLike, scores: ArrayLike, weights: Array | None = None) -> Array:
    """Area under the ROC curve, ties counted half; `weights` [R, N] give R of them at once."""
    marks, values = np.asarray(positive, dtype=bool), np.asarray(scores)
    counts = np.ones((1, len(marks))) if weights is None else weights
    others = np.flatnonzero(~marks)
    others = others[np.argsort(values[others], kind="stable")]
    beaten = np.zeros((len(counts), len(others) + 1))  # weight of the k lowest negatives
    np.cumsum(counts[:, others], axis=1, out=beaten[:, 1:])
    low = np.searchsorted(values[others], values[marks], side="left")
    high = np.searchsorted(values[others], values[marks], side="right")
    above = counts[:, marks]
    won = np.einsum("rn,rn->r", above, beaten[:, low] + beaten[:, high]) / 2
    found = share(won, above.sum(axis=1) * beaten[:, -1])
    return found[0] if weights is None else found


def classification_metrics(
    labels: ArrayLike, probabilities: ArrayLike, class_names: Sequence[str]
) -> dict[str, Any]:
    """Accuracy, macro-F1 and, per class, precision, recall, F1 and number of images.

    macro-F1 is the mean F1 of the classes that occur among the labels or the predictions. What
    has no value (a class without images or predictions) counts as 0 here.
    """
    said = np.asarray(probabilities).argmax(axis=1)
    table = confusion_matrix(labels, said, len(class_names))
    summary, columns = summary_columns(table), class_columns(table)
    per_class = {
        name: {
            **{key: float(np.nan_to_num(columns[key][c])) for key in ("precision", "recall", "f1")},
            "images": int(table[c].sum()),
        }
        for c, name in enumerate(class_names)
    }
    return {
        "images": int(table.sum()),
        "accuracy": float(summary["accuracy"]),
        "macro_f1": float(summary["macro_f1"]),
        "per_class": per_class,
    }


def summary_metrics(
    labels: ArrayLike, probabilities: ArrayLike, *, graded: bool | Sequence[int] = False
) -> dict[str, float]:
    """The whole of a result in one number each; NaN where the labels do not define it.

    AUROC is one class against the rest, averaged over the classes that occur. `kappa` is there
    for graded classes only; `graded` is as in `summary_columns`.
    """
    truth, p = np.asarray(labels), np.asarray(probabilities)
    table = confusion_matrix(truth, p.argmax(axis=1), p.shape[1])
    areas = np.array([auroc(truth == c, p[:, c]) for c in range(p.shape[1])])
    return {
        **{key: float(value) for key, value in summary_columns(table, graded=graded).items()},
        "auroc": float(mean_of_known(areas)),
        "ece": ece(truth, p),
        "brier": brier(truth, p),
        "nll": nll(truth, p),
        "aurc": aurc(truth, p),
    }


def plain(value: float) -> float | None:
    """A number for JSON: None instead of NaN."""
    return None if np.isnan(value) else float(value)


def mean_of_known(values: Array) -> Array:
    """The mean of what is defined, along the last axis."""
    known = ~np.isnan(values)
    return share(np.where(known, values, 0.0).sum(axis=-1), known.sum(axis=-1))
