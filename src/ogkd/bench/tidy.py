"""Scores of finished runs as one tidy frame, for tables, figures and comparisons.

Every average and every spread that the benchmark prints or draws is defined here, once:

- An average is the mean over seeds of each dataset, then the mean over datasets.
- "hm" is the harmonic mean of the base and the novel average; "mean-hm" is the mean of the
  datasets' own harmonic means.
- The spread (±, bands) is the population standard deviation over seeds of that same quantity:
  of a dataset's values, or, for several datasets, of their average at each seed that all of them
  have. One seed has no spread (NaN).

Rejected: the mean of the datasets' own standard deviations, which is never smaller and does not
say how much the printed average varies. The paper's "std over 3 runs" leaves open which it is;
with 1.4 to 8.3 points it looks like the rejected one. So published spreads are not compared.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ogkd.bench.runs import FinishedRun, LabelledRuns, Plan, RunsFolder, RunSpec
from ogkd.cells import escape_formula
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation.names import METRICS, metric_named
from ogkd.prompts.bank import shipped_banks

_FACTS = {"together", "device", "engine", "versions"}
_FACTS |= {"backbone_digest", "data_sha256", "bank_sha256"}


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


def measured(part: str) -> tuple[str, ...]:
    """The measured parts that a part is computed from: of a harmonic mean both."""
    return ("base", "novel") if part in ("hm", "mean-hm") else (part,)


def right(p: NDArray[np.floating], y: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the most probable class (the first of equals) is the true one: bool [N]."""
    return np.asarray(p.argmax(axis=1) == y)


def harmonic_mean(base: float, novel: float) -> float:
    """HM = 2 base novel / (base + novel) of non-negative numbers; 0 if both are 0."""
    return 2 * base * novel / (base + novel) if base + novel else 0.0


def spread(values: Iterable[float]) -> float:
    """The population standard deviation, as in the released code; NaN for fewer than two values."""
    numbers = list(values)
    return float(np.std(numbers)) if len(numbers) > 1 else math.nan


def average_and_spread(part: str, scores: pd.DataFrame) -> tuple[float, float]:
    """The average of a part and its spread, as the module defines them.

    `scores` are (measured part, dataset) x seed; those of base classes come first.

    >>> average_and_spread("test", pd.DataFrame({1: [0.5, 0.8], 2: [0.6, 0.7]}))
    (0.65, 0.0)
    """
    table = scores.to_numpy(float).reshape(len(measured(part)), -1, scores.shape[1])
    means = np.nanmean(table, axis=2)  # [parts, datasets]
    at_seeds = table[..., ~np.isnan(table).any(axis=(0, 1))].transpose(2, 0, 1)
    return _over_datasets(part, means), spread(_over_datasets(part, seed) for seed in at_seeds)


def _over_datasets(part: str, table: NDArray[np.float64]) -> float:
    """One number from [parts, datasets]."""
    if part == "hm":
        return harmonic_mean(*table.mean(axis=1).tolist())
    if part == "mean-hm":
        return float(np.mean([harmonic_mean(base, novel) for base, novel in table.T.tolist()]))
    return float(table.mean())


class Average(NamedTuple):
    """An average with its spread, and how much of what was planned is in it."""

    value: float
    std: float  # NaN: fewer than two seeds
    done: int  # runs of a dataset; of several datasets, the complete ones
    planned: int

    @property
    def complete(self) -> bool:
        return self.done == self.planned


class Summary:
    """One metric of a plan's runs, averaged by row (label), condition, part and datasets.

    Parts are "test", or "base" and "novel" with "hm" and "mean-hm" (see the module).
    """

    def __init__(self, plan: Plan, runs: LabelledRuns, metric: str = "accuracy") -> None:
        self.plan = plan
        self.metric = metric_named(metric)
        finished = {
            (run.spec.hash, part): run.metric(metric, part)
            for _, run in runs
            for part in run.spec.parts
        }
        keys = ["label", "condition", "part", "dataset", "seed"]
        frame = pd.DataFrame(
            [
                (
                    *(cell.label, condition_of(spec, plan.sweep), part, spec.dataset, spec.seed),
                    *(spec.hash, finished.get((spec.hash, part), math.nan)),
                )
                for cell, spec in ((cell, cell.spec) for cell in plan.cells)
                for part in spec.parts
            ],
            columns=[*keys, "run", "score"],
        ).drop_duplicates()
        if (same := frame.duplicated(keys, keep=False)).any():
            first, second = frame[same].sort_values(["dataset", "seed"]).iloc[:2].itertuples()
            raise indistinguishable(first.label, plan.specs[first.run], plan.specs[second.run])
        self._scores = {  # of each row and condition: (part, dataset) x seed
            key: rows.pivot(index=["part", "dataset"], columns="seed", values="score")
            for key, rows in frame.groupby(["label", "condition"], sort=False)
        }
        self.labels = list(frame["label"].unique())
        self.datasets = list(frame["dataset"].unique())
        self.parts = sorted(frame["part"].unique())
        # A harmonic mean of errors would be good if the smaller of the two is.
        if "base" in self.parts and not self.metric.lower_is_better:
            self.parts += ["hm", "mean-hm"]
        self.conditions = sorted({condition for _, condition in self._scores}, key=Condition.order)
        self.rows_compete = len(self._scores) > len(self.conditions)  # any column has two rows

    def average(
        self, label: str, condition: Condition, part: str, datasets: Sequence[str]
    ) -> Average | None:
        """The average over datasets, or over the seeds of a single one; None without any run.

        Only datasets with a finished run of each measured part count.
        """
        if (label, condition) not in self._scores:
            return None
        scores = self._scores[label, condition]
        chosen = scores.index.isin(measured(part), level="part")
        chosen &= scores.index.isin(datasets, level="dataset")
        scores = scores[chosen].dropna(how="all")
        names = scores.index.get_level_values("dataset")
        if len(measured(part)) > 1:
            scores = scores[names.duplicated(keep=False)]  # both parts
        if scores.empty:
            return None
        value, std = average_and_spread(part, scores)
        planned = scores.shape[1]
        if len(datasets) == 1:
            return Average(value, std, int(scores.notna().all().sum()), planned)
        finished = scores.notna().groupby(level="dataset").all().sum(axis=1)
        return Average(value, std, int((finished == planned).sum()), len(datasets))

    def averages(self, groups: Mapping[str, Sequence[str]]) -> pd.DataFrame:
        """The planned averages over groups of datasets: NaN without any run.

        Columns: group (its name), many (whether it is of several datasets), condition, label,
        part, and those of an Average.
        """
        nothing = Average(math.nan, math.nan, 0, 0)
        rows = [
            (name, len(datasets) > 1, condition, label, part)
            + (self.average(label, condition, part, datasets) or nothing)
            for (name, datasets), condition, label, part in itertools.product(
                groups.items(), self.conditions, self.labels, self.parts
            )
            if (label, condition) in self._scores
        ]
        columns = ["group", "many", "condition", "label", "part", *Average._fields]
        return pd.DataFrame(rows, columns=columns)


def indistinguishable(label: str, first: RunSpec, second: RunSpec) -> ConfigError:
    """The error about two runs that would share one cell of a table or figure."""
    fields = [
        name for name in RunSpec.model_fields if getattr(first, name) != getattr(second, name)
    ]
    return ConfigError(
        f"{first.dataset} has several runs of '{label}' that differ in {', '.join(fields)}: give "
        "such rows their own labels in the grid."
    )


# What runs were made with, in words


def prompts_used(runs: Iterable[FinishedRun]) -> str:
    """Whose prompts runs used ("released", "ours", "templates", a file), with their digest.

    Several banks of one name, a file for each dataset, have one digest.
    """
    banks: dict[str, set[str]] = {}
    for run in runs:
        title = "phantoms' own" if run.spec.of_phantoms else "templates"
        if (bank := run.spec.bank) is not None:
            title = "ours" if bank in shipped_banks() else bank.partition(":")[0]
        banks.setdefault(title, set()).update(filter(None, [run.result.bank_sha256]))
    words = []
    for title, digests in banks.items():
        digest = " ".join(sorted(digests))
        if len(digests) > 1:
            digest = hashlib.sha256(digest.encode()).hexdigest()
        words.append(f"{title} (sha256 {digest[:12]})" if digest else title)
    return ", ".join(words)


def changed_settings(plan: Plan) -> str:
    """Presets and the settings that rows change, with their names unless all do; "" if none does.

    The setting that is swept is left out: its values are named where they are shown.
    """
    rows: dict[str, dict[str, None]] = {}  # the labels of each text
    for cell in plan.cells:
        # Of a dataset's own preset ("paper/few-shot/busi") its kind.
        kind, slash, preset = (cell.spec.preset or "").rpartition("/")
        preset = f"{kind}/{{dataset}}" if slash else preset
        changes = {"preset": preset} if preset else {}
        changes |= {"test_on": cell.spec.test_on} if cell.spec.test_on else {}
        for name, value in (changes | cell.spec.settings).items():
            if name != plan.sweep:
                rows.setdefault(f"{name}={value}", {})[cell.label] = None
    count = len({cell.label for cell in plan.cells})
    return "; ".join(
        text if len(labels) == count else f"{text} of {', '.join(labels)}"
        for text, labels in rows.items()
    )


# Every run as a row


def collect(folder: RunsFolder) -> pd.DataFrame:
    """Every finished run of every plan: the specification and all metrics of one part in a row."""
    runs = {run.spec.hash: run for run in folder.runs()}
    if not runs:
        raise DataError(f"{folder.root} has no finished runs.")
    labelled = [
        (name, cell.label, runs[cell.spec.hash])
        for name, plan in folder.plans().items()
        for cell in plan.cells
        if cell.spec.hash in runs
    ]
    records = [
        {"plan": name, "label": label, "run": run.spec.hash}
        | run.spec.model_dump(mode="json")
        | {"part": part, "classes": len(run.class_names(part))}
        | dict.fromkeys(METRICS)
        | run.result.metrics[part]
        | {f"seconds_{phase}": seconds for phase, seconds in run.result.seconds.items()}
        | run.result.model_dump(include=_FACTS)
        for name, label, run in labelled
        for part in run.spec.parts
    ]
    return pd.DataFrame(records, dtype=object)


def csv_of(frame: pd.DataFrame) -> str:
    """A frame as CSV; a dictionary in a cell is JSON, and no cell can act as a formula."""

    def cell_of(value: object) -> object:
        if isinstance(value, dict | list):
            return json.dumps(value, sort_keys=True)
        return escape_formula(value) if isinstance(value, str) else value

    text: str = frame.map(cell_of).to_csv(index=False, lineterminator="\n")
    return text


def markdown_table(frame: pd.DataFrame) -> list[str]:
    """The lines of a GitHub table; all but the first column are aligned to the right."""

    def line(cells: Iterable[object]) -> str:
        texts = (str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
        return f"| {' | '.join(texts)} |"

    rule = "|---|" + "---:|" * (frame.shape[1] - 1)
    return [line(frame.columns), rule, *map(line, frame.itertuples(index=False, name=None))]
