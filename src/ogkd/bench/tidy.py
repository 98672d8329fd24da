"""The one table of results that tables, figures, comparisons and files are made from.

A row is one metric of one part of the test images in one finished run. Every average and every
spread that the benchmark prints or draws is defined here, once:

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.analysis import harmonic_mean
from ogkd.bench.runs import FinishedRun, LabelledRuns, Plan, RunsFolder, RunSpec
from ogkd.bench.stored import sha256_bytes
from ogkd.cells import BOM, harmless
from ogkd.datasets import tables
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation.names import METRICS, metric_named
from ogkd.files import write_json, write_text
from ogkd.methods import METHODS, RivalConfig
from ogkd.prompts.bank import shipped_banks

Seeds = Mapping[int, float]
"""The value of each finished seed."""
_VALUES = 3  # of a setting that are named


class TidyRow(NamedTuple):
    label: str  # of the plan's row
    run: FinishedRun
    part: str
    metric: str
    value: float | None  # None: not defined for these images


def bank_title(spec: RunSpec) -> str:
    """Whose prompts a run used: "released", "ours", "templates", or the name of a file."""
    if spec.bank is None:
        return "phantoms' own" if spec.of_phantoms else "templates"
    return "ours" if spec.bank in shipped_banks() else spec.bank.partition(":")[0]


def prompts_used(runs: Iterable[FinishedRun]) -> str:
    """The names of the runs' prompt banks, with a digest of each name's texts.

    Older runs have no digest. Several banks of one name, a file for each dataset, have one digest.
    """
    found: dict[str, set[str]] = {}
    for run in runs:
        found.setdefault(bank_title(run.spec), set()).add(run.result.get("bank_sha256") or "")
    words = []
    for title, digests in found.items():
        known = sorted(digests - {""})
        one = known[0] if len(known) == 1 else sha256_bytes(" ".join(known).encode())
        words.append(f"{title} (sha256 {one[:12]})" if known else title)
    return ", ".join(words)


def changed_settings(plan: Plan) -> str:
    """The settings that rows change, with their names unless all do; "" if none does.

    The setting that is swept is left out: its values are named where they are shown.
    """
    rows: dict[str, list[RunSpec]] = {}
    for cell in plan.cells:
        rows.setdefault(cell.label, []).append(cell.spec)
    words = []
    for name in dict.fromkeys(name for cell in plan.cells for name in cell.spec.settings):
        if name == plan.sweep:
            continue
        labels: dict[str, list[str]] = {}
        for label, specs in rows.items():
            if any(name in spec.settings for spec in specs):
                values = dict.fromkeys(str(s.settings.get(name, "unchanged")) for s in specs)
                few = len(values) <= _VALUES
                said = f"{name}={' or '.join(values)}" if few else f"{name} ({len(values)} values)"
                labels.setdefault(said, []).append(label)
        for said, mine in labels.items():
            words.append(said if len(mine) == len(rows) else f"{said} of {', '.join(mine)}")
    return "; ".join(words)


def tidy_rows(runs: Iterable[tuple[str, FinishedRun]]) -> list[TidyRow]:
    """The table: METRICS first, in their order, then whatever else a run measured."""
    return [
        TidyRow(label, run, part, name, run.result["metrics"][part].get(name))
        for label, run in runs
        for part in run.parts
        for name in dict.fromkeys((*METRICS, *run.result["metrics"][part]))
    ]


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


def average_and_spread(part: str, values: Sequence[Sequence[Seeds]]) -> tuple[float, float]:
    """The average of a part and its spread, as the module defines them.

    `values` has, for each measured part (one, or base and novel for "hm" and "mean-hm"), the
    seeds of each dataset.

    >>> average_and_spread("test", [[{1: 0.5, 2: 0.6}, {1: 0.8, 2: 0.7}]])
    (0.65, 0.0)
    """
    means = np.array([[np.mean(list(seeds.values())) for seeds in row] for row in values])
    common = set.intersection(*(set(seeds) for row in values for seeds in row))
    at_seeds = [np.array([[seeds[seed] for seeds in row] for row in values]) for seed in common]
    return _over_datasets(part, means), spread(_over_datasets(part, table) for table in at_seeds)


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
        self._planned: dict[tuple[str, str, Condition, str], dict[int, RunSpec]] = {}
        for cell in plan.cells:
            condition = condition_of(cell.spec, plan.sweep)
            for part in cell.spec.parts:
                key = (cell.label, cell.spec.dataset, condition, part)
                other = self._planned.setdefault(key, {}).setdefault(cell.spec.seed, cell.spec)
                if other != cell.spec:
                    raise ConfigError(indistinguishable(cell.label, other, cell.spec))
        self._done: dict[tuple[str, str, Condition, str], dict[int, float]] = {}
        for row in tidy_rows(runs):
            # Some metrics are not defined for all data: kappa is for graded classes.
            if row.metric == metric and row.value is not None and math.isfinite(row.value):
                spec = row.run.spec
                key = (row.label, spec.dataset, condition_of(spec, plan.sweep), row.part)
                self._done.setdefault(key, {})[spec.seed] = float(row.value)
        self.labels = list(dict.fromkeys(cell.label for cell in plan.cells))
        # Rows whose runs are all as the benchmark ran its adapters.
        others = {cell.label for cell in plan.cells if not _as_benchmarked(cell.spec)}
        self.benchmarked = [label for label in self.labels if label not in others]
        self.datasets = list(dict.fromkeys(cell.spec.dataset for cell in plan.cells))
        rows = dict.fromkeys((condition, label) for label, _, condition, _ in self._planned)
        conditions = dict.fromkeys(condition for condition, _ in rows)
        self.conditions = sorted(conditions, key=Condition.order)
        self.rows_compete = len(rows) > len(conditions)  # whether any column has two rows

    def parts(self, condition: Condition) -> list[str]:
        """The measured parts that were planned under a condition, in the order of columns."""
        there = {part for _, _, mine, part in self._planned if mine == condition}
        return [part for part in ("base", "novel", "test") if part in there]

    def wanted(self, condition: Condition, part: str) -> list[str]:
        """The datasets that any row has under a condition: an average is over all of them."""
        name = _measured(part)[0]
        there = {key[1] for key in self._planned if key[2:] == (condition, name)}
        return [dataset for dataset in self.datasets if dataset in there]

    def seeds(self, label: str, dataset: str, condition: Condition, part: str) -> Seeds:
        return self._done.get((label, dataset, condition, part), {})

    def of(self, label: str, dataset: str, condition: Condition, part: str) -> Average | None:
        """The average over the seeds of one dataset; None if no run is finished."""
        names = _measured(part)
        seeds = [self.seeds(label, dataset, condition, name) for name in names]
        if not all(seeds):
            return None
        done = len(set.intersection(*map(set, seeds)))
        planned = len(self._planned[label, dataset, condition, names[0]])
        value, std = average_and_spread(part, [[mine] for mine in seeds])
        return Average(value, self._spread(label, std, done), done, planned)

    def average(
        self, label: str, condition: Condition, part: str, datasets: Sequence[str] | None = None
    ) -> Average | None:
        """The average over datasets; it is complete if every run of every dataset is finished."""
        datasets = self.wanted(condition, part) if datasets is None else datasets
        found = {name: self.of(label, name, condition, part) for name in datasets}
        there = [name for name, mine in found.items() if mine is not None]
        if not there:
            return None
        values = [
            [self.seeds(label, dataset, condition, name) for dataset in there]
            for name in _measured(part)
        ]
        done = sum(mine is not None and mine.complete for mine in found.values())
        value, std = average_and_spread(part, values)
        common = set.intersection(*(set(seeds) for row in values for seeds in row))
        return Average(value, self._spread(label, std, len(common)), done, len(datasets))

    def _spread(self, label: str, std: float, seeds: int) -> float:
        return 1.96 * std / math.sqrt(seeds) if seeds and label in self.benchmarked else std


def _as_benchmarked(spec: RunSpec) -> bool:
    """Whether a run's method is an adapter or probe as the benchmark ran it."""
    method = METHODS.get(spec.method)
    rival = method is not None and issubclass(method.Config, RivalConfig)
    return rival and spec.settings.get("fidelity") == "released"


def indistinguishable(label: str, one: RunSpec, other: RunSpec) -> str:
    """The message about two runs that would share one place of a table or figure."""
    ours, theirs = one.model_dump(), other.model_dump()
    fields = [name for name in ours if ours[name] != theirs[name]]
    return (
        f"{one.dataset} has several runs of '{label}' that differ in {', '.join(fields)}, but "
        "tables and figures have one place for them. Give rows that differ their own labels in "
        "the grid."
    )


def _measured(part: str) -> tuple[str, ...]:
    """The measured parts that a part is computed from."""
    return ("base", "novel") if part in ("hm", "mean-hm") else (part,)


def collect(folder: RunsFolder, *, excel: bool = False) -> list[dict[str, Any]]:
    """Write results.csv and results.json into the folder and return their records.

    With `excel` the CSV starts with the mark by which Excel recognises UTF-8.

    A record has all metrics of one part of one run. Records follow the plans and their order;
    runs that are in no plan come last, with an empty plan.
    """
    runs = {run.spec.hash: run for run in folder.runs()}
    if not runs:
        raise DataError(f"{folder.root} has no finished runs. Run a grid into this folder first.")
    records: list[dict[str, Any]] = []
    plans = folder.plans()
    for name, plan in plans.items():
        hashes = [(cell.label, cell.spec.hash) for cell in plan.cells]
        records += _records(name, [(label, runs[key]) for label, key in hashes if key in runs])
    planned = {key for plan in plans.values() for key in plan.specs}
    left = [(run.spec.method, run) for key, run in runs.items() if key not in planned]
    records += _records("", left)
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = [[_flat(record.get(name)) for name in names] for record in records]
    write_text(folder.root / "results.csv", BOM * excel + csv_text([names, *rows]))
    write_json(folder.root / "results.json", records)
    return records


def _records(plan: str, runs: LabelledRuns) -> list[dict[str, Any]]:
    """The tidy table with the metrics of a run and part side by side."""
    found = []
    for label, run in runs:
        for part in run.parts:
            rows = [row for row in tidy_rows([(label, run)]) if row.part == part]
            record: dict[str, Any] = {"plan": plan, "label": label, "run": run.spec.hash}
            record |= run.spec.model_dump(mode="json")
            record |= {"part": part, "classes": len(run.class_names(part))}
            record |= {row.metric: row.value for row in rows}
            record |= {f"seconds_{phase}": took for phase, took in run.result["seconds"].items()}
            found.append(record | {name: run.result.get(name) for name in _FACTS})
    return found


_FACTS = (
    "together",
    "peak_mib",
    "device",
    "gpu",
    "gpu_peak_mib",
    "engine",
    "backbone_digest",
    "data_sha256",
    "bank_sha256",
    "versions",
)


def _flat(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV with Unix line ends; no cell can act as a spreadsheet formula."""
    return tables.csv_text([[_safe(cell) for cell in row] for row in rows])


def _safe(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    try:
        float(cell)
    except ValueError:
        return harmless(cell)
    return cell  # a negative number is not a formula
