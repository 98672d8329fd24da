"""Scores of finished runs as data frames (datasets x seeds), for tables, figures, comparisons.

Every average and every spread that the benchmark prints or draws is defined here, once:

- An average is the mean over seeds of each dataset, then the mean over datasets.
- "hm" is the harmonic mean of the base and the novel average; "mean-hm" is the mean of the
  datasets' own harmonic means.
- The spread (±, bands) is the population standard deviation over seeds of that same quantity:
  of a dataset's values, or, for several datasets, of their average at each seed that all of them
  have. One seed has no spread (NaN). Rows of adapters as the benchmark ran them have its own
  spread, 1.96 standard deviations / sqrt(seeds) (fidelity.md, 53).

Rejected: the mean of the datasets' own standard deviations, which is never smaller and does not
say how much the printed average varies. The paper's "std over 3 runs" leaves open which it is;
with 1.4 to 8.3 points it looks like the rejected one. So published spreads are listed beside ours,
but never compared.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ogkd.bench.analysis import harmonic_mean
from ogkd.bench.runs import (
    FinishedRun,
    LabelledRuns,
    Plan,
    RunsFolder,
    RunSpec,
    sha256_bytes,
)
from ogkd.cells import escape_formula
from ogkd.data import tables
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation.names import METRICS, metric_named
from ogkd.methods import METHODS, RivalConfig
from ogkd.prompts.bank import shipped_banks


def prompts_used(runs: Iterable[FinishedRun]) -> str:
    """Whose prompts runs used ("released", "ours", "templates", a file), with their digest.

    Several banks of one name, a file for each dataset, have one digest.
    """
    banks: dict[str, set[str]] = {}
    for run in runs:
        title = "phantoms' own" if run.spec.of_phantoms else "templates"
        if (bank := run.spec.bank) is not None:
            title = "ours" if bank in shipped_banks() else bank.partition(":")[0]
        banks.setdefault(title, set()).add(run.result.get("bank_sha256") or "")
    words = []
    for title, digests in banks.items():
        known = sorted(digests - {""})
        digest = known[0] if len(known) == 1 else sha256_bytes(" ".join(known).encode())
        words.append(f"{title} (sha256 {digest[:12]})" if known else title)
    return ", ".join(words)


def changed_settings(plan: Plan) -> str:
    """The settings that rows change, with their names unless all do; "" if none does.

    The setting that is swept is left out: its values are named where they are shown.
    """
    rows: dict[str, list[RunSpec]] = {}
    for cell in plan.cells:
        rows.setdefault(cell.label, []).append(cell.spec)
    labels: dict[str, dict[str, list[str]]] = {}  # setting -> its values in words -> rows
    for name in dict.fromkeys(name for cell in plan.cells for name in cell.spec.settings):
        for label, specs in rows.items() if name != plan.sweep else ():
            if any(name in spec.settings for spec in specs):
                values = dict.fromkeys(str(s.settings.get(name, "unchanged")) for s in specs)
                few = len(values) <= 3
                text = f"{name}={' or '.join(values)}" if few else f"{name} ({len(values)} values)"
                labels.setdefault(name, {}).setdefault(text, []).append(label)
    return "; ".join(
        text if len(same) == len(rows) else f"{text} of {', '.join(same)}"
        for texts in labels.values()
        for text, same in texts.items()
    )


class Condition(NamedTuple):
    """What the columns of a table vary: shots, wrong labels and the value of a sweep."""

    shots: int | None  # None: all images
    flips: int
    value: Any  # None: there is no sweep, or the row is not swept

    def __str__(self) -> str:
        words = ["all images" if self.shots is None else f"K={self.shots}"]
        words += [f"{self.flips} flips"] if self.flips else []
        words += [str(self.value)] if self.value is not None else []
        return ", ".join(words)

    def order(self) -> tuple[Any, ...]:
        """The key to sort columns by; a row that is not swept comes first."""
        value = self.value
        number = value if isinstance(value, int | float) else math.inf
        return (self.shots or math.inf, self.flips, value is not None, number, str(value))


def condition_of(spec: RunSpec, sweep: str | None) -> Condition:
    value = spec.budget if sweep == "budget" else spec.settings.get(sweep or "")
    if isinstance(value, list | dict):
        value = json.dumps(value)  # a condition is a key
    return Condition(spec.shots, spec.flips, value)


def spread(values: Iterable[float]) -> float:
    """The population standard deviation, as in the released code; NaN for fewer than two values."""
    numbers = list(values)
    return float(np.std(numbers)) if len(numbers) > 1 else math.nan


def average_and_spread(part: str, scores: Sequence[pd.DataFrame]) -> tuple[float, float]:
    """The average of a part and its spread, as the module defines them.

    `scores` are datasets x seeds of each measured part: one, or base and novel for "hm" and
    "mean-hm".

    >>> average_and_spread("test", [pd.DataFrame({1: [0.5, 0.8], 2: [0.6, 0.7]})])
    (0.65, 0.0)
    """
    means = np.array([frame.mean(axis=1) for frame in scores])  # [parts, datasets]
    at_seeds = common_seeds(scores).to_numpy().T.reshape(-1, *means.shape)  # the same, each seed
    return _over_datasets(part, means), spread(_over_datasets(part, table) for table in at_seeds)


def common_seeds(scores: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The scores one below the other, at the seeds that all of them have."""
    return pd.concat(scores).dropna(axis="columns")


def _over_datasets(part: str, table: NDArray[np.float64]) -> float:
    """One number from [parts, datasets]."""
    if part == "hm":
        return harmonic_mean(*table.mean(axis=1).tolist())
    if part == "mean-hm":
        return float(np.mean([harmonic_mean(base, novel) for base, novel in table.T.tolist()]))
    return float(table.mean())


@dataclass(frozen=True)
class Average:
    """An average with its spread, and how much of what was planned is in it."""

    value: float
    std: float  # NaN: fewer than two seeds
    done: int  # runs of a dataset; of an average over datasets, the complete ones
    planned: int

    @property
    def complete(self) -> bool:
        return self.done == self.planned


class Summary:
    """One metric of a plan's runs, averaged by row (label), dataset, condition and part.

    Parts are "test", or "base" and "novel" with "hm" and "mean-hm" (see the module).
    """

    def __init__(self, plan: Plan, runs: LabelledRuns, metric: str = "accuracy") -> None:
        self.plan = plan
        self.metric = metric_named(metric)
        done = {
            (label, run.spec.hash, part): run.metric(metric, part)
            for label, run in runs
            for part in run.parts
        }
        cells = pd.DataFrame(
            [
                (label, condition_of(spec, plan.sweep), part, spec.dataset, spec.seed, spec.hash)
                for label, spec in ((cell.label, cell.spec) for cell in plan.cells)
                for part in spec.parts
            ],
            columns=["label", "condition", "part", "dataset", "seed", "run"],
        ).drop_duplicates()
        if (same := cells.duplicated(list(cells.columns[:-1]), keep=False)).any():
            first, second = cells[same].sort_values(list(cells.columns[3:5])).iloc[:2].itertuples()
            raise indistinguishable(first.label, plan.specs[first.run], plan.specs[second.run])
        keys = zip(cells["label"], cells["run"], cells["part"], strict=True)
        cells["score"] = [done.get(key, math.nan) for key in keys]
        self._scores: dict[tuple[str, Condition, str], pd.DataFrame] = {
            key: rows.pivot(index="dataset", columns="seed", values="score")
            for key, rows in cells.groupby(["label", "condition", "part"], sort=False)
        }
        self._planned = Counter(zip(*(cells[name] for name in cells.columns[:4]), strict=True))
        self.labels = list(cells["label"].unique())
        # Rows whose runs are all as the benchmark ran its adapters.
        others = {cell.label for cell in plan.cells if not _as_benchmarked(cell.spec)}
        self.benchmarked = [label for label in self.labels if label not in others]
        self.datasets = list(cells["dataset"].unique())
        rows = {(condition, label) for label, condition, _ in self._scores}
        self.conditions = sorted({condition for condition, _ in rows}, key=Condition.order)
        self.rows_compete = len(rows) > len(self.conditions)  # whether any column has two rows

    def parts(self, condition: Condition) -> list[str]:
        """The measured parts that were planned under a condition, in the order of columns."""
        planned = {part for _, other, part in self._scores if other == condition}
        return [part for part in ("base", "novel", "test") if part in planned]

    def wanted(self, condition: Condition, part: str) -> list[str]:
        """The datasets that any row has under a condition: an average is over all of them."""
        key = (condition, measured(part)[0])
        planned = {dataset for _, *other, dataset in self._planned if tuple(other) == key}
        return [dataset for dataset in self.datasets if dataset in planned]

    def scores(
        self, label: str, condition: Condition, part: str, datasets: Sequence[str] | None = None
    ) -> list[pd.DataFrame]:
        """Datasets x seeds of each measured part; only datasets with a finished run of all."""
        names = self.datasets if datasets is None else datasets
        empty = pd.DataFrame()
        frames = [self._scores.get((label, condition, p), empty) for p in measured(part)]
        done = [set(frame.dropna(how="all").index) for frame in frames]
        kept = [name for name in names if all(name in finished for finished in done)]
        return [frame.loc[kept] for frame in frames]

    def of(self, label: str, dataset: str, condition: Condition, part: str) -> Average | None:
        """The average over the seeds of one dataset; None if no run is finished."""
        planned = self._planned[label, condition, measured(part)[0], dataset]
        return self._averaged(label, condition, part, [dataset], planned)

    def average(
        self, label: str, condition: Condition, part: str, datasets: Sequence[str] | None = None
    ) -> Average | None:
        """The average over datasets; it is complete if every run of every dataset is finished."""
        names = self.wanted(condition, part) if datasets is None else datasets
        average = self._averaged(label, condition, part, names, len(names))
        single = (self.of(label, name, condition, part) for name in names)
        done = sum(other is not None and other.complete for other in single)
        return average and replace(average, done=done)

    def _averaged(
        self, label: str, condition: Condition, part: str, datasets: Sequence[str], planned: int
    ) -> Average | None:
        scores = self.scores(label, condition, part, datasets)
        if not len(scores[0]):
            return None
        value, std = average_and_spread(part, scores)
        seeds = common_seeds(scores).shape[1]
        if label in self.benchmarked and seeds:
            std *= 1.96 / math.sqrt(seeds)
        return Average(value, std, seeds, planned)


def _as_benchmarked(spec: RunSpec) -> bool:
    """Whether a run's method is an adapter or probe as the benchmark ran it."""
    method = METHODS.get(spec.method)
    rival = method is not None and issubclass(method.Config, RivalConfig)
    return rival and spec.settings.get("fidelity") == "released"


def indistinguishable(label: str, first: RunSpec, second: RunSpec) -> ConfigError:
    """The error about two runs that would share one cell of a table or figure."""
    fields = [
        name for name in RunSpec.model_fields if getattr(first, name) != getattr(second, name)
    ]
    return ConfigError(
        f"{first.dataset} has several runs of '{label}' that differ in {', '.join(fields)}: give "
        "such rows their own labels in the grid."
    )


def measured(part: str) -> tuple[str, ...]:
    """The measured parts that a part is computed from: of a harmonic mean both."""
    return ("base", "novel") if part in ("hm", "mean-hm") else (part,)


def collect(folder: RunsFolder) -> list[dict[str, Any]]:
    """Every finished run: a record has the specification and all metrics of one part of a run.

    Records follow the plans and their order; runs that are in no plan come last.
    """
    runs = {run.spec.hash: run for run in folder.runs()}
    if not runs:
        raise DataError(f"{folder.root} has no finished runs.")
    plans = folder.plans()
    labelled = [
        (name, cell.label, runs[cell.spec.hash])
        for name, plan in plans.items()
        for cell in plan.cells
        if cell.spec.hash in runs
    ]
    planned = {key for plan in plans.values() for key in plan.specs}
    labelled += [("", run.spec.method, run) for key, run in runs.items() if key not in planned]
    return [
        {"plan": name, "label": label, "run": run.spec.hash}
        | run.spec.model_dump(mode="json")
        | {"part": part, "classes": len(run.class_names(part))}
        | dict.fromkeys(METRICS)
        | run.result["metrics"][part]
        | {f"seconds_{phase}": seconds for phase, seconds in run.result["seconds"].items()}
        | {name: run.result.get(name) for name in _FACTS}
        for name, label, run in labelled
        for part in run.parts
    ]


_FACTS = (
    *("together", "peak_mib", "device", "gpu", "gpu_peak_mib", "engine"),
    *("backbone_digest", "data_sha256", "bank_sha256", "versions"),
)


def records_csv(records: Sequence[dict[str, Any]]) -> str:
    """Records as CSV; a dictionary in a cell is JSON."""
    names = list(dict.fromkeys(name for record in records for name in record))
    return csv_text([names, *([record.get(name) for name in names] for record in records)])


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV with Unix line ends; no cell can act as a spreadsheet formula."""
    return tables.csv_text([[_safe(cell) for cell in row] for row in rows])


def _safe(cell: object) -> object:
    if isinstance(cell, dict | list):
        return json.dumps(cell, sort_keys=True)
    if not isinstance(cell, str):
        return cell
    try:
        float(cell)
    except ValueError:
        return escape_formula(cell)
    return cell  # a negative number is not a formula


def markdown_row(texts: Iterable[str]) -> str:
    cells = (text.replace("|", "\\|").replace("\n", " ") for text in texts)
    return f"| {' | '.join(cells)} |"
