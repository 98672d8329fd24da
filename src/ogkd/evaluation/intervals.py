"""Metrics with their intervals: the bootstrap, by image or by patient, and exact intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ogkd.evaluation.confidence import brier_rows, nll_rows
from ogkd.evaluation.metrics import (
    auroc,
    class_columns,
    mean_of_known,
    plain,
    screening_columns,
    screening_masks,
    summary_columns,
)
from ogkd.evaluation.predictions import LabelledPredictions

LEVEL = 0.95
_CELLS = 100_000  # of one block of weights: what fits into a processor's cache
Array = NDArray[np.float64]


class BootstrappedMetrics:
    """Every metric that gets an interval: once for the images, once for each resample of them.

    Metrics of single classes are named "class/...", those of screening "screening/...".
    """

    def __init__(
        self,
        found: LabelledPredictions,
        p: NDArray[np.float32],
        *,
        graded: bool | Sequence[int],
        resamples: int,
        seed: int,
    ) -> None:
        count, classes = len(found.labels), len(found.class_names)
        self._units = resampling_units(count, found.groups)
        self._counted = _counted(found, p)
        self._values = _metrics(found, p, np.ones((1, count)), graded=graded)
        blocks = resample_weights(self._units, resamples=resamples, seed=seed, width=classes**2)
        tables = [_metrics(found, p, weights, graded=graded) for weights in blocks]
        self._resampled = {
            key: np.concatenate([table[key] for table in tables]) for key in self._values if tables
        }

    def value(self, name: str, label: int | None = None) -> float | None:
        """The metric itself; None if it is undefined."""
        return plain(float(_of_class(self._values[name], label)[0]))

    def interval(self, name: str, label: int | None = None) -> list[float] | None:
        """[low, high] by the bootstrap; the exact interval for a share of all or none."""
        value = self.value(name, label)
        if value is None or not self._resampled:
            return None
        if name in self._counted and value in (0.0, 1.0):
            whole = len(np.unique(self._units[_of_class(self._counted[name], label)]))
            return exact_interval(whole if value else 0, whole)
        return interval(_of_class(self._resampled[name], label))


def resampling_units(count: int, groups: Sequence[str | None] | None = None) -> NDArray[np.int64]:
    """For each image the number of the unit it is drawn with: its group, or itself if it has none.

    >>> resampling_units(4, ["p", None, "p", None]).tolist()
    [0, 1, 0, 2]
    """
    names = [None] * count if groups is None else list(groups)
    keys = [(0, str(row)) if name is None else (1, name) for row, name in enumerate(names)]
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([order[key] for key in keys], dtype=np.int64)


def resample_weights(
    units: NDArray[np.int64], *, resamples: int, seed: int, width: int = 1
) -> Iterator[Array]:
    """How often each image occurs in each resample: blocks [r, N], `resamples` rows in total.

    As many units are drawn, with replacement, as there are. `width` is the number of values that
    the caller computes for each row, if that is larger than N.
    """
    rng = np.random.default_rng(seed)
    count = int(units.max()) + 1
    rows = max(16, _CELLS // max(len(units), width))  # fewer, larger blocks: each sorts all images
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        drawn = rng.integers(0, count, (size, count)) + count * np.arange(size)[:, None]
        table = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        yield table[:, units].astype(np.float64)


def interval(values: ArrayLike, level: float = LEVEL) -> list[float] | None:
    """The central `level` of resampled values; None if most resamples leave them undefined."""
    found = np.asarray(values, dtype=np.float64)
    found = found[~np.isnan(found)]
    if len(found) < 0.5 * np.size(values) or len(found) < 2:
        return None
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return [float(low), float(high)]


def exact_interval(part: int, whole: int, level: float = LEVEL) -> list[float] | None:
    """Clopper-Pearson interval of a share, needed if all or none are correct.

    Every resample is then the same, and the bootstrap would claim certainty.
    """
    from scipy.stats import beta

    if whole == 0:
        return None
    tail = (1 - level) / 2
    low = 0.0 if part == 0 else float(beta.ppf(tail, part, whole - part + 1))
    high = 1.0 if part == whole else float(beta.ppf(1 - tail, part + 1, whole - part))
    return [low, high]


def _of_class(table: NDArray[np.generic], label: int | None) -> NDArray[np.generic]:
    return table if label is None else table[:, label]


def _metrics(
    found: LabelledPredictions,
    p: NDArray[np.float32],
    w: Array,
    *,
    graded: bool | Sequence[int],
) -> dict[str, Array]:
    """Metrics for weights of images [R, N]: [R] values each, [R, C] for single classes."""
    labels, classes = found.labels, len(found.class_names)
    pairs = labels * classes + p.argmax(axis=1)
    rows = [np.bincount(pairs, weights=row, minlength=classes**2) for row in w]
    table = np.stack(rows).reshape(-1, classes, classes)
    areas = np.stack([auroc(labels == c, p[:, c], w) for c in range(classes)], axis=1)
    total = w.sum(axis=1)
    metrics = {
        **summary_columns(table, graded=graded),
        "auroc": mean_of_known(areas),
        "brier": w @ brier_rows(labels, p) / total,
        "nll": w @ nll_rows(labels, p) / total,
        **{f"class/{key}": value for key, value in class_columns(table).items()},
        "class/auroc": areas,
    }
    if found.normal:
        screening = screening_columns(labels, p, found.normal, w)
        metrics |= {f"screening/{key}": value for key, value in screening.items()}
    return metrics


def _counted(found: LabelledPredictions, p: NDArray[np.float32]) -> dict[str, NDArray[np.bool_]]:
    """For each metric that is a plain share, the images it is a share of: [N] or [N, C]."""
    classes = np.arange(len(found.class_names))
    truth = found.labels[:, None] == classes
    counted = {
        "accuracy": np.ones(len(found.labels), dtype=bool),
        "class/recall": truth,
        "class/precision": p.argmax(axis=1)[:, None] == classes,
        "class/specificity": ~truth,
    }
    if found.normal:
        diseased, _ = screening_masks(found.labels, p, found.normal)
        counted |= {"screening/sensitivity": diseased, "screening/specificity": ~diseased}
    return counted
