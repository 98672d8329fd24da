"""Two methods on the same test images: which runs belong together, and their predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.figures.averages import Runs, two_runs
from ogkd.bench.results import Run
from ogkd.bench.spec import RunSpec
from ogkd.errors import ConfigError, DataError

__all__ = ["Pair", "choose_pair", "paired"]


@dataclass(frozen=True)
class Pair:
    """Predictions of methods A and B on the same images of one dataset, all seeds pooled."""

    title: str  # "retina, 16 shots"
    name: str  # for a file: "retina", "retina-novel"
    y: NDArray[np.int64]  # [N]
    a: NDArray[np.float64]  # [N, C]
    b: NDArray[np.float64]  # [N, C]
    run: NDArray[np.int64]  # [N], which of the pooled runs a row is from
    W: NDArray[np.float64]  # [C, C], of A
    normal: tuple[int, ...]
    dropped: int = 0  # rows with a probability that is not a number

    @property
    def seeds(self) -> int:
        """How many runs are pooled."""
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
        """Higher is chosen: all or most shots, fewest flips, the whole or the largest bank."""
        shots, budget = (math.inf if n is None else float(n) for n in (self.shots, self.budget))
        return shots, -float(self.flips), budget


def choose_pair(methods: Mapping[str, str]) -> tuple[str, str] | None:
    """OGKD and BiomedCoOp where they are there, else the first two; `methods`: label -> method."""
    ours = [label for label, method in methods.items() if method == "ogkd"][-1:]
    theirs = [label for label, method in methods.items() if method == "biomedcoop"][:1]
    # Rows called just so come first; of other variants of OGKD the last has all components.
    ours = [label for label in methods if label.casefold() == "ogkd"] or ours
    theirs = [label for label in methods if label.casefold() == "biomedcoop"] or theirs
    names = list(dict.fromkeys([*ours[:1], *theirs[:1], *methods]))
    return (names[0], names[1]) if len(names) > 1 else None


def paired(runs: Runs, pair: tuple[str, str]) -> list[Pair]:
    """A and B on each dataset and part, in one setting each: most shots, fewest flips."""
    first, second = (_by_setting(runs, label) for label in pair)
    common: dict[str, list[_Setting]] = {}
    for setting in sorted(set(first) & set(second), key=lambda key: (key.rank(), key.seed)):
        common.setdefault(f"{setting.dataset} {setting.protocol}", []).append(setting)
    if not common:
        raise ConfigError(
            f"No finished run of '{pair[0]}' has a counterpart of '{pair[1]}' on the same dataset "
            "with the same shots and seed. Finish the plan with: ogkd bench run."
        )
    found = []
    for settings in common.values():
        best = settings[-1].rank()
        chosen = [(first[key], second[key]) for key in settings if key.rank() == best]
        found += [_pool(chosen, part) for part in chosen[0][0].parts]
    return sorted(found, key=lambda pair: pair.name)


def _by_setting(runs: Runs, wanted: str) -> dict[_Setting, Run]:
    found: dict[_Setting, Run] = {}
    for label, run in runs:
        if label != wanted:
            continue
        spec = run.spec
        setting = _Setting(**{name: getattr(spec, name) for name in _Setting._fields})
        other = found.setdefault(setting, run)
        if other.spec != spec:
            raise ConfigError(two_runs(label, other.spec, spec))
    return found


def _pool(chosen: Sequence[tuple[Run, Run]], part: str) -> Pair:
    first = chosen[0][0]
    y, a, b, numbers = [], [], [], []
    for number, (ours, theirs) in enumerate(chosen):
        said, other = ours.predictions(part), theirs.predictions(part)
        if not np.array_equal(said.labels, other.labels):
            raise DataError(
                f"{ours.folder} and {theirs.folder} were judged on different images. Remove the "
                "older one and run again."
            )
        y.append(said.labels)
        a.append(said.probabilities)
        b.append(other.probabilities)
        numbers.append(np.full(len(said.labels), number))
    labels, p, q, run = (np.concatenate(rows) for rows in (y, a, b, numbers))
    whole = np.isfinite(p).all(axis=1) & np.isfinite(q).all(axis=1)
    return Pair(
        title=_title(first.spec, part),
        name=first.spec.dataset if part == "test" else f"{first.spec.dataset}-{part}",
        y=labels[whole].astype(np.int64),
        a=p[whole].astype(np.float64),
        b=q[whole].astype(np.float64),
        run=run[whole],
        W=first.predictions(part).W.astype(np.float64),
        normal=first.normal(part),
        dropped=int((~whole).sum()),
    )


def _title(spec: RunSpec, part: str) -> str:
    words = [spec.dataset if part == "test" else f"{spec.dataset} ({part})"]
    words += [f"{spec.shots} shots"] if spec.shots else []
    words += [f"{spec.flips} flips"] if spec.flips else []
    words += [f"{spec.budget} prompts"] if spec.budget else []
    return ", ".join(words)
