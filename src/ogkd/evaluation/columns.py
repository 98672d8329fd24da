"""Every number that gets an interval: once for the images, once for each resample of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ogkd.evaluation.bootstrap import draws, exact_interval, interval, units
from ogkd.evaluation.judge import Judged
from ogkd.evaluation.metrics import (
    auroc,
    class_columns,
    mean_of_known,
    plain,
    summary_columns,
)
from ogkd.evaluation.reliability import brier_rows, nll_rows
from ogkd.evaluation.screening import screening_columns, screening_masks

__all__ = ["Columns"]

Array = NDArray[np.float64]


class Columns:
    """Values and intervals by name; those of classes are "class/...", with the class's number."""

    def __init__(
        self,
        judged: Judged,
        p: NDArray[np.float32],
        *,
        graded: bool | Sequence[int],
        resamples: int,
        seed: int,
    ) -> None:
        count, classes = len(judged.labels), len(judged.class_names)
        self._unit = units(count, judged.groups)
        self._counted = _counted(judged, p)
        self._now = _columns(judged, p, np.ones((1, count)), graded=graded)
        pieces = draws(self._unit, resamples=resamples, seed=seed, width=classes**2)
        tables = [_columns(judged, p, weights, graded=graded) for weights in pieces]
        self._drawn = {
            key: np.concatenate([table[key] for table in tables]) for key in self._now if tables
        }

    def value(self, name: str, label: int | None = None) -> float | None:
        """The number itself; None where it is not defined."""
        return plain(float(_of(self._now[name], label)[0]))

    def interval(self, name: str, label: int | None = None) -> list[float] | None:
        """[low, high], by the bootstrap; the exact one for a share of all or none."""
        value = self.value(name, label)
        if value is None or not self._drawn:
            return None
        if name in self._counted and value in (0.0, 1.0):
            whole = len(np.unique(self._unit[_of(self._counted[name], label)]))
            return exact_interval(whole if value else 0, whole)
        return interval(_of(self._drawn[name], label))


def _of(table: NDArray[np.generic], label: int | None) -> NDArray[np.generic]:
    return table if label is None else table[:, label]


def _columns(
    judged: Judged, p: NDArray[np.float32], w: Array, *, graded: bool | Sequence[int]
) -> dict[str, Array]:
    """For weights of images [R, N]: [R] numbers each, [R, C] of classes."""
    labels, classes = judged.labels, len(judged.class_names)
    pairs = labels * classes + p.argmax(axis=1)
    rows = [np.bincount(pairs, weights=row, minlength=classes**2) for row in w]
    table = np.stack(rows).reshape(-1, classes, classes)
    areas = np.stack([auroc(labels == c, p[:, c], w) for c in range(classes)], axis=1)
    total = w.sum(axis=1)
    found = {
        **summary_columns(table, graded=graded),
        "auroc": mean_of_known(areas),
        "brier": w @ brier_rows(labels, p) / total,
        "nll": w @ nll_rows(labels, p) / total,
        **{f"class/{key}": value for key, value in class_columns(table).items()},
        "class/auroc": areas,
    }
    if judged.normal:
        screening = screening_columns(labels, p, judged.normal, w)
        found |= {f"screening/{key}": value for key, value in screening.items()}
    return found


def _counted(judged: Judged, p: NDArray[np.float32]) -> dict[str, NDArray[np.bool_]]:
    """Of the plain shares: which images they are a share of, [N] or [N, C]."""
    classes = np.arange(len(judged.class_names))
    truth = judged.labels[:, None] == classes
    found = {
        "accuracy": np.ones(len(judged.labels), dtype=bool),
        "class/recall": truth,
        "class/precision": p.argmax(axis=1)[:, None] == classes,
        "class/specificity": ~truth,
    }
    if judged.normal:
        ill, _ = screening_masks(judged.labels, p, judged.normal)
        found |= {"screening/sensitivity": ill, "screening/specificity": ~ill}
    return found
