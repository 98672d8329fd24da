"""How accuracy grows with labels: refits on fewer of the labelled images, a forecast for more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.core.pooling import is_pooled
from ogkd.data.case import case_numbers
from ogkd.errors import ConfigError, DataError
from ogkd.features.store import FeatureStore
from ogkd.fitting.prepare import prepare, whole_rows
from ogkd.fitting.request import FitRequest
from ogkd.progress import progress_bar

_HELD_OUT = 0.25  # of each class's images, at least
_LEVEL = 0.9  # of intervals
_RESAMPLES = 500
Forecast = tuple[float, float, float]  # the estimate and the ends of its interval


@dataclass(frozen=True)
class LearningCurve:
    """Which held-out images are right, by the number of labels per class.

    >>> rng = np.random.default_rng(0)
    >>> right = rng.random((3, 5, 4000)) > np.array([0.4, 0.2, 0.1])[:, None, None]
    >>> curve = LearningCurve((1, 2, 4), right.astype(float))
    >>> [round(value, 2) for value in curve.forecast(8)]
    [0.95, 0.94, 0.95]
    """

    labels: tuple[int, ...]  # per class
    right: NDArray[np.float64]  # [labels, repeats, images]: 1 or 0; NaN where it was learned from
    groups: NDArray[np.int64] | None = None  # [images]: patients, which are resampled whole

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Of each fit: [labels, repeats]."""
        return np.asarray(np.nanmean(self.right, axis=2))

    def forecast(self, labels: float) -> Forecast:
        """Accuracy of a fit with so many labels per class on new images, with an interval (90 %).

        The error is a power of the number of labels, error = a labels^-b with b >= 0. The interval
        is that of resampled images (or patients), with the spread of single fits around their mean.
        """
        rng = np.random.default_rng(0)
        means = [self._extrapolate(row, labels) for row in self._resampled(rng)]
        values = np.clip(np.array(means) + self._spread(-1, rng), 0, 1)
        return self._extrapolate(self.accuracy.mean(axis=1), labels), *_ends(values)

    def _resampled(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Accuracy of resampled images and repeats: [resamples, labels]."""
        images = self.right.shape[2]
        groups = np.arange(images) if self.groups is None else self.groups
        count = int(groups.max()) + 1
        weights = rng.multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)[:, groups]
        repeats = self.right.shape[1]
        times = rng.multinomial(repeats, np.full(repeats, 1 / repeats), size=_RESAMPLES)
        rows = []
        for right in self.right:
            seen, hits = (~np.isnan(right)).astype(float), np.nan_to_num(right)
            judged = np.einsum("br,rn,bn->b", times, seen, weights, optimize=True)
            correct = np.einsum("br,rn,bn->b", times, hits, weights, optimize=True)
            mean = np.full(_RESAMPLES, np.nanmean(right))  # where no judged image was drawn
            rows.append(np.divide(correct, judged, out=mean, where=judged > 0))
        return np.stack(rows, axis=1)

    def _spread(self, row: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draws of how far a single fit is from the mean of fits, without the noise of images."""
        values = self.accuracy[row]
        mean, variance = values.mean(), values.var(ddof=1)
        judged = (~np.isnan(self.right[row])).sum(axis=1)
        noise = (mean * (1 - mean) / judged).mean()
        share = max(0.0, 1 - noise / variance) if variance > 0 else 0.0
        return np.asarray(np.sqrt(share) * rng.choice(values - mean, size=_RESAMPLES))

    def _extrapolate(self, accuracy: NDArray[np.float64], labels: float) -> float:
        least = 0.5 / (self.right.shape[2] + 1)  # half an error, where none was seen
        x, y = np.log(self.labels), np.log(np.maximum(1 - accuracy, least))
        x0, y0 = x.mean(), y.mean()
        slope = min(0.0, float(((x - x0) * (y - y0)).sum() / ((x - x0) ** 2).sum()))
        return 1 - min(1.0, float(np.exp(y0 + slope * (np.log(labels) - x0))))

    def __str__(self) -> str:
        """What it says, for people."""
        most, now = self.labels[-1], self.rows()[-1]
        return (
            f"With {most} labels per class, {100 * now['accuracy']:.0f} % of new images would be "
            f"right ({100 * now['low']:.0f} to {100 * now['high']:.0f} %). {self.outlook(most)}"
        )

    def outlook(self, labels: int) -> str:
        """What as many labels again would give: the one sentence of Python, `start` and reports."""
        _, low, high = self.forecast(2 * labels)
        return (
            f"Another {labels} labels per class would give {100 * low:.0f} to {100 * high:.0f} %."
        )

    def rows(self) -> list[dict[str, float]]:
        """One record for each number of labels: the mean over refits, and its interval (90 %)."""
        rng = np.random.default_rng(0)
        resampled, records = self._resampled(rng), []
        for row, labels in enumerate(self.labels):
            low, high = _ends(np.clip(resampled[:, row] + self._spread(row, rng), 0, 1))
            mean = float(self.accuracy[row].mean())
            records.append({"labels": labels, "accuracy": mean, "low": low, "high": high})
        return records

    def plot(self, ax: Any = None) -> Any:
        """Draw the curve, and the forecast for twice as many labels, into matplotlib axes."""
        import matplotlib.pyplot as plt

        ax = ax or plt.gca()
        rows = self.rows()
        x = [row["labels"] for row in rows]
        (line,) = ax.plot(x, [100 * row["accuracy"] for row in rows], marker="o", label="refits")
        ends = [[100 * row[end] for row in rows] for end in ("low", "high")]
        ax.fill_between(x, *ends, alpha=0.2, color=line.get_color(), linewidth=0)
        estimate, low, high = (100 * value for value in self.forecast(2 * x[-1]))
        ax.errorbar(
            2 * x[-1], estimate, [[estimate - low], [high - estimate]], marker="o",
            color=line.get_color(), mfc="white", linestyle="--", capsize=3, label="forecast",
        )  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set_xticks([*x, 2 * x[-1]], [str(n) for n in [*x, 2 * x[-1]]])
        ax.set(xlabel="labels per class", ylabel="accuracy on held-out images (%)")
        ax.legend()
        return ax


def learning_curve(data: Any, *, repeats: int = 10, **options: Any) -> LearningCurve:
    """Refit on 1, 2, 4, ... labels per class and judge each fit on the images it did not see.

    Args:
        data: labelled images, as for `fit`.
        repeats: random draws of the images to learn from; copies of these, and other images of
            the same patients, if the data names them, are not judged on.
        options: those of `fit`, such as method, backbone or shots.

    Example:
        >>> print(ogkd.learning_curve("my_images/"))  # doctest: +SKIP
    """
    if repeats < 2:
        raise ConfigError(f"repeats is {repeats}; at least 2 show a spread.", argument="repeats")
    prepared = prepare(FitRequest(data, **options))
    method, task, support = prepared.method, prepared.task, prepared.support
    cases = prepared.drawn.support
    if task.needs or is_pooled(torch.from_numpy(case_numbers(cases))):
        raise ConfigError(
            "A learning curve needs single images of several classes.", argument="data"
        )
    if support is None or method.needs_training or method.needs_pixels:
        raise ConfigError(
            f"{method.name} learns nothing from images, or for minutes: choose another method.",
            argument="method",
        )
    labels = support.support.labels
    store = FeatureStore(prepared.backbone)
    rows = whole_rows(store, cases, deep=method.uses_deep(prepared.backbone))
    smallest = int(np.bincount(labels.numpy(), minlength=len(task.names)).min())
    sizes = [2**n for n in range(20) if 2**n <= (1 - _HELD_OUT) * smallest]
    if len(sizes) < 2:
        raise DataError("A learning curve needs at least three images of each class.")
    # Copies of an image count as one patient: none is judged by a model that learned from another.
    patients = np.array([case.group or case.fingerprint for case in cases])
    right = np.full((len(sizes), repeats, len(cases)), np.nan)
    with progress_bar("Learning curve", len(sizes) * repeats) as bar:
        for column in range(repeats):
            order = np.random.default_rng(column).permutation(len(cases))
            by_class = [order[labels.numpy()[order] == label] for label in range(len(task.names))]
            for row, size in enumerate(sizes):
                chosen = np.concatenate([members[:size] for members in by_class])
                held = torch.from_numpy(~np.isin(patients, patients[chosen]))
                if not bool(held.any()):
                    continue
                part = support.support.subset(torch.from_numpy(chosen))
                head = method.fit(part, prepared.texts[0], seed=prepared.request.seed)
                answers = head.of_rows(rows[held]).argmax(dim=-1)
                right[row, column, held.numpy()] = (answers == labels[held]).numpy()
                bar.advance()
    judged = (~np.isnan(right)).any(axis=2).all(axis=1)  # not where all patients were needed
    if judged.sum() < 2:
        raise DataError("A learning curve needs images of more patients.")
    sizes, right = [size for size, kept in zip(sizes, judged, strict=True) if kept], right[judged]
    groups = np.unique(patients, return_inverse=True)[1]
    return LearningCurve(tuple(sizes), right, groups)


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)
