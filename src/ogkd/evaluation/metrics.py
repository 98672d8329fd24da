"""How good are predictions: plain functions of labels and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

__all__ = ["aurc", "classification_metrics"]


def classification_metrics(
    labels: ArrayLike, probabilities: ArrayLike, class_names: Sequence[str]
) -> dict[str, Any]:
    """Accuracy, macro-F1 and, per class, precision, recall, F1 and number of images.

    macro-F1 is the mean F1 of the classes that occur among the labels or the predictions.
    """
    truth = np.asarray(labels)
    said = np.asarray(probabilities).argmax(axis=1)
    everything = list(range(len(class_names)))
    columns = precision_recall_fscore_support(truth, said, labels=everything, zero_division=0.0)
    per_class = {
        name: {
            "precision": float(columns[0][label]),
            "recall": float(columns[1][label]),
            "f1": float(columns[2][label]),
            "images": int(columns[3][label]),
        }
        for label, name in enumerate(class_names)
    }
    present = sorted(set(truth.tolist()) | set(said.tolist()))
    return {
        "images": len(truth),
        "accuracy": float(accuracy_score(truth, said)),
        "macro_f1": float(f1_score(truth, said, labels=present, average="macro", zero_division=0)),
        "per_class": per_class,
    }


def aurc(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Area under the risk-coverage curve: the mean error rate among the k most confident, k=1..n.

    Confidence is the largest probability. Images of equal confidence have no order of their
    own, so the value is the expectation over all orders: each counts as their common error rate.

    >>> aurc([0, 1], [[0.9, 0.1], [0.6, 0.4]])  # right where sure, wrong where not
    0.25
    """
    truth, p = np.asarray(labels), np.asarray(probabilities)
    if len(truth) == 0:
        raise ValueError("There is no image to judge.")
    wrong = (p.argmax(axis=1) != truth).astype(float)
    _, tie = np.unique(-p.max(axis=1), return_inverse=True)  # 0: the most confident
    sizes = np.bincount(tie)
    expected = (np.bincount(tie, weights=wrong) / sizes).repeat(sizes)
    return float((expected.cumsum() / np.arange(1, len(wrong) + 1)).mean())
