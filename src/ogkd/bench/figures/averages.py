"""From finished runs to curves: means and deviations along an axis, over seeds and datasets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.analysis import harmonic_mean
from ogkd.bench.results import Plan, Run
from ogkd.bench.spec import RunSpec
from ogkd.errors import ConfigError

__all__ = [
    "Curve",
    "Material",
    "Panel",
    "Runs",
    "Values",
    "average",
    "gather",
    "harmonic",
    "spread",
    "two_runs",
]

Runs = Sequence[tuple[str, Run]]
Values = dict[tuple[str, float | None], dict[str, dict[int, float]]]
"""(label, place on the axis; None: on no place) -> dataset -> seed -> value."""


@dataclass(frozen=True)
class Material:
    """What every figure is made from."""

    plan: Plan
    runs: Runs
    pair: tuple[str, str] | None  # labels of the two methods that are compared

    @property
    def two(self) -> tuple[str, str]:
        """The pair, for figures that need one."""
        if self.pair is None:
            raise ConfigError(
                f"It compares two methods, but '{self.plan.name}' has finished runs of one alone."
            )
        return self.pair


@dataclass(frozen=True)
class Curve:
    """Means and standard deviations (NaN where there is one seed) along an axis."""

    label: str
    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    flat: bool = False  # does not depend on the axis: one value, drawn as a level


@dataclass(frozen=True)
class Panel:
    """One picture of several curves."""

    title: str
    curves: tuple[Curve, ...]
    datasets: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # datasets that lack runs, points that lack datasets


def gather(
    runs: Runs, place: Callable[[RunSpec], float | None], value: Callable[[Run], float]
) -> Values:
    """Values by label, place on the axis, dataset and seed; what is not a number is missing."""
    found: Values = {}
    seen: dict[tuple[str, float | None, str, int], RunSpec] = {}
    for label, run in runs:
        spec, x = run.spec, place(run.spec)
        other = seen.setdefault((label, x, spec.dataset, spec.seed), spec)
        if other != spec:
            raise ConfigError(two_runs(label, other, spec))
        number = value(run)
        if math.isfinite(number):
            found.setdefault((label, x), {}).setdefault(spec.dataset, {})[spec.seed] = number
    return found


def two_runs(label: str, one: RunSpec, other: RunSpec) -> str:
    """The message for two runs that a figure could not tell apart."""
    ours, theirs = one.model_dump(), other.model_dump()
    fields = [name for name in ours if ours[name] != theirs[name]]
    return (
        f"{one.dataset} has several runs of '{label}' that differ in {', '.join(fields)}, and the "
        "figure has one place for them. Give rows that differ a label of their own in the grid."
    )


def spread(values: Iterable[float]) -> float:
    """Standard deviation over runs (population, as the released code); NaN for fewer than two."""
    numbers = list(values)
    return float(np.std(numbers)) if len(numbers) > 1 else math.nan


def average(values: Values, title: str) -> Panel:
    """Curves averaged over the datasets that have every point of every curve.

    A mean is over seeds, then over datasets. The deviation is that of the average over datasets
    from seed to seed, over the seeds that all of them have. In a half-finished plan, a point
    with less than half as many datasets as the fullest is left out first.
    """
    return _average(title, lambda numbers: numbers[0], values)


def harmonic(base: Values, novel: Values, title: str) -> Panel:
    """The harmonic mean of the average base and the average novel value (HM of averages)."""
    return _average(title, lambda numbers: float(harmonic_mean(*numbers)), base, novel)


def _average(title: str, combine: Callable[[list[float]], float], *tables: Values) -> Panel:
    # (label, place) -> for each table, dataset -> seed -> value; only datasets in all tables
    cells = {
        key: [table[key] for table in tables]
        for key in tables[0]
        if all(key in table for table in tables)
    }
    names = {key: set.intersection(*map(set, cell)) for key, cell in cells.items()}
    everything = set().union(*names.values())
    fullest = max(map(len, names.values()), default=0)
    shown = [key for key, mine in names.items() if 2 * len(mine) >= fullest]
    kept = sorted(everything.intersection(*(names[key] for key in shown)))
    points: dict[str, list[tuple[float | None, float, float]]] = {}
    for label, place in shown if kept else ():
        found = [[table[name] for name in kept] for table in cells[label, place]]
        mean = combine([_mean(_mean(seeds.values()) for seeds in one) for one in found])
        common = set.intersection(*(set(seeds) for one in found for seeds in one))
        by_seed = [
            combine([_mean(seeds[seed] for seeds in one) for one in found])
            for seed in sorted(common)
        ]
        points.setdefault(label, []).append((place, mean, spread(by_seed)))
    curves = [curve for label, found in points.items() for curve in _curves(label, found)]
    missing = sorted(everything.difference(kept))
    missing += [f"{label} at {place:g}" for label, place in names if place is not None
                and (label, place) not in shown]  # fmt: skip
    return Panel(title, tuple(curves), tuple(kept), tuple(missing))


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _curves(label: str, points: list[tuple[float | None, float, float]]) -> list[Curve]:
    along = sorted((place, mean, std) for place, mean, std in points if place is not None)
    level = [(0.0, mean, std) for place, mean, std in points if place is None]
    curves = []
    for found, flat in ((along, False), (level, True)):
        if found:
            x, mean, std = np.array(found, dtype=np.float64).T
            curves.append(Curve(label, x, mean, std, flat=flat))
    return curves
