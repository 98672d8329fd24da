"""Whether two methods differ: paired bootstrap over seeds and test images of each dataset.

Datasets are not resampled: the result is about these datasets, not about others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.analysis import harmonic_mean, right
from ogkd.bench.runs import FinishedRun, Plan, RunsFolder, same_images
from ogkd.bench.tidy import Condition, condition_of, indistinguishable, markdown_row, measured
from ogkd.errors import ConfigError, DataError
from ogkd.methods import METHODS

_LEVEL = 0.95  # of intervals
Correct = NDArray[np.float32]  # [2, S, N]: 1 if a method was right, by method, seed and image


@dataclass(frozen=True)
class Difference:
    """How much better `a` is than `b`, as fractions: 0.01 is one point of accuracy."""

    name: str  # a dataset, or "mean of 2"
    a: float
    b: float
    low: float
    high: float
    p: float  # two-sided
    seeds: int = 0
    images: int = 0
    per_dataset: tuple[Difference, ...] = ()
    left_out: tuple[str, ...] = ()  # datasets that only one of them has, or without a common seed

    @property
    def mean(self) -> float:
        rows = self.per_dataset or (self,)
        return float(np.mean([row.a - row.b for row in rows]))


def compare_methods(
    runs_a: Sequence[FinishedRun],
    runs_b: Sequence[FinishedRun],
    *,
    part: str | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Difference:
    """Accuracy of `a` minus that of `b` on the datasets and seeds that both have.

    `part` is "test", "base", "novel" or "hm" (the harmonic mean of the last two); by default
    "test" if there is one, else "hm". A method that learns nothing is the same in every seed.
    Datasets that only one of them has, or without a common seed, are left out and listed.
    """
    a, b = _by_dataset(runs_a), _by_dataset(runs_b)
    pairs = {name: _paired(a[name], b[name]) for name in a if name in b}
    pairs = {name: pair for name, pair in pairs.items() if pair[0]}
    left_out = tuple(name for name in dict.fromkeys((*a, *b)) if name not in pairs)
    if not pairs:
        raise DataError(f"The two methods have no common seed on {', '.join(left_out)}.")
    rng = np.random.default_rng(seed)
    per_dataset, draws = [], []
    for name, pair in pairs.items():
        chosen = part or ("test" if "test" in pair[0][0].parts else "hm")
        tables = [_right(pair, piece) for piece in measured(chosen)]
        means, drawn = resample(tables, resamples=resamples, rng=rng)
        draws.append(drawn[0] - drawn[1])
        interval = _interval(means[0] - means[1], draws[-1])
        seeds, images = len(pair[0]), sum(table.shape[2] for table in tables)
        per_dataset.append(Difference(name, *means, *interval, seeds, images))
    mean = float(np.mean([row.mean for row in per_dataset]))
    return Difference(
        f"mean of {len(per_dataset)}",
        float(np.mean([row.a for row in per_dataset])),
        float(np.mean([row.b for row in per_dataset])),
        *_interval(mean, np.mean(draws, axis=0)),
        per_dataset=tuple(per_dataset),
        left_out=left_out,
    )


def compare_labels(
    folder: RunsFolder, plan: Plan, a: str, b: str, *, part: str | None = None
) -> tuple[dict[Condition, Difference], dict[Condition, str]]:
    """Row `a` minus row `b` of a plan's table, for each column that both were planned in.

    A column that cannot be compared (yet) is listed with the reason; DataError if none can.
    """
    planned: dict[str, dict[Condition, None]] = {}  # the columns of each row, in the plan's order
    for cell in plan.cells:
        planned.setdefault(cell.label, {})[condition_of(cell.spec, plan.sweep)] = None
    for label in (a, b):
        if label not in planned:
            raise ConfigError(f"Plan '{plan.name}' has no row '{label}'.", argument="methods")
    runs: dict[tuple[str, Condition], list[FinishedRun]] = {}
    for label, run in folder.finished(plan, predictions=True):
        runs.setdefault((label, condition_of(run.spec, plan.sweep)), []).append(run)
    columns: dict[Condition, Difference] = {}
    missing: dict[Condition, str] = {}
    for condition in (column for column in planned[a] if column in planned[b]):
        both = [runs.get((label, condition), []) for label in (a, b)]
        try:
            if not all(both):
                raise DataError("Runs are missing.")
            columns[condition] = compare_methods(*both, part=part)
        except DataError as error:
            missing[condition] = str(error)
    if not columns:
        why = " ".join(f"{condition}: {reason}" for condition, reason in missing.items())
        raise DataError(f"'{a}' and '{b}' cannot be compared in '{plan.name}'. {why}")
    return columns, missing


def differences_markdown(
    columns: Mapping[Condition, Difference], missing: Mapping[Condition, str], a: str, b: str
) -> str:
    """The differences in percentage points: the mean of each column, then its datasets."""
    lines = [markdown_row([f"{a} minus {b}", "datasets", "difference", "interval", "p"])]
    lines.append("|---|---|---:|---:|---:|")
    notes = []
    for condition, difference in columns.items():
        for row in (difference, *difference.per_dataset):
            mean, low, high = (f"{100 * number:+.2f}" for number in (row.mean, row.low, row.high))
            p = f"{row.p:.3f}" if row.p >= 0.001 else "< 0.001"
            lines.append(markdown_row([str(condition), row.name, mean, f"{low} to {high}", p]))
        if difference.left_out:
            names = ", ".join(difference.left_out)
            notes.append(f"- {condition}: without {names}, on which they have no common runs.")
    notes += [f"- {key}: not compared. {reason}" for key, reason in missing.items()]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def resample(
    parts: Sequence[Correct], *, resamples: int, rng: np.random.Generator
) -> tuple[tuple[float, float], NDArray[np.float64]]:
    """Accuracy of two methods on one dataset, and [2, R] of the same for resampled runs.

    `parts` is one pair, or those of the base and novel classes, of which the harmonic mean is
    taken. Both methods get the same resampled seeds and images.
    """
    seeds = parts[0].shape[1]
    weights = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds  # [R, S]
    means = [pair.mean(axis=(1, 2), dtype=np.float64) for pair in parts]  # [2] each
    drawn = [
        mean[:, None] + _of_seeds(pair, weights) + _of_images(pair, resamples, rng)
        for pair, mean in zip(parts, means, strict=True)
    ]
    if len(parts) == 1:
        return (float(means[0][0]), float(means[0][1])), drawn[0]
    a, b = (harmonic_mean(float(means[0][side]), float(means[1][side])) for side in (0, 1))
    base, novel = (np.maximum(part, 1e-9) for part in drawn)
    return (a, b), 2 * base * novel / (base + novel)


def _of_seeds(pair: Correct, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far the means of resampled seeds are from the mean: [2, R].

    Resampling both the seeds and the images of one table counts the noise that belongs to neither
    three times (Owen 2007, the pigeonhole bootstrap), and S seeds show (S - 1) / S of their
    variance. So deviations are scaled to the variance of seeds alone; images add the rest.
    """
    _, seeds, images = pair.shape
    if seeds == 1:
        return np.zeros((2, len(weights)))  # one seed does not show how seeds vary
    difference = (pair[0] - pair[1]).astype(np.float64)
    rows, columns = difference.mean(axis=1), difference.mean(axis=0)
    noise = difference - rows[:, None] - columns + difference.mean()
    between = float(rows.var(ddof=1))
    within = float((noise**2).sum()) / max(1, (seeds - 1) * (images - 1)) / images
    share = max(0.0, 1 - within / between) if between > 0 else 0.0
    deviations = pair.mean(axis=2, dtype=np.float64)  # [2, S]
    deviations -= deviations.mean(axis=1, keepdims=True)
    scale = math.sqrt(share * seeds / (seeds - 1))
    return np.asarray(scale * deviations @ weights.T)


def _of_images(pair: Correct, resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """How far the means of resampled images are from the mean: [2, R]."""
    _, seeds, images = pair.shape
    hits = pair.sum(axis=1).astype(np.int64)  # [2, N]: how often right, of S seeds
    # Images with equal hits are the same to the bootstrap: a few kinds instead of N images.
    kinds, counts = np.unique(hits[0] * (seeds + 1) + hits[1], return_counts=True)
    shares = np.stack(np.divmod(kinds, seeds + 1)) / seeds  # [2, kinds]
    drawn = rng.multinomial(images, counts / images, size=resamples)  # [R, kinds]
    return np.asarray(shares @ (drawn - counts).T / images)


def _interval(mean: float, draws: NDArray[np.float64]) -> tuple[float, float, float]:
    """The interval and the two-sided p of a difference."""
    low, high = np.quantile(draws, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    # Without a difference, the draws would be around 0 as they are around the mean.
    beyond = np.sum(np.abs(draws - mean) >= abs(mean) - 1e-12)
    return float(low), float(high), float((beyond + 1) / (len(draws) + 1))


def _by_dataset(runs: Sequence[FinishedRun]) -> dict[str, dict[int, FinishedRun]]:
    by_dataset: dict[str, dict[int, FinishedRun]] = {}
    for run in runs:
        other = by_dataset.setdefault(run.spec.dataset, {}).setdefault(run.spec.seed, run)
        if other is not run:
            raise indistinguishable(run.spec.method, other.spec, run.spec)
    return by_dataset


def _paired(
    a: Mapping[int, FinishedRun], b: Mapping[int, FinishedRun]
) -> tuple[list[FinishedRun], list[FinishedRun]]:
    """Runs of both, seed by seed; none if they have no common seed."""
    first_a, first_b = next(iter(a.values())), next(iter(b.values()))
    methods = (METHODS.get(run.spec.method) for run in (first_a, first_b))
    learns = [method is None or method.needs_images for method in methods]
    seeds = set(a) & set(b) if all(learns) else set(a if learns[0] else b)
    order = sorted(seeds)
    return [a.get(seed, first_a) for seed in order], [b.get(seed, first_b) for seed in order]


def _right(pair: tuple[list[FinishedRun], list[FinishedRun]], part: str) -> Correct:
    predictions = same_images([*pair[0], *pair[1]], part)
    rows = [right(prediction.probabilities, prediction.labels) for prediction in predictions]
    return np.stack(rows).astype(np.float32).reshape(2, len(pair[0]), -1)
