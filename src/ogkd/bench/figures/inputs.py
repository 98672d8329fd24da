"""What figures are made from: finished runs, and two methods' predictions on the same images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.paper import paper
from ogkd.bench.runs import FinishedRun, LabelledRuns, Plan, RunSpec, same_images
from ogkd.bench.tidy import Summary, indistinguishable
from ogkd.errors import ConfigError

# What two runs must have in common to be compared image by image.
_COMMON = ("dataset", "protocol", "backbone", "shots", "flips", "budget", "seed")


@dataclass(frozen=True)
class FigureInput:
    """A plan's finished runs, and the labels of the two methods A and B that are compared."""

    plan: Plan
    runs: LabelledRuns
    pair: tuple[str, str] | None  # None: there is only one method
    pair_only: bool = False  # the user chose them: other methods are not drawn beside them

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

    @property
    def seeds(self) -> int:
        return len(np.unique(self.run))


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
    both = [(first[key], second[key]) for key in first if key in second]
    if not both:
        raise ConfigError(
            f"No finished run of '{pair[0]}' has one of '{pair[1]}' with the same dataset, shots "
            "and seed."
        )
    groups: dict[tuple[str, str], list[tuple[FinishedRun, FinishedRun]]] = {}
    for two in sorted(both, key=lambda two: (_rank(two[0].spec), two[0].spec.seed)):
        groups.setdefault((two[0].spec.dataset, two[0].spec.protocol), []).append(two)
    pairs = []
    for group in groups.values():
        best = _rank(group[-1][0].spec)
        chosen = [two for two in group if _rank(two[0].spec) == best]
        pairs += [_pool(chosen, part) for part in chosen[0][0].parts]
    return sorted(pairs, key=lambda pair: pair.name)


def _rank(spec: RunSpec) -> tuple[float, float, float]:
    """The highest is compared: most shots, fewest flips, largest bank; None is all."""
    shots, budget = (math.inf if n is None else float(n) for n in (spec.shots, spec.budget))
    return shots, -float(spec.flips), budget


def _by_setting(runs: LabelledRuns, wanted: str) -> dict[tuple[object, ...], FinishedRun]:
    by_setting: dict[tuple[object, ...], FinishedRun] = {}
    for label, run in runs:
        if label == wanted:
            other = by_setting.setdefault(tuple(getattr(run.spec, name) for name in _COMMON), run)
            if other.spec != run.spec:
                raise indistinguishable(label, other.spec, run.spec)
    return by_setting


def _pool(chosen: Sequence[tuple[FinishedRun, FinishedRun]], part: str) -> PairedPredictions:
    first = chosen[0][0]
    pairs = [same_images(both, part) for both in chosen]
    sizes = [len(predictions.labels) for predictions, _ in pairs]
    return PairedPredictions(
        title=_title(first.spec, part),
        name=first.spec.dataset if part == "test" else f"{first.spec.dataset}-{part}",
        y=np.concatenate([a.labels for a, _ in pairs]).astype(np.int64),
        a=np.concatenate([a.probabilities for a, _ in pairs]).astype(np.float64),
        b=np.concatenate([b.probabilities for _, b in pairs]).astype(np.float64),
        run=np.repeat(np.arange(len(pairs)), sizes),
        W=pairs[0][0].W.astype(np.float64),
        normal=tuple(first.result["normal"][part]),
    )


def _title(spec: RunSpec, part: str) -> str:
    words = [spec.dataset if part == "test" else f"{spec.dataset} ({part})"]
    words += [f"{spec.shots} shots"] if spec.shots else []
    words += [f"{spec.flips} flips"] if spec.flips else []
    words += [f"{spec.budget} prompts"] if spec.budget else []
    return ", ".join(words)
