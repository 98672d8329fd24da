"""The tasks: one of several classes, or which of several findings."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ogkd.data.names import fold_name
from ogkd.data.task import (
    ABSENT,
    NO,
    NOTHING,
    PRESENT,
    UNKNOWN,
    UNSURE,
    YES,
    Answer,
    Array,
    Masks,
    Probabilities,
    Target,
    Task,
)
from ogkd.errors import DataError, pluralize

if TYPE_CHECKING:
    from ogkd.data.case import Case


@dataclass(frozen=True)
class OneOf(Task):
    """Exactly one of the classes is right; a target is its number."""


@dataclass(frozen=True)
class Findings(Task):
    """Each finding is present or not; a target says what is known of each."""

    kind: ClassVar[str] = "findings"
    noun: ClassVar[str] = "finding"
    fewest: ClassVar[int] = 1
    guarantees: ClassVar[frozenset[str]] = frozenset({"coverage", "sensitivity"})
    affine: ClassVar[bool] = True
    first_columns: ClassVar[int] = 2
    no_option: ClassVar[tuple[str, ...]] = ("unlabelled", "normal")
    needs: ClassVar[tuple[str, ...]] = ("findings",)

    def shown(self, target: Target) -> tuple[int, ...]:
        return tuple(f for f, known in enumerate(_known(target)) if known == PRESENT)

    def strata(self, target: Target) -> tuple[int, ...]:
        return tuple(2 * f + known for f, known in enumerate(_known(target)) if known != UNKNOWN)

    def text(self, target: Target) -> str:
        mark = {PRESENT: "", UNKNOWN: "?"}
        pairs = zip(self.names, _known(target), strict=True)
        return "|".join(name + mark[known] for name, known in pairs if known in mark) or NOTHING

    def cells(self, target: Target) -> list[tuple[str, str]]:
        pairs = zip(self.names, _known(target), strict=True)
        return [(name, "" if known == UNKNOWN else str(known)) for name, known in pairs]

    def merge(self, targets: Sequence[Target]) -> Target | None:
        columns = zip(*map(_known, targets), strict=True)
        order = (PRESENT, UNKNOWN, ABSENT)  # what one image says of the whole case
        return tuple(next(known for known in order if known in column) for column in columns)

    def agree(self, targets: Sequence[Target]) -> Target | None:
        known = [set(values) - {UNKNOWN} for values in zip(*map(_known, targets), strict=True)]
        if any(len(values) > 1 for values in known):
            return None
        return tuple(next(iter(values), UNKNOWN) for values in known)

    def restrict(self, numbers: Sequence[int]) -> tuple[Task, Callable[[Target], Target | None]]:
        names = tuple(self.names[number] for number in numbers)
        return Findings(names), lambda target: tuple(_known(target)[f] for f in numbers)

    def translate(self, other: Task, targets: Sequence[Target]) -> tuple[list[Target], list[str]]:
        self._require_same(other)
        column = {fold_name(name): number for number, name in enumerate(other.names)}
        missing = [name for name in self.names if fold_name(name) not in column]
        if len(missing) == len(self.names):
            raise DataError(
                f"The data has none of the model's findings: {', '.join(self.names)}. It has: "
                f"{', '.join(other.names)}."
            )
        numbers = [column.get(fold_name(name)) for name in self.names]
        translated: list[Target] = [
            tuple(UNKNOWN if n is None else _known(target)[n] for n in numbers)
            for target in targets
        ]
        warning = f"The data says nothing about: {', '.join(missing)}. They are not evaluated."
        return translated, [warning] if missing else []

    def draw(self, cases: Sequence[Case], shots: int, seed: int, rng: random.Random) -> list[Case]:
        """Cases until each finding has `shots` with it and as many without, the rarest first.

        A case is drawn once and tells about all of its findings, so that some get more.
        """
        line = sorted(cases, key=lambda case: case.image.as_posix())
        random.Random(f"findings {seed}").shuffle(line)
        by_stratum: dict[int, list[int]] = {}  # positions: two cases may have an image in common
        for position, case in enumerate(line):
            for stratum in self.strata(case.target):
                by_stratum.setdefault(stratum, []).append(position)
        drawn: dict[int, None] = {}
        for members in sorted(by_stratum.values(), key=len):
            drawn |= dict.fromkeys(members[:shots])
        return [line[position] for position in drawn]

    def counts(self, targets: Sequence[Target]) -> dict[str, dict[str, int]]:
        words = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}
        columns = dict(zip(self.names, self.labels(targets).T.tolist(), strict=True))
        return {
            name: {word: column.count(value) for word, value in words.items()}
            for name, column in columns.items()
        }

    def summary(self, targets: Sequence[Target]) -> str:
        counts = self.counts(targets).items()
        each = [f"{name} {'/'.join(map(str, row.values()))}" for name, row in counts]
        what = f"{pluralize(len(self.names), self.noun)} in {pluralize(len(targets), 'image')}"
        return f"{what} (present/absent/unknown): {', '.join(each)}."

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (len(self.names),)

    @property
    def label_range(self) -> tuple[int, int]:
        return UNKNOWN, PRESENT

    def learnable(self, targets: Sequence[Target]) -> tuple[list[int], list[str]]:
        kept, warnings = [], []
        for f, (name, known) in enumerate(self.counts(targets).items()):
            if known["present"] and known["absent"]:
                kept.append(f)
                continue
            lacking = "without" if known["present"] else "with"
            warnings.append(
                f"'{name}' is left out: no image to learn from is known to be {lacking} it "
                f"({known['present']} present, {known['absent']} absent, {known['unknown']} "
                "unknown)."
            )
        if not kept:
            raise DataError(
                "No finding can be learned: each needs a training image that shows it (1) and one "
                "that does not (0)."
            )
        return kept, warnings

    def questions(self, logits: ArrayLike) -> list[Array]:
        z = np.asarray(logits, dtype=np.float64)
        return [np.stack([np.zeros_like(column), column], axis=1) for column in z.T]

    def combine(self, tables: Sequence[Any]) -> Any:
        columns = [table[:, 1] - table[:, 0] for table in tables]
        if isinstance(columns[0], np.ndarray):
            return np.stack(columns, axis=1)
        import torch

        return torch.stack(columns, dim=1)

    def question_labels(self, labels: Any) -> list[Any]:
        return [labels[:, f] for f in range(len(self.names))]

    def question_names(self) -> list[tuple[str, ...]]:
        return [(f"no {name}", name) for name in self.names]

    def question_normal(self) -> list[tuple[int, ...]]:
        return [(0,)] * len(self.names)

    def _joined(self, tables: Sequence[Probabilities]) -> Probabilities:
        return np.stack([table[:, 1] for table in tables], axis=1)

    def plausible(self, p: Probabilities, limits: Sequence[Array]) -> Masks:
        absent, present = np.array(limits, dtype=np.float64).T
        shares = p.astype(np.float64)
        return np.stack([1 - shares >= absent, shares >= present], axis=2)

    def answers(self, p: Probabilities, plausible: Masks | None) -> list[Answer]:
        likely = p >= 0.5
        absent, present = ~likely, likely
        if plausible is not None:
            absent, present = plausible[..., 0], plausible[..., 1]
        # Where neither answer is plausible, the likelier one is given.
        yes = np.where(absent | present, present, likely)
        words = np.where(present & absent, UNSURE, np.where(yes, YES, NO))
        return [
            Answer(
                "|".join(n for n, word in zip(self.names, row, strict=True) if word == YES)
                or NOTHING,
                tuple(map(float, shares)),
                verdicts=tuple(map(str, row)),
            )
            for shares, row in zip(p, words, strict=True)
        ]

    def locate(self, label: int) -> tuple[int, int]:
        return label, 1

    def lead(self, logits: Any, label: int) -> Any:
        """The log-odds: other findings speak neither for nor against it."""
        return logits[..., label]

    def columns(self, answer: Answer | None) -> list[tuple[str, object]]:
        pairs = [column for name in self.names for column in (name, f"{name} probability")]
        columns = ["prediction", "unsure", *pairs]
        if answer is None:
            return [(name, None) for name in columns]
        rows = list(zip(self.names, answer.verdicts or (), answer.probabilities, strict=True))
        unsure = "|".join(name for name, word, _ in rows if word == UNSURE)
        each = [cell for _, *cells in rows for cell in cells]
        return list(zip(columns, [answer.prediction, unsure, *each], strict=True))


TASKS: Mapping[str, type[Task]] = {task.kind: task for task in (OneOf, Findings)}


def task_from_json(record: Mapping[str, Any]) -> Task:
    """Rebuild what `Task.as_json` gives; ValueError if it is not one."""
    kind, names = record["kind"], tuple(record["names"])
    valid = all(isinstance(name, str) and name.strip() for name in names)
    if kind not in TASKS or not valid or not TASKS[kind].fewest <= len(set(names)) == len(names):
        raise ValueError(f"not a task '{kind}' about the names {names}")
    normal = tuple(names.index(name) for name in record.get("normal", ()))
    return TASKS[kind](names, normal)


def require_classes(task: Task, who: str) -> None:
    """Refuse, in the name of `who`, a task that does not give each case one class."""
    if not isinstance(task, OneOf):
        raise DataError(
            f"{who} needs one class for each image, but this data lists several findings "
            f"({', '.join(task.names)}). Give a table with a column label."
        )


def _known(target: Target) -> tuple[int, ...]:
    assert isinstance(target, tuple)
    return target
