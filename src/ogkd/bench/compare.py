"""Our averages beside the published numbers, and two methods by a paired bootstrap.

Of the paper only means are compared: its ± is probably another spread than ours (see tidy.py).
"""

from __future__ import annotations

import functools
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ogkd.bench.runs import FinishedRun, Plan, RunsFolder, same_images
from ogkd.bench.sources import benchmark_of, paper
from ogkd.bench.tidy import (
    Average,
    Condition,
    Summary,
    changed_settings,
    condition_of,
    harmonic_mean,
    indistinguishable,
    markdown_table,
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
_ELSEWHERE = "Percent, with the authors' own settings; rows over other datasets are not comparable."
_COLUMNS = [
    *("table", "dataset", "method", "K", "flips", "part"),
    *("ours", "published", "difference", "note"),
]


@functools.cache
def published() -> pd.DataFrame:
    """Every number in the paper's result tables, in percent.

    Columns: `table`, `dataset` (as in the catalogue, or "average"), `method` (as in our registry),
    `shots` (NaN: the method needs none), `part` (test, base, novel, hm), `flips`, `setting` (the
    row of an ablation, or ""), `metric` (accuracy, or accuracy_gain: the paper's method minus its
    baseline), `value`, `std` (NaN: not printed).
    """
    folder = files("ogkd.bench") / "published"
    tables = [
        pd.read_csv(io.StringIO(file.read_text(encoding="utf-8")))
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".csv")
    ]
    return pd.concat(tables, ignore_index=True).fillna({"setting": ""})


def published_elsewhere(plan: Plan) -> pd.DataFrame:
    """What other papers print about the paper's benchmarks, as text; empty of other data."""
    file = files("ogkd.bench") / "published" / "elsewhere" / f"{plan.table}.csv"
    if not (file.is_file() and any(benchmark_of(cell.spec) for cell in plan.cells)):
        return pd.DataFrame()
    return pd.read_csv(io.StringIO(file.read_text("utf-8")), dtype=str, keep_default_na=False)


def compare_with_published(folder: RunsFolder, plan: Plan) -> pd.DataFrame:
    """Accuracy of every cell that the paper prints too: each dataset, then the average.

    In percent; `difference` is NaN and `note` says why if two numbers are not comparable. The part
    of an average may be "mean-hm", too (see tidy.py).
    """
    runs = folder.finished(plan)
    summary = Summary(plan, runs)
    names: dict[str, str] = {}  # our dataset of each benchmark; of two the first
    for cell in plan.cells:
        if name := benchmark_of(cell.spec):
            names.setdefault(name, cell.spec.dataset)
    different = {run.spec.dataset: how for _, run in runs if (how := _difference(run))}
    methods = {cell.label: cell.spec.method for cell in plan.cells}
    rows = []
    for label, condition in itertools.product(summary.labels, summary.conditions):
        if condition.value is not None:
            continue  # a swept setting: the paper has figures of these, but no tables
        theirs = _candidates(plan, label, methods[label], condition)
        for part in summary.parts:
            key = {"method": label, "K": condition.shots, "flips": condition.flips, "part": part}
            for number in _counterparts(part, theirs, names, different):
                average = summary.average(label, condition, part, number.ours)
                if average is not None:
                    rows.append(key | _beside(average, number))
    return pd.DataFrame(rows, columns=_COLUMNS)


def _difference(run: FinishedRun) -> str:
    """How a run's images or classes differ from the benchmark's; "" if they do not."""
    if run.spec.judge == "val":
        return "validation images"
    if run.spec.test_on is not None:
        return f"tested on {run.spec.test_on}"
    name = benchmark_of(run.spec)
    if name is None:
        return ""
    record = benchmarks()[name]
    classes = {part: set(map(plain_name, run.class_names(part))) for part in run.spec.parts}
    if set().union(*classes.values()) != set(map(plain_name, record.class_names)):
        return "other classes"
    if "base" in classes and classes["base"] != set(map(plain_name, record.base_classes)):
        return "other base classes"
    return ""


def _candidates(plan: Plan, label: str, method: str, condition: Condition) -> pd.DataFrame:
    """The published numbers of a row under a condition; an ablation's rows match by label."""
    rows = published().query("metric == 'accuracy' and flips == @condition.flips")
    rows = rows[rows["shots"].isna() | (rows["shots"] == (condition.shots or 0))]
    if plan.table == "ablation":
        return rows[
            (rows["setting"] != "") & (rows["setting"].map(plain_name) == plain_name(label))
        ]
    return rows[(rows["setting"] == "") & (rows["method"] == method)]


class Published(NamedTuple):
    """A published number, and which of our datasets its counterpart is an average of."""

    table: str
    dataset: str  # a benchmark, or AVERAGE
    value: float
    ours: list[str]
    note: str
    comparable: bool = True


def _counterparts(
    part: str, theirs: pd.DataFrame, names: Mapping[str, str], different: Mapping[str, str]
) -> Iterator[Published]:
    """A part of what the paper prints for a row, `theirs`: datasets, then their average.

    `names` are our datasets by benchmark; `different` says how one's images or classes differ.
    An average is given if all its datasets are there with the benchmark's classes.
    """
    rows = theirs[theirs["part"] == part.removeprefix("mean-")]
    table, printed = next(iter(rows["table"]), ""), rows.set_index("dataset")["value"].to_dict()
    average = printed.pop(AVERAGE, None)
    for name in printed if part != "mean-hm" else ():
        if name in names:
            note = different.get(names[name], "")
            yield Published(table, name, printed[name], [names[name]], note, not note)
    # A single printed average does not say which mean of HMs it is; the paper's text has "hm".
    if average is None or (not printed and part == "mean-hm"):
        return
    # The paper has no base-to-novel numbers of some benchmarks.
    records = benchmarks().items()
    every = [name for name, record in records if record.base_to_novel or part == "test"]
    every = list(printed) or every
    same = [names[name] for name in every if name in names and names[name] not in different]
    if len(same) == len(every):
        value = average
        if printed:
            value = _published_average(theirs.set_index(["part", "dataset"])["value"], part, every)
        note = f"printed: {average:.2f}" if abs(value - average) > _ROUNDING else ""
        yield Published(table, AVERAGE, value, same, note)


def _beside(average: Average, published: Published) -> dict[str, Any]:
    """Our average beside a published number."""
    unfinished = f"{average.done} of {average.planned} are finished"
    comparable = published.comparable and average.complete
    ours = 100 * average.value
    return {
        "table": published.table,
        "dataset": published.dataset,
        "ours": ours,
        "published": published.value,
        "difference": ours - published.value if comparable else math.nan,
        "note": "; ".join(filter(None, ["" if average.complete else unfinished, published.note])),
    }


def _published_average(values: pd.Series, part: str, datasets: Sequence[str]) -> float:
    """Recomputed from the published rows of some datasets: the paper mixes two means of HMs."""
    if part == "hm":
        return harmonic_mean(*(values[side][datasets].mean() for side in ("base", "novel")))
    return float(values[part.removeprefix("mean-")][datasets].mean())


def published_markdown(folder: RunsFolder, plan: Plan) -> str:
    """The comparison with the published numbers as Markdown."""
    frame, elsewhere = compare_with_published(folder, plan), published_elsewhere(plan)
    more = []
    if len(elsewhere):
        more = ["", "### Published elsewhere", "", _ELSEWHERE, "", *markdown_table(elsewhere)]
    if frame.empty:
        nothing = (
            "None of these runs has a counterpart in the paper's tables. "
            "An average needs all of its datasets."
        )
        return "\n".join([nothing, *more]) + "\n"
    backbones = sorted({cell.spec.backbone for cell in plan.cells})
    prompts = prompts_used(run for _, run in folder.finished(plan))
    settings = changed_settings(plan)
    lines = [
        f"Our backbone: {', '.join(backbones)}. The published numbers': {paper().backbone}.",
        f"Our prompts: {prompts}. The published numbers': {paper().prompts}.",
        *([f"Our settings: {settings}."] if settings else []),
    ]
    for name, form in {"ours": "{:.2f}", "published": "{:.2f}", "difference": "{:+.2f}"}.items():
        frame[name] = frame[name].map(form.format, na_action="ignore")
    table = markdown_table(frame.astype(object).fillna(""))
    return "\n".join([*lines, "", *table, *more]) + "\n"


# Whether two methods differ: a bootstrap over seeds and test images of each dataset. Datasets are
# not resampled: the result is about these datasets, not about others.

Correct = NDArray[np.float32]  # [2, S, N]: 1 if a method was right, by method, seed and image


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
    resamples: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Accuracy of `a` minus that of `b` on the datasets and seeds that both have, as fractions.

    The first row is the mean over datasets, the others are the datasets: `difference` with its
    interval `low` to `high` and two-sided `p`, the numbers of common seeds and of images. Of base
    and novel classes it is the harmonic mean.
    """
    pairs = paired_runs(runs_a, runs_b)
    if not pairs:
        raise DataError("The two methods have no common dataset and seed.")
    rng = np.random.default_rng(seed)
    draws: dict[str, NDArray[np.float64]] = {}
    rows = []
    for name, pair in pairs.items():
        chosen = "test" if "test" in pair[0][0].spec.parts else "hm"
        tables = [_right(pair, piece) for piece in measured(chosen)]
        (a, b), drawn = resample(tables, resamples=resamples, rng=rng)
        draws[name] = drawn[0] - drawn[1]
        rows.append((name, a - b, len(pair[0]), sum(table.shape[2] for table in tables)))
    frame = pd.DataFrame(rows, columns=["dataset", "difference", "seeds", "images"])
    mean = {
        "dataset": f"mean of {len(rows)}",
        "difference": frame["difference"].mean(),
        "seeds": frame["seeds"].min(),
        "images": frame["images"].sum(),
    }
    frame = pd.concat([pd.DataFrame([mean]), frame], ignore_index=True)
    draws_of = [np.mean(list(draws.values()), axis=0), *draws.values()]
    ends = [_interval(*both) for both in zip(frame["difference"], draws_of, strict=True)]
    return frame.join(pd.DataFrame(ends, columns=["low", "high", "p"]))


def compare_labels(
    folder: RunsFolder, plan: Plan, a: str, b: str
) -> dict[Condition, pd.DataFrame | None]:
    """Row `a` minus row `b` of a plan's table, for each column that both were planned in.

    None for a column in which they have no common runs (yet); DataError if that is so in all.
    """
    # The runs of each row and column, in the plan's order.
    runs: dict[tuple[str, Condition], list[FinishedRun]] = {
        (cell.label, condition_of(cell.spec, plan.sweep)): [] for cell in plan.cells
    }
    for label in (a, b):
        if label not in {name for name, _ in runs}:
            raise ConfigError(f"Plan '{plan.name}' has no row '{label}'.", argument="methods")
    for label, run in folder.finished(plan):
        runs[label, condition_of(run.spec, plan.sweep)].append(run)
    columns: dict[Condition, pd.DataFrame | None] = {}
    for label, condition in runs:
        if label == a and (b, condition) in runs:
            both = runs[a, condition], runs[b, condition]
            columns[condition] = compare_methods(*both) if paired_runs(*both) else None
    if all(frame is None for frame in columns.values()):
        raise DataError(f"'{a}' and '{b}' have no common dataset and seed in '{plan.name}'.")
    return columns


def differences_markdown(folder: RunsFolder, plan: Plan, a: str, b: str) -> str:
    """The differences in percentage points: the mean of each column, then its datasets."""
    rows = []
    for condition, frame in compare_labels(folder, plan, a, b).items():
        if frame is None:
            rows.append([condition, "no common runs", "", "", ""])
            continue
        for row in frame.itertuples():
            points = [f"{100 * value:+.2f}" for value in (row.difference, row.low, row.high)]
            p = f"{row.p:.3f}" if row.p >= 0.001 else "< 0.001"
            rows.append([condition, row.dataset, points[0], f"{points[1]} to {points[2]}", p])
    columns = [f"{a} minus {b}", "datasets", "difference", "interval", "p"]
    return "\n".join(markdown_table(pd.DataFrame(rows, columns=columns))) + "\n"


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
