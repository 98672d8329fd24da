"""A plan's finished runs as numbers: means over seeds, means over datasets, harmonic means."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ogkd.bench.analysis import harmonic_mean
from ogkd.bench.results import Plan, RunsFolder
from ogkd.bench.spec import RunSpec
from ogkd.errors import ConfigError, did_you_mean

__all__ = [
    "METRICS",
    "Amount",
    "At",
    "Metric",
    "Summary",
    "metric_named",
    "place_of",
]

T = TypeVar("T")
Seeds = Mapping[int, float]


@dataclass(frozen=True)
class Metric:
    """How a measure is shown."""

    title: str
    scale: float = 100.0
    lower_is_better: bool = False
    decimals: int = 1  # in Markdown; LaTeX has one more, as the paper

    @property
    def unit(self) -> str:
        """To be put behind the title."""
        return " (%)" if self.scale == 100.0 else ""


METRICS = {
    "accuracy": Metric("Accuracy"),
    "balanced_accuracy": Metric("Balanced accuracy"),
    "macro_f1": Metric("Macro-F1"),
    "auroc": Metric("AUROC"),
    "kappa": Metric("Kappa", scale=1.0, decimals=3),
    "ece": Metric("Expected calibration error", lower_is_better=True),
    "brier": Metric("Brier score", scale=1.0, lower_is_better=True, decimals=3),
    "nll": Metric("Negative log-likelihood", scale=1.0, lower_is_better=True, decimals=3),
    "aurc": Metric("AURC", lower_is_better=True),
    "false_alarms": Metric("Normal images called a disease", lower_is_better=True),
    "sensitivity": Metric("Diseased images called a disease"),
}


def metric_named(name: str) -> Metric:
    """A measure by its name in result.json."""
    if name not in METRICS:
        hint = did_you_mean(name, METRICS, cutoff=0.6)
        raise ConfigError(f"Unknown metric '{name}'.{hint} Known: {', '.join(METRICS)}.")
    return METRICS[name]


class At(NamedTuple):
    """Where along the columns a run stands."""

    shots: int | None
    flips: int
    value: Any  # of the sweep; None where there is none, or the row is not swept


@dataclass(frozen=True)
class Amount:
    """A mean, and how much of what was planned is in it."""

    value: float
    std: float  # over seeds (population); of an average: the mean of the datasets' own
    done: int  # runs of a dataset, or whole datasets of an average
    planned: int

    @property
    def complete(self) -> bool:
        """Whether it may be compared with others."""
        return self.done == self.planned


class Summary:
    """One measure of a plan's runs, by row (label), dataset, place and part.

    Parts are "test", or "base" and "novel" with "hm", the harmonic mean of these two. Of an
    average "hm" is the harmonic mean of the averages, "mean-hm" the mean of the datasets' own.
    """

    def __init__(self, folder: RunsFolder, plan: Plan, metric: str = "accuracy") -> None:
        self.plan = plan
        self.metric = metric_named(metric)
        found = {run.spec.hash: run for _, run in folder.finished(plan)}
        self._planned: dict[tuple[str, str, At, str], set[int]] = {}
        self._done: dict[tuple[str, str, At, str], dict[int, float]] = {}
        self.fewest: dict[tuple[At, str], int] = {}  # images of a class, where fewer than K
        for cell in plan.cells:
            spec = cell.spec
            for part in _parts(spec):
                key = (cell.label, spec.dataset, place_of(spec, plan.sweep), part)
                self._plan_seed(key, spec.seed)
                if run := found.get(spec.hash):
                    self._note_fewest(key[2], spec, run.result.get("images_per_class"))
                    # Some measures are not there for all data: kappa is for grades.
                    value = run.result["metrics"].get(part, {}).get(metric)
                    if value is not None:
                        self._done.setdefault(key, {})[spec.seed] = float(value)
        self.labels = _unique(cell.label for cell in plan.cells)
        self.datasets = _unique(cell.spec.dataset for cell in plan.cells)
        # None, a row that is not swept, goes first; values of one sweep are of one kind.
        places = _unique(place for _, _, place, _ in self._planned)
        self.places = sorted(places, key=_order)
        rows = {(place, label) for label, _, place, _ in self._planned}
        self.rows_compete = len(rows) > len(places)  # whether any place has two rows

    def _plan_seed(self, key: tuple[str, str, At, str], seed: int) -> None:
        seeds = self._planned.setdefault(key, set())
        if seed in seeds:
            raise ConfigError(
                f"Two runs of plan '{self.plan.name}' are both called '{key[0]}' on {key[1]}, "
                f"seed {seed}. Give each row of the grid a label of its own."
            )
        seeds.add(seed)

    def _note_fewest(self, place: At, spec: RunSpec, counts: Sequence[int] | None) -> None:
        if counts and spec.shots is not None and min(counts) < spec.shots:
            key = (place, spec.dataset)
            self.fewest[key] = min(min(counts), self.fewest.get(key, spec.shots))

    def parts(self, place: At) -> list[str]:
        """The measured parts that were planned at a place, in the order of columns."""
        there = {part for _, _, at, part in self._planned if at == place}
        return [part for part in ("base", "novel", "test") if part in there]

    def seeds(self, label: str, dataset: str, place: At, part: str) -> Seeds:
        """The value of each finished seed."""
        if part != "hm":
            return self._done.get((label, dataset, place, part), {})
        base, novel = (self.seeds(label, dataset, place, name) for name in ("base", "novel"))
        return {seed: harmonic_mean(base[seed], novel[seed]) for seed in base if seed in novel}

    def of(self, label: str, dataset: str, place: At, part: str) -> Amount | None:
        """The mean over the seeds of one dataset; None where nothing is finished."""
        seeds = self.seeds(label, dataset, place, part)
        if not seeds:
            return None
        value = _mean(seeds.values())
        if part == "hm":  # of the means over seeds, as published
            value = harmonic_mean(
                *(
                    _mean(self.seeds(label, dataset, place, name).values())
                    for name in ("base", "novel")
                )
            )
        planned = self._planned[label, dataset, place, "base" if part == "hm" else part]
        std = float(np.std(list(seeds.values())))
        return Amount(value, std, len(seeds), len(planned))

    def wanted(self, place: At, part: str) -> list[str]:
        """The datasets that any row has at a place: an average is over all of them."""
        name = "base" if part in ("hm", "mean-hm") else part
        there = {dataset for _, dataset, at, mine in self._planned if (at, mine) == (place, name)}
        return [dataset for dataset in self.datasets if dataset in there]

    def average(
        self, label: str, place: At, part: str, datasets: Sequence[str] | None = None
    ) -> Amount | None:
        """The mean over datasets; it is complete when every run of every dataset is there."""
        datasets = self.wanted(place, part) if datasets is None else datasets
        if part == "hm":
            both = [self.average(label, place, name, datasets) for name in ("base", "novel")]
            own = self.average(label, place, "mean-hm", datasets)
            if own is None or both[0] is None or both[1] is None:
                return None
            value = harmonic_mean(both[0].value, both[1].value)
            return Amount(value, own.std, own.done, own.planned)
        name = "hm" if part == "mean-hm" else part
        amounts = [self.of(label, dataset, place, name) for dataset in datasets]
        there = [amount for amount in amounts if amount is not None]
        if not there:
            return None
        return Amount(
            _mean(amount.value for amount in there),
            _mean(amount.std for amount in there),
            sum(amount.complete for amount in there),
            len(datasets),
        )


def place_of(spec: RunSpec, sweep: str | None) -> At:
    """Where a run stands along the columns of a plan's tables."""
    value = spec.budget if sweep == "budget" else spec.settings.get(sweep or "")
    if isinstance(value, list | dict):
        value = json.dumps(value)  # a place is a key
    return At(spec.shots, spec.flips, value)


def _parts(spec: RunSpec) -> tuple[str, ...]:
    return ("base", "novel") if spec.protocol == "base-to-novel" else ("test",)


def _order(place: At) -> tuple[Any, ...]:
    numeric = isinstance(place.value, int | float)
    return (
        place.shots or math.inf,  # None: all images
        place.flips,
        place.value is not None,
        (0, place.value, "") if numeric else (1, 0, str(place.value)),
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
