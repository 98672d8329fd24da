"""How good are predictions: plain functions of labels and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support

__all__ = ["classification_metrics"]


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
