"""Our averages beside the published numbers, and two methods by a paired bootstrap.

Of the paper only means are compared: its ± is probably another spread than ours (see tidy.py).
"""

from __future__ import annotations

import csv
import functools
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.runs import FinishedRun, FrozenRecord, Plan, RunsFolder, same_images
from ogkd.bench.sources import benchmark_of, paper
from ogkd.bench.tidy import (
    Average,
    Condition,
    Summary,
    changed_settings,
    condition_of,
    harmonic_mean,
    indistinguishable,
    markdown_row,
    measured,
    prompts_used,
    right,
)
from ogkd.data.catalog import benchmarks, plain_name
from ogkd.errors import ConfigError, DataError
from ogkd.methods import METHODS

AVERAGE = "average"
_ROUNDING = 0.02  # by how much a recomputed average may differ from the printed one
_LEVEL = 0.95  # of intervals


class Published(FrozenRecord):
    """One printed number, in percent."""

    table: str
    dataset: str  # as in the catalogue, or "average"
    method: str  # as in our registry
    shots: int | None = None  # None: the method needs none
    part: str  # test, base, novel, hm
    flips: int
    setting: str = ""  # the row of an ablation
    metric: str  # accuracy, or accuracy_gain: the paper's method minus its baseline
    value: float
    std: float | None = None


@functools.cache
def published() -> tuple[Published, ...]:
    """Every number in the paper's result tables."""
    folder = files("ogkd.bench") / "published"
    return tuple(
        Published.model_validate({key: value for key, value in row.items() if value})
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".csv")
        for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
    )


@dataclass(frozen=True)
class Comparison:
    """Our average beside the published number; no difference if they are not comparable."""

    label: str
    condition: Condition
    part: str  # test, base, novel, hm; of an average also mean-hm (see tidy.py)
    published: Published
    average: Average
    comparable: bool
    note: str

    @property
    def ours(self) -> float:
        """In percent."""
        return 100 * self.average.value

    @property
    def difference(self) -> float | None:
        return self.ours - self.published.value if self.comparable else None


def compare_with_published(folder: RunsFolder, plan: Plan) -> list[Comparison]:
    """Accuracy of every cell that the paper prints too: each dataset, then the average."""
    runs = folder.finished(plan)
    summary = Summary(plan, runs)
    names: dict[str, str] = {}  # if two of our datasets are the same benchmark, the first one
    for cell in plan.cells:
        if name := benchmark_of(cell.spec):
            names.setdefault(name, cell.spec.dataset)
    different = {run.spec.dataset: how for _, run in runs if (how := _difference(run))}
    methods = {cell.label: cell.spec.method for cell in plan.cells}
    comparisons: list[Comparison] = []
    for label in summary.labels:
        for condition in summary.conditions:
            if condition.value is not None:
                continue  # a swept setting: the paper has figures of these, but no tables
            theirs = _candidates(plan, label, methods[label], condition)
            parts = summary.parts(condition)
            for part in [*parts, *(["hm", "mean-hm"] if "novel" in parts else [])]:
                row = _Row(summary, label, condition, part, theirs)
                comparisons += row.comparisons(names, different)
    return comparisons


def _difference(run: FinishedRun) -> str:
    """How a run's images or classes differ from the benchmark's; "" if they do not."""
    if run.spec.judge == "val":
        return "validation images"
    name = benchmark_of(run.spec)
    if name is None:
        return ""
    record = benchmarks()[name]
    classes = {part: {plain_name(text) for text in run.class_names(part)} for part in run.parts}
    if set().union(*classes.values()) != {plain_name(text) for text in record.class_names}:
        return "other classes"
    if "base" in classes and classes["base"] != {plain_name(text) for text in record.base_classes}:
        return "other base classes"
    return ""


def _candidates(plan: Plan, label: str, method: str, condition: Condition) -> list[Published]:
    """The published numbers of a row under a condition; an ablation's rows match by label."""
    rows = [row for row in published() if row.metric == "accuracy" and row.flips == condition.flips]
    rows = [row for row in rows if row.shots in (None, condition.shots)]
    if plan.table == "ablation":
        return [row for row in rows if row.setting and plain_name(row.setting) == plain_name(label)]
    return [row for row in rows if not row.setting and row.method == method]


@dataclass(frozen=True)
class _Row:
    """One row of a plan under one condition, with everything that the paper prints for it."""

    summary: Summary
    label: str
    condition: Condition
    part: str
    theirs: Sequence[Published]

    @property
    def every(self) -> list[str]:
        """The benchmarks that the paper averages over."""
        records = benchmarks().items()
        return [name for name, record in records if record.base_to_novel or self.part == "test"]

    def comparisons(
        self, names: Mapping[str, str], different: Mapping[str, str]
    ) -> Iterator[Comparison]:
        """`names` are our datasets by benchmark; `different` says how one's classes differ."""
        printed = {
            row.dataset: row for row in self.theirs if row.part == self.part.removeprefix("mean-")
        }
        # The paper has no base-to-novel numbers of some benchmarks.
        theirs = self.every if len(printed) == 1 else printed
        wanted = self.summary.wanted(self.condition, self.part)
        ours = {name: names[name] for name in theirs if names.get(name) in wanted}
        if self.part != "mean-hm":
            yield from self._datasets(printed, ours, different)
        # A single printed average does not say which mean of HMs it is; the paper's text has "hm".
        if AVERAGE in printed and (self.part != "mean-hm" or len(printed) > 1):
            yield from self._averages(printed, ours, different)

    def _datasets(
        self,
        printed: Mapping[str, Published],
        ours: Mapping[str, str],
        different: Mapping[str, str],
    ) -> Iterator[Comparison]:
        for name, dataset in ours.items():
            average = self._average([dataset])
            if average is not None and name in printed:
                notes = [] if average.complete else [f"{average.done} of {average.planned} runs"]
                notes += [different[dataset]] if dataset in different else []
                yield self._beside(printed[name], average, not notes, notes)

    def _averages(
        self,
        printed: Mapping[str, Published],
        ours: Mapping[str, str],
        different: Mapping[str, str],
    ) -> Iterator[Comparison]:
        """The average over the datasets with the benchmark's classes, on both sides."""
        same = [name for name, dataset in ours.items() if dataset not in different]
        average = self._average([ours[name] for name in same])
        if average is None:
            return
        row, notes, comparable = printed[AVERAGE], [], average.complete
        if len(printed) > 1:
            row = row.model_copy(update={"value": self._published_average(same)})
            if len(same) < len(self.every):
                notes = [f"both over {len(same)} datasets"]
            elif abs(row.value - printed[AVERAGE].value) > _ROUNDING:
                notes = [f"printed: {printed[AVERAGE].value:.2f}"]
        elif set(same) != set(self.every):
            notes = [f"ours: {len(same)} of {len(self.every)} datasets"]
            comparable = False
        notes += [] if average.complete else ["runs are missing"]
        other = [f"{name} ({different[ours[name]]})" for name in ours if name not in same]
        notes += [f"left out: {', '.join(other)}"] if other else []
        yield self._beside(row, average, comparable, notes)

    def _average(self, datasets: Sequence[str]) -> Average | None:
        return self.summary.average(self.label, self.condition, self.part, datasets)

    def _beside(
        self, row: Published, average: Average, comparable: bool, notes: Sequence[str]
    ) -> Comparison:
        note = "; ".join(notes)
        return Comparison(self.label, self.condition, self.part, row, average, comparable, note)

    def _published_average(self, datasets: Sequence[str]) -> float:
        """Recomputed from the published rows of some datasets: the paper mixes two means of HMs."""

        def mean(part: str) -> float:
            values = {row.dataset: row.value for row in self.theirs if row.part == part}
            return sum(values[dataset] for dataset in datasets) / len(datasets)

        if self.part == "hm":
            return harmonic_mean(mean("base"), mean("novel"))
        return mean(self.part.removeprefix("mean-"))


def published_markdown(folder: RunsFolder, plan: Plan) -> str:
    """The comparison with the published numbers as Markdown."""
    rows = compare_with_published(folder, plan)
    if not rows:
        return "None of these runs has a counterpart in the paper's tables.\n"
    labels = {row.label for row in rows}
    backbones = {cell.spec.backbone for cell in plan.cells if cell.label in labels}
    prompts = prompts_used(run for label, run in folder.finished(plan) if label in labels)
    other = any(words.partition(" (")[0] != paper().prompts for words in prompts.split(", "))
    settings, names = changed_settings(plan), ", ".join(sorted(backbones))
    lines = [
        f"Our backbone: {names}. The published numbers': {paper().backbone}.",
        f"Our prompts: {prompts}. The published numbers': {paper().prompts}."
        + (" Differences are also those of the prompts." if other else ""),
        *([f"Our settings: {settings}."] if settings else []),
        "",
        "| table | dataset | method | K | flips | part | ours | published | difference | note |",
        "|---|---|---|---:|---:|---|---:|---:|---:|---|",
    ]
    for row in rows:
        theirs, shots = row.published, row.condition.shots
        lines.append(
            markdown_row(
                [
                    *(theirs.table, theirs.dataset, row.label, "" if shots is None else str(shots)),
                    *(str(row.condition.flips), row.part, f"{row.ours:.2f}", f"{theirs.value:.2f}"),
                    *("" if row.difference is None else f"{row.difference:+.2f}", row.note),
                ]
            )
        )
    return "\n".join(lines) + "\n"


# Whether two methods differ: a bootstrap over seeds and test images of each dataset. Datasets are
# not resampled: the result is about these datasets, not about others.

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


def paired_runs(
    runs_a: Sequence[FinishedRun], runs_b: Sequence[FinishedRun]
) -> dict[str, tuple[list[FinishedRun], list[FinishedRun]]]:
    """By dataset, the runs of two methods seed by seed, where both have a common seed.

    A method that learns nothing is the same in every seed.
    """
    by_dataset: dict[str, tuple[dict[int, FinishedRun], dict[int, FinishedRun]]] = {}
    for side, runs in enumerate((runs_a, runs_b)):
        for run in runs:
            sides = by_dataset.setdefault(run.spec.dataset, ({}, {}))
            other = sides[side].setdefault(run.spec.seed, run)
            if other is not run:
                raise indistinguishable(run.spec.method, other.spec, run.spec)
    pairs = {}
    for dataset, (a, b) in by_dataset.items():
        learns = [any(_learns(run) for run in side.values()) for side in (a, b)]
        seeds = sorted(set(a) & set(b) if all(learns) else set(a if learns[0] else b))
        if a and b and seeds:
            first_a, first_b = next(iter(a.values())), next(iter(b.values()))
            pairs[dataset] = (
                [a.get(seed, first_a) for seed in seeds],
                [b.get(seed, first_b) for seed in seeds],
            )
    return pairs


def _learns(run: FinishedRun) -> bool:
    return run.spec.method not in METHODS or METHODS[run.spec.method].needs_images


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
    pairs = paired_runs(runs_a, runs_b)
    names = dict.fromkeys(run.spec.dataset for run in (*runs_a, *runs_b))
    left_out = tuple(name for name in names if name not in pairs)
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
    for label, run in folder.finished(plan):
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


def differences_markdown(folder: RunsFolder, plan: Plan, a: str, b: str) -> str:
    """The differences in percentage points: the mean of each column, then its datasets."""
    columns, missing = compare_labels(folder, plan, a, b)
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


def _right(pair: tuple[list[FinishedRun], list[FinishedRun]], part: str) -> Correct:
    predictions = same_images([*pair[0], *pair[1]], part)
    rows = [right(prediction.probabilities, prediction.labels) for prediction in predictions]
    return np.stack(rows).astype(np.float32).reshape(2, len(pair[0]), -1)
