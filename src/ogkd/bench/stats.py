"""Whether two methods differ: paired bootstrap over seeds and test images of each dataset.

Datasets are not resampled: the result is about these datasets, not about others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.analysis import harmonic_mean
from ogkd.bench.render import markdown_row
from ogkd.bench.runs import FinishedRun, Plan, RunsFolder, same_images
from ogkd.bench.tidy import Condition, condition_of
from ogkd.errors import ConfigError, DataError
from ogkd.methods import METHODS

_LEVEL = 0.95  # of intervals
Correct = NDArray[np.float32]  # [2, S, N]: 1 if a method was right, by method, seed and image


@dataclass(frozen=True)
class DatasetDifference:
    """The difference on one dataset, as fractions: 0.01 is one point of accuracy."""

    dataset: str
    a: float
    b: float
    low: float
    high: float
    p: float
    seeds: int
    images: int

    @property
    def mean(self) -> float:
        """How much better `a` is."""
        return self.a - self.b


@dataclass(frozen=True)
class Difference:
    """How much better `a` is than `b`, averaged over datasets."""

    mean: float
    low: float
    high: float
    p: float  # two-sided
    per_dataset: tuple[DatasetDifference, ...]
    left_out: tuple[str, ...] = ()  # datasets that only one of them has, or without a common seed


@dataclass(frozen=True)
class Differences:
    """The columns of a table that were compared, and the reasons why others were not."""

    columns: Mapping[Condition, Difference]
    missing: Mapping[Condition, str]


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
    if resamples < 100:
        raise ConfigError("Use at least 100 resamples.", argument="resamples")
    a, b = _by_dataset(runs_a), _by_dataset(runs_b)
    if not set(a) & set(b):
        raise DataError("The two methods have no finished runs on the same dataset.")
    pairs = {name: _paired(a[name], b[name]) for name in a if name in b}
    pairs = {name: pair for name, pair in pairs.items() if pair[0]}
    left_out = tuple(name for name in dict.fromkeys((*a, *b)) if name not in pairs)
    if not pairs:
        raise DataError(f"The two methods have no common seed on {', '.join(left_out)}.")
    rng = np.random.default_rng(seed)
    per_dataset, draws = [], []
    for name, pair in pairs.items():
        chosen = part or ("test" if "test" in pair[0][0].parts else "hm")
        names = ("base", "novel") if chosen == "hm" else (chosen,)
        tables = [_right(pair, piece) for piece in names]
        means, drawn = resample(tables, resamples=resamples, rng=rng)
        difference = drawn[0] - drawn[1]
        low, high, p = _interval(means[0] - means[1], difference)
        seeds, images = len(pair[0]), sum(table.shape[2] for table in tables)
        per_dataset.append(DatasetDifference(name, *means, low, high, p, seeds, images))
        draws.append(difference)
    mean = float(np.mean([difference.mean for difference in per_dataset]))
    low, high, p = _interval(mean, np.mean(draws, axis=0))
    return Difference(mean, low, high, p, tuple(per_dataset), left_out)


def compare_labels(
    folder: RunsFolder, plan: Plan, a: str, b: str, *, part: str | None = None
) -> Differences:
    """Row `a` minus row `b` of a plan's table, for each column that both were planned in.

    A column that cannot be compared (yet) is listed with the reason; DataError if none can.
    """
    planned: dict[str, dict[Condition, None]] = {}  # the columns of each row, in the plan's order
    for cell in plan.cells:
        planned.setdefault(cell.label, {})[condition_of(cell.spec, plan.sweep)] = None
    for label in (a, b):
        if label not in planned:
            raise ConfigError(f"Plan '{plan.name}' has no row '{label}'.", argument="methods")
    sides: dict[str, dict[Condition, list[FinishedRun]]] = {a: {}, b: {}}
    for label, run in folder.finished(plan, predictions=True):
        if label in sides:
            sides[label].setdefault(condition_of(run.spec, plan.sweep), []).append(run)
    columns: dict[Condition, Difference] = {}
    missing: dict[Condition, str] = {}
    for condition in (column for column in planned[a] if column in planned[b]):
        if lacking := [label for label in (a, b) if condition not in sides[label]]:
            missing[condition] = f"No finished runs of {' and '.join(lacking)}."
            continue
        try:
            both = sides[a][condition], sides[b][condition]
            columns[condition] = compare_methods(*both, part=part)
        except DataError as error:
            missing[condition] = str(error)
    if not columns:
        reasons = [f"{condition}: {reason}" for condition, reason in missing.items()]
        why = " ".join(reasons) or "They have no common column."
        raise DataError(f"'{a}' and '{b}' cannot be compared in '{plan.name}'. {why}")
    return Differences(columns, missing)


def differences_markdown(differences: Differences, a: str, b: str) -> str:
    """The differences in percentage points: the mean of each column, then its datasets."""
    lines = [markdown_row([f"{a} minus {b}", "datasets", "difference", "interval", "p"])]
    lines.append("|---|---|---:|---:|---:|")
    for condition, difference in differences.columns.items():
        rows: list[tuple[str, Difference | DatasetDifference]]
        rows = [(f"mean of {len(difference.per_dataset)}", difference)]
        rows += [(single.dataset, single) for single in difference.per_dataset]
        for name, row in rows:
            mean, low, high = (f"{100 * number:+.2f}" for number in (row.mean, row.low, row.high))
            p = f"{row.p:.3f}" if row.p >= 0.001 else "< 0.001"
            lines.append(markdown_row([str(condition), name, mean, f"{low} to {high}", p]))
    without = {
        key: ", ".join(difference.left_out)
        for key, difference in differences.columns.items()
        if difference.left_out
    }
    notes = [
        f"- {key}: without {names}, on which they have no common runs."
        for key, names in without.items()
    ]
    notes += [f"- {key}: not compared. {reason}" for key, reason in differences.missing.items()]
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
        by_seed = by_dataset.setdefault(run.spec.dataset, {})
        if run.spec.seed in by_seed:
            raise ConfigError(
                f"Two runs on {run.spec.dataset} have seed {run.spec.seed}: {run.spec} and "
                f"{by_seed[run.spec.seed].spec}. Compare one setting with one other setting."
            )
        by_seed[run.spec.seed] = run
    return by_dataset


def _paired(
    a: Mapping[int, FinishedRun], b: Mapping[int, FinishedRun]
) -> tuple[list[FinishedRun], list[FinishedRun]]:
    """Runs of both, seed by seed; none if they have no common seed."""
    seeds = set(a) & set(b)
    if _same_in_all(a) or _same_in_all(b):
        seeds = set(b if _same_in_all(a) else a)
    firsts = next(iter(a.values())), next(iter(b.values()))
    order = sorted(seeds)
    return [a.get(seed, firsts[0]) for seed in order], [b.get(seed, firsts[1]) for seed in order]


def _same_in_all(runs: Mapping[int, FinishedRun]) -> bool:
    method = METHODS.get(next(iter(runs.values())).spec.method)
    return method is not None and not method.needs_images


def _right(pair: tuple[list[FinishedRun], list[FinishedRun]], part: str) -> Correct:
    runs = [*pair[0], *pair[1]]
    for run in runs:
        if part not in run.parts:
            raise ConfigError(f"{run.spec} has no part '{part}'. It has: {', '.join(run.parts)}.")
    predictions = same_images(runs, part)
    rows = [
        prediction.probabilities.argmax(axis=1) == prediction.labels for prediction in predictions
    ]
    return np.stack(rows).astype(np.float32).reshape(2, len(pair[0]), -1)
