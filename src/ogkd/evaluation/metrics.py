"""How good predictions are, and how sure that is: metrics of labels and probabilities, intervals.

Metrics that depend on counts alone are computed from confusion matrices [..., C, C] (rows: the
truth), so the same code serves one matrix and a thousand resampled ones. Undefined values are NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ogkd.evaluation.confidence import aurc, brier, brier_rows, ece, nll, nll_rows
from ogkd.evaluation.predictions import LabelledPredictions

LEVEL = 0.95
FEWEST_UNITS = 10  # patients, or images of unknown ones, that are worth resampling
_DRAWS = 20_000  # for the interval of a mean of shares
_CELLS = 100_000  # of one block of weights: what fits into a processor's cache
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Counts = tuple[float, float]  # hits, and images that they are a share of


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


def summary_columns(confusion: ArrayLike, *, graded: Sequence[int] = ()) -> dict[str, Array]:
    """Accuracy, balanced accuracy, macro-F1 and, for graded classes, quadratic kappa: [...].

    `graded` are the labels in the order of grades, if the classes are grades.
    """
    table = np.asarray(confusion, dtype=np.float64)
    rows = class_columns(table)
    hits = table.diagonal(axis1=-2, axis2=-1).sum(axis=-1)
    columns = {
        "accuracy": share(hits, table.sum(axis=(-2, -1))),
        "balanced_accuracy": mean_of_known(rows["recall"]),  # over the classes that occur
        "macro_f1": mean_of_known(rows["f1"]),  # over those that occur or are predicted
    }
    if not graded:
        return columns
    return columns | {"kappa": quadratic_kappa(table[..., list(graded), :][..., list(graded)])}


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
    area = share(won, above.sum(axis=1) * beaten[:, -1])
    return area[0] if weights is None else area


def average_precision(
    positive: ArrayLike, scores: ArrayLike, weights: Array | None = None
) -> Array:
    """The mean precision over the positives, each at its own score, equal scores together.

    Weights [R, N] give R values at once; NaN without a positive.
    """
    marks, values = np.asarray(positive, dtype=bool), np.asarray(scores)
    counts = np.ones((1, len(marks))) if weights is None else weights
    order = np.argsort(-values, kind="stable")
    hits = np.cumsum(counts[:, order] * marks[order], axis=1)
    taken = np.cumsum(counts[:, order], axis=1)
    last = np.searchsorted(-values[order], -values[order], side="right") - 1  # of equal scores
    gained = counts[:, order] * marks[order]
    total = (gained * share(hits[:, last], taken[:, last])).sum(axis=1, where=gained > 0)
    precision = share(total, hits[:, -1] if len(marks) else np.zeros(len(counts)))
    return precision[0] if weights is None else precision


def summary_metrics(
    labels: ArrayLike, probabilities: ArrayLike, *, graded: Sequence[int] = ()
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


class BootstrappedMetrics:
    """Every metric that gets an interval: once for the images, once for each resample of them.

    `measure` gives the metrics for weights of images [R, N]: [R] values, or [R, C] of single
    classes. `shares` are those that are shares of images, whose interval needs no resamples: the
    images that each counts, and the hits; [N] or [N, C]. `areas` are areas under ROC curves: the
    images that each counts, and the positive ones.
    """

    def __init__(
        self,
        measure: Callable[[Array], dict[str, Array]],
        units: NDArray[np.int64],
        *,
        resamples: int,
        width: int = 1,
        shares: Mapping[str, tuple[Mask, Mask]] | None = None,
        areas: Mapping[str, tuple[Mask, Mask]] | None = None,
    ) -> None:
        self._units = units
        self._shares, self._areas = shares or {}, areas or {}
        self._values = measure(np.ones((1, len(units))))
        self._measure, self._resamples, self._width = measure, resamples, width

    @cached_property
    def _resampled(self) -> dict[str, Array]:
        blocks = resample_weights(self._units, resamples=self._resamples, width=self._width)
        tables = [self._measure(weights) for weights in blocks]
        return {key: np.concatenate([table[key] for table in tables]) for key in self._values}

    def value(self, name: str, label: int | None = None) -> float | None:
        """The metric itself; None if it is undefined."""
        return plain(float(_of_class(self._values[name], label)[0]))

    def interval(self, name: str, label: int | None = None) -> list[float] | None:
        """[low, high]; None if no intervals were asked for, or there are too few images to tell.

        Resamples of a handful of units, or of images that are all right or all wrong, look more
        certain than they are. There areas have the exact interval of a share of as many images as
        the rarer answer has units, which is never narrower (Var A <= A (1 - A) / min(n+, n-)).
        """
        value = self.value(name, label)
        if value is None or not self._resamples:
            return None
        if name in self._shares or name == "balanced_accuracy":
            return self.share_interval(name, label)
        ends = interval(_of_class(self._resampled[name], label))
        if ends is not None and ends[0] < ends[1] and self._units.max() + 1 >= FEWEST_UNITS:
            return ends
        if name not in self._areas:
            return None
        counted, positive = (_of_class(mask, label) for mask in self._areas[name])
        sides = (counted & positive, counted & ~positive)
        rarer = min(len(np.unique(self._units[side])) for side in sides)
        return exact_interval(value * rarer, rarer)

    def share_interval(self, name: str, label: int | None = None) -> list[float] | None:
        """The interval of a share of images, or of the mean of such shares over the classes."""
        if name == "class/f1":  # F1 = 2 J / (1 + J) of the share J of hits among both
            ends = exact_interval(*self.counts(name, label))
            return ends and [2 * end / (1 + end) for end in ends]
        if name == "balanced_accuracy":
            counted, _ = self._shares["class/recall"]
            classes = np.flatnonzero(counted.any(axis=0)).tolist()
            return mean_interval([self.counts("class/recall", c) for c in classes])
        return exact_interval(*self.counts(name, label))

    def counts(self, name: str, label: int | None = None) -> Counts:
        """Hits and images of a share, as if images were independent."""
        counted, hits = (_of_class(mask, label) for mask in self._shares[name])
        return effective_counts(hits[counted], self._units[counted])

    def difference(self, other: BootstrappedMetrics, name: str) -> dict[str, Any]:
        """The metric of two models on the same images: both, the difference and its interval.

        Their resamples are the same, so the interval is that of paired differences.
        """
        values = [metrics.value(name) for metrics in (self, other)]
        difference = None if None in values else values[0] - values[1]  # type: ignore[operator]
        ends = None
        if difference is not None and self._resamples and self._units.max() + 1 >= FEWEST_UNITS:
            ends = interval(self._resampled[name] - other._resampled[name])
        if ends is not None and ends[0] == ends[1]:  # more certain than it is
            ends = None
        return {"first": values[0], "second": values[1], "difference": difference, "interval": ends}

    def mcnemar(self, other: BootstrappedMetrics) -> dict[str, Any]:
        """For how many units only one model is right, or more often, and the exact p of that."""
        from scipy.stats import binomtest

        hits = [metrics._shares["accuracy"][1].astype(float) for metrics in (self, other)]
        ahead = np.bincount(self._units, weights=hits[0] - hits[1])
        first, second = int((ahead > 0).sum()), int((ahead < 0).sum())
        p = float(binomtest(first, first + second).pvalue) if first + second else 1.0
        return {"first": first, "second": second, "p": p}

    def rows(self, keys: Sequence[str], part: str = "", label: int | None = None) -> dict[str, Any]:
        """The metrics `part` + key by their keys, and under "intervals" their intervals."""
        names = {key: part + key for key in keys}
        return {
            **{key: self.value(name, label) for key, name in names.items()},
            "intervals": {key: self.interval(name, label) for key, name in names.items()},
        }


def resampling_units(count: int, groups: Sequence[str | None] | None = None) -> NDArray[np.int64]:
    """For each image the number of the unit it is drawn with: its group, or itself if it has none.

    >>> resampling_units(4, ["p", None, "p", None]).tolist()
    [0, 1, 0, 2]
    """
    names = groups or [None] * count
    keys = [(0, str(row)) if name is None else (1, name) for row, name in enumerate(names)]
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([order[key] for key in keys], dtype=np.int64)


def resample_weights(
    units: NDArray[np.int64], *, resamples: int, width: int = 1
) -> Iterator[Array]:
    """How often each image occurs in each resample: blocks [r, N], `resamples` rows in total.

    As many units are drawn, with replacement, as there are. `width` is the number of values that
    the caller computes for each row, if that is larger than N.
    """
    rng = np.random.default_rng(0)
    count = int(units.max()) + 1
    rows = max(16, _CELLS // max(len(units), width))  # fewer, larger blocks: each sorts all images
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        drawn = rng.integers(0, count, (size, count)) + count * np.arange(size)[:, None]
        table = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        yield table[:, units].astype(np.float64)


def interval(values: ArrayLike, level: float = LEVEL) -> list[float] | None:
    """The central `level` of resampled values; None if most resamples leave them undefined."""
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    if len(known) < 0.5 * np.size(values) or len(known) < 2:
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return [float(low), float(high)]


def exact_interval(part: float, whole: float, level: float = LEVEL) -> list[float] | None:
    """Clopper-Pearson interval of a share; counts may be the effective ones of clustered images."""
    from scipy.stats import beta

    if whole == 0:
        return None
    tail = (1 - level) / 2
    low = 0.0 if part == 0 else float(beta.ppf(tail, part, whole - part + 1))
    high = 1.0 if part == whole else float(beta.ppf(1 - tail, part + 1, whole - part))
    return [low, high]


def effective_counts(hits: NDArray[np.bool_], units: NDArray[np.int64]) -> Counts:
    """Hits, and images they are a share of, as if all images were independent.

    Images of one patient are alike, so they count for fewer (Korn and Graubard 1998): as many
    independent images as would vary as much, fewer still if there are few patients, and the
    number of patients if all or no images are hits.
    """
    from scipy.stats import t

    images, part = len(hits), int(hits.sum())
    _, unit = np.unique(units, return_inverse=True)
    sizes = np.bincount(unit)
    count = len(sizes)
    if count == images or part in (0, images):
        return (part, images) if count == images else (count if part else 0, count)
    rate = part / images
    if count == 1:
        return rate, 1
    spread = np.bincount(unit, weights=hits) - rate * sizes
    variance = count / (count - 1) * float((spread**2).sum()) / images**2
    quantile = (1 + LEVEL) / 2
    few = (t.ppf(quantile, images - 1) / t.ppf(quantile, count - 1)) ** 2
    effective = min(float(images), rate * (1 - rate) / max(variance, 1e-12) * few)
    return rate * effective, effective


def mean_interval(counts: Sequence[Counts]) -> list[float]:
    """Interval of the mean of independent shares, given as (hits, images) of each.

    Each end is a quantile of the mean of draws from the distributions that bound each share
    alone (Clopper and Pearson), so that few images never look like evidence.
    """
    tail = (1 - LEVEL) / 2
    ends = []
    for upper in (0, 1):  # Beta(hits, misses + 1) below, Beta(hits + 1, misses) above
        rng = np.random.default_rng(0)
        draws = np.zeros((len(counts), _DRAWS))
        for row, (hits, images) in enumerate(counts):
            a, b = hits + upper, images - hits + 1 - upper
            draws[row] = rng.beta(a, b, _DRAWS) if a > 0 and b > 0 else float(a > 0)
        ends.append(float(np.quantile(draws.mean(axis=0), 1 - tail if upper else tail)))
    return ends


def _of_class(table: Any, label: int | None) -> Any:
    return table if label is None else table[:, label]


def class_metrics(
    judged: LabelledPredictions,
    p: NDArray[np.float32],
    *,
    graded: Sequence[int] = (),
    resamples: int,
) -> BootstrappedMetrics:
    """The metrics of classes; of single ones named "class/...", of screening "screening/..."."""
    labels, classes = judged.labels, np.arange(len(judged.class_names))
    pairs = labels * len(classes) + p.argmax(axis=1)
    briers, losses = brier_rows(labels, p), nll_rows(labels, p)

    def measure(w: Array) -> dict[str, Array]:
        """For weights of images [R, N]: [R] values each, [R, C] for single classes."""
        rows = [np.bincount(pairs, weights=row, minlength=len(classes) ** 2) for row in w]
        table = np.stack(rows).reshape(-1, len(classes), len(classes))
        columns = np.stack([auroc(labels == c, p[:, c], w) for c in classes], axis=1)
        metrics = {
            **summary_columns(table, graded=graded),
            "auroc": mean_of_known(columns),
            "brier": w @ briers / w.sum(axis=1),
            "nll": w @ losses / w.sum(axis=1),
            **{f"class/{key}": value for key, value in class_columns(table).items()},
            "class/auroc": columns,
        }
        if judged.normal:
            screening = screening_columns(labels, p, judged.normal, w)
            metrics |= {f"screening/{key}": value for key, value in screening.items()}
        return metrics

    truth, predicted = (row[:, None] == classes for row in (labels, p.argmax(axis=1)))
    every = np.ones(len(truth), dtype=bool)
    shares = {
        "accuracy": (every, (truth & predicted).any(axis=1)),
        "class/recall": (truth, predicted),
        "class/precision": (predicted, truth),
        "class/specificity": (~truth, ~predicted),
        "class/f1": (truth | predicted, truth & predicted),
    }
    areas = {"class/auroc": (np.ones_like(truth), truth)}
    if judged.normal:
        diseased, flagged = screening_masks(labels, p, judged.normal)
        shares |= {
            "screening/sensitivity": (diseased, flagged),
            "screening/specificity": (~diseased, ~flagged),
        }
        areas["screening/auroc"] = (every, diseased)
    return BootstrappedMetrics(
        measure,
        resampling_units(len(p), judged.groups),
        resamples=resamples,
        width=len(classes) ** 2,
        shares=shares,
        areas=areas,
    )
