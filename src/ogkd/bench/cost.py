"""How long runs will take, from those that are finished."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ogkd.bench.results import Run
from ogkd.bench.run import method_of
from ogkd.bench.spec import RunSpec
from ogkd.methods import METHODS

__all__ = ["estimate", "seconds_of"]

# Before anything is finished: seconds of one run at 16 shots on one core, as `ogkd methods` says.
_ROUGH = {"instant": 0.5, "seconds": 2.0, "minutes": 120.0, "slow": 300.0}
_ONLINE = 12.0  # times as long, where every step encodes fresh crops (docs/cluster.md)
_SHOTS = 16


def seconds_of(run: Run) -> float:
    """What a run took, without the loading of the backbone."""
    return float(sum(value for phase, value in run.result["seconds"].items() if phase != "load"))


def estimate(specs: Sequence[RunSpec], finished: Sequence[Run]) -> float:
    """Seconds for these runs, one after the other.

    A run takes what the median run of its method took for each shot: training goes through the
    images a fixed number of times. Methods that have not run are guessed roughly.
    """
    rates: dict[str, list[float]] = {}
    for run in finished:
        rates.setdefault(run.spec.method, []).append(seconds_of(run) / (run.spec.shots or _SHOTS))
    total = 0.0
    for spec in specs:
        shots = spec.shots or _SHOTS
        rate = median(rates[spec.method]) if spec.method in rates else _rough(spec)
        total += shots * rate
    return total


def _rough(spec: RunSpec) -> float:
    seconds = _ROUGH.get(METHODS[spec.method].cost, 2.0) / _SHOTS
    return seconds * (_ONLINE if method_of(spec).config.views == "online" else 1.0)
