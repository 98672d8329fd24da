"""What figures are made from: finished runs, and two methods' predictions on the same images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.paper import paper
from ogkd.bench.runs import FinishedRun, LabelledRuns, Plan, RunSpec
from ogkd.bench.tidy import Summary, indistinguishable
from ogkd.errors import ConfigError, DataError


@dataclass(frozen=True)
class FigureInput:
    """A plan's finished runs, and the labels of the two methods A and B that are compared."""

    plan: Plan
    runs: LabelledRuns
    pair: tuple[str, str] | None  # None: there is only one method

    @cached_property
    def accuracy(self) -> Summary:
        return Summary(self.plan, self.runs)

    @property
    def both(self) -> tuple[str, str]:
        if self.pair is None:
            raise ConfigError(
                f"It compares two methods, but '{self.plan.name}' has finished runs of one only."
            )
        return self.pair


@dataclass(frozen=True)
class PairedPredictions:
    """Predictions of methods A and B on the same images of one dataset, all seeds pooled."""

    title: str  # "retina, 16 shots"
    name: str  # for a file: "retina", "retina-novel"
    y: NDArray[np.int64]  # [N]
    a: NDArray[np.float64]  # [N, C]
    b: NDArray[np.float64]  # [N, C]
    run: NDArray[np.int64]  # [N], which of the pooled runs a prediction is from
    W: NDArray[np.float64]  # [C, C], of A
    normal: tuple[int, ...]
    dropped: int = 0  # images with a probability that is not a number

    @property
    def seeds(self) -> int:
        return len(np.unique(self.run))


class _Setting(NamedTuple):
    """What two runs must have in common to be compared image by image."""

    dataset: str
    protocol: str
    backbone: str
    shots: int | None
    flips: int
    budget: int | None
    seed: int

    def rank(self) -> tuple[float, float, float]:
        """The highest is compared: most shots, fewest flips, largest bank; None is all."""
        shots, budget = (math.inf if n is None else float(n) for n in (self.shots, self.budget))
        return shots, -float(self.flips), budget


def choose_pair(methods: Mapping[str, str]) -> tuple[str, str] | None:
    """The paper's method and its baseline if they are there, else the first two labels.

    `methods` gives the method of each label. A row labelled like the method comes first; of other
    rows of the paper's method the last, which in the paper's ablations has all components.
    """
    names = []
    for wanted, last in ((paper().method, True), (paper().baseline, False)):
        rows = [label for label, method in methods.items() if method == wanted]
        same = [label for label in methods if label.casefold() == wanted]
        names += same[:1] or (rows[-1:] if last else rows[:1])
    names = list(dict.fromkeys([*names, *methods]))
    return (names[0], names[1]) if len(names) > 1 else None


def paired(runs: LabelledRuns, pair: tuple[str, str]) -> list[PairedPredictions]:
    """A and B on each dataset and part, at the most shots and fewest flips that both have."""
    first, second = (_by_setting(runs, label) for label in pair)
    common: dict[str, list[_Setting]] = {}
    for setting in sorted(set(first) & set(second), key=lambda key: (key.rank(), key.seed)):
        common.setdefault(f"{setting.dataset} {setting.protocol}", []).append(setting)
    if not common:
        raise ConfigError(
            f"No finished run of '{pair[0]}' has a counterpart of '{pair[1]}' on the same dataset "
            "with the same shots and seed. Finish the plan first."
        )
    found = []
    for settings in common.values():
        best = settings[-1].rank()
        chosen = [(first[key], second[key]) for key in settings if key.rank() == best]
        found += [_pool(chosen, part) for part in chosen[0][0].parts]
    return sorted(found, key=lambda pair: pair.name)


def _by_setting(runs: LabelledRuns, wanted: str) -> dict[_Setting, FinishedRun]:
    found: dict[_Setting, FinishedRun] = {}
    for label, run in runs:
        if label != wanted:
            continue
        spec = run.spec
        setting = _Setting(**{name: getattr(spec, name) for name in _Setting._fields})
        other = found.setdefault(setting, run)
        if other.spec != spec:
            raise ConfigError(indistinguishable(label, other.spec, spec))
    return found


def _pool(chosen: Sequence[tuple[FinishedRun, FinishedRun]], part: str) -> PairedPredictions:
    first = chosen[0][0]
    y, a, b, numbers = [], [], [], []
    for number, (ours, theirs) in enumerate(chosen):
        mine, other = ours.predictions(part), theirs.predictions(part)
        if not np.array_equal(mine.labels, other.labels):
            raise DataError(
                f"{ours.folder} and {theirs.folder} were tested on different images. Remove the "
                "older one and run again."
            )
        y.append(mine.labels)
        a.append(mine.probabilities)
        b.append(other.probabilities)
        numbers.append(np.full(len(mine.labels), number))
    labels, p, q, run = (np.concatenate(rows) for rows in (y, a, b, numbers))
    whole = np.isfinite(p).all(axis=1) & np.isfinite(q).all(axis=1)
    return PairedPredictions(
        title=_title(first.spec, part),
        name=first.spec.dataset if part == "test" else f"{first.spec.dataset}-{part}",
        y=labels[whole].astype(np.int64),
        a=p[whole].astype(np.float64),
        b=q[whole].astype(np.float64),
        run=run[whole],
        W=first.predictions(part).W.astype(np.float64),
        normal=tuple(first.result["normal"][part]),
        dropped=int((~whole).sum()),
    )


def _title(spec: RunSpec, part: str) -> str:
    words = [spec.dataset if part == "test" else f"{spec.dataset} ({part})"]
    words += [f"{spec.shots} shots"] if spec.shots else []
    words += [f"{spec.flips} flips"] if spec.flips else []
    words += [f"{spec.budget} prompts"] if spec.budget else []
    return ", ".join(words)
