"""How good predictions are: functions of labels and probabilities.

Metrics that depend on counts alone are computed from confusion matrices [..., C, C] (rows: the
truth), so the same code serves one matrix and a thousand resampled ones. Undefined values are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ogkd.evaluation.confidence import aurc, brier, ece, nll

Array = NDArray[np.float64]


def confusion_matrix(labels: ArrayLike, predicted: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Counts [C, C]: rows are the true classes, columns the predicted ones."""
    pairs = np.asarray(labels) * classes + np.asarray(predicted)
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def share(part: Array, whole: Array) -> Array:
    """Part / whole, NaN where the whole is 0."""
    undefined = np.full(np.shape(whole), np.nan)
    return np.asarray(np.divide(part, whole, out=undefined, where=np.asarray(whole) > 0))


def class_columns(confusion: ArrayLike) -> dict[str, Array]:
    """Precision, recall, specificity and F1 of each class, [..., C]."""
    table = np.asarray(confusion, dtype=np.float64)
    hits = table.diagonal(axis1=-2, axis2=-1)
    truth, predicted = table.sum(axis=-1), table.sum(axis=-2)
    others = truth.sum(axis=-1, keepdims=True) - truth
    return {
        "precision": share(hits, predicted),
        "recall": share(hits, truth),
        "specificity": share(others - (predicted - hits), others),
        "f1": share(2 * hits, truth + predicted),
    }


def summary_columns(
    confusion: ArrayLike, *, graded: bool | Sequence[int] = False
) -> dict[str, Array]:
    """Accuracy, balanced accuracy, macro-F1 and, for graded classes, quadratic kappa: [...].

    `graded` is True if the classes are grades in order, or their labels in the order of grades.
    """
    table = np.asarray(confusion, dtype=np.float64)
    rows = class_columns(table)
    hits = table.diagonal(axis1=-2, axis2=-1).sum(axis=-1)
    found = {
        "accuracy": share(hits, table.sum(axis=(-2, -1))),
        "balanced_accuracy": mean_of_known(rows["recall"]),  # over the classes that occur
        "macro_f1": mean_of_known(rows["f1"]),  # over those that occur or are predicted
    }
    if not graded:
        return found
    grades = list(range(table.shape[-1])) if graded is True else list(graded)
    return found | {"kappa": quadratic_kappa(table[..., grades, :][..., grades])}


def quadratic_kappa(confusion: ArrayLike) -> Array:
    """Cohen's kappa with quadratic weights, for ordered classes: 1 is agreement, 0 is chance."""
    table = np.asarray(confusion, dtype=np.float64)
    grades = np.arange(table.shape[-1])
    w = (grades[:, None] - grades) ** 2
    truth, predicted = table.sum(axis=-1), table.sum(axis=-2)
    total = table.sum(axis=(-2, -1))
    chance = ((truth[..., :, None] * predicted[..., None, :]) * w).sum(axis=(-2, -1))
    return 1 - share((table * w).sum(axis=(-2, -1)) * total, chance)


def auroc(positive: ArrayLike, scores: ArrayLike, weights: Array | None = None) -> Array:
    """Area under the ROC curve, ties counting half; weights [R, N] give R areas at once."""
    marks, values = np.asarray(positive, dtype=bool), np.asarray(scores)
    counts = np.ones((1, len(marks))) if weights is None else weights
    others = np.flatnonzero(~marks)
    others = others[np.argsort(values[others], kind="stable")]
    beaten = np.zeros((len(counts), len(others) + 1))  # total weight of the k lowest negatives
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

    Macro-F1 is the mean F1 of the classes that occur among the labels or the predictions.
    Undefined values (a class without images or predictions) are 0 here.
    """
    predicted = np.asarray(probabilities).argmax(axis=1)
    table = confusion_matrix(labels, predicted, len(class_names))
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
    """The metrics of a whole result; NaN where the labels leave one undefined.

    AUROC is one class against the rest, averaged over the classes that occur. `kappa` is
    included for graded classes only; `graded` is as in `summary_columns`.
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
    """A value for JSON: None instead of NaN."""
    return None if np.isnan(value) else float(value)


def mean_of_known(values: Array) -> Array:
    """The mean of the defined values along the last axis."""
    known = ~np.isnan(values)
    return share(np.where(known, values, 0.0).sum(axis=-1), known.sum(axis=-1))


def screening_masks(
    labels: ArrayLike, probabilities: ArrayLike, normal: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which images show a disease, and which are classified as one (top class not normal)."""
    predicted = np.asarray(probabilities).argmax(axis=1)
    return ~np.isin(labels, normal), ~np.isin(predicted, normal)


def screening_columns(
    labels: ArrayLike, probabilities: ArrayLike, normal: Sequence[int], weights: Array
) -> dict[str, Array]:
    """Disease against normal: sensitivity, specificity and AUROC of 1 - p(normal), each [R].

    `weights` [R, N] weight the images. One disease mistaken for another counts as detected: the
    question is who would be referred.
    """
    diseased, flagged = screening_masks(labels, probabilities, normal)
    score = 1 - np.asarray(probabilities, dtype=np.float64)[:, list(normal)].sum(axis=1)
    return {
        "sensitivity": share(weights @ (diseased & flagged), weights @ diseased),
        "specificity": share(weights @ (~diseased & ~flagged), weights @ ~diseased),
        "auroc": auroc(diseased, score, weights),
    }
