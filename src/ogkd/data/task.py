"""What is asked about a case: which one of several classes, or which of several findings.

A dataset has a task, a model card keeps it, and whatever differs between tasks is here: how targets
are encoded and drawn, which questions logits answer, how an answer reads. Another kind of question,
such as ordinal grades, is one more class in this file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ogkd.data.names import fold_name
from ogkd.errors import ConfigError, DataError, pluralize

if TYPE_CHECKING:
    from ogkd.data.case import Case

Target = int | tuple[int, ...]  # a class, or what is known of each finding
PRESENT, ABSENT, UNKNOWN = 1, 0, -1  # what is known of a finding
NOTHING = "none"  # the prediction where no finding is present
YES, NO, UNSURE = "yes", "no", "unsure"
Array = NDArray[np.float64]
Probabilities = NDArray[np.float32]
Labels = NDArray[np.int64]
Masks = NDArray[np.bool_]


@dataclass(frozen=True)
class Answer:
    """What a model answers about one case."""

    prediction: str  # a class; or the findings that are present, as a|b
    probabilities: tuple[float, ...]  # of every name, in order
    label: int | None = None  # of the predicted class; None for findings
    probability: float | None = None  # of the predicted class
    plausible: tuple[str, ...] | None = None  # the prediction set; None: it is not known
    verdicts: tuple[str, ...] | None = None  # yes, no or unsure about every finding

    @property
    def unsure(self) -> int:
        """How many findings are neither confirmed nor ruled out."""
        return (self.verdicts or ()).count(UNSURE)


def softmax(logits: ArrayLike) -> Probabilities:
    """Probabilities [N, C] of logits [N, C], computed in double precision."""
    z = np.asarray(logits, dtype=np.float64)
    odds = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True), dtype=np.float32)


@dataclass(frozen=True)
class Task:
    """The names that are asked about; `normal` are the numbers of those that mean "no finding".

    What is here is that of one question over all names, exactly one of which is right.
    """

    names: tuple[str, ...]
    normal: tuple[int, ...] = ()

    kind: ClassVar[str] = "classes"
    noun: ClassVar[str] = "class"  # what a name is
    fewest: ClassVar[int] = 2  # names that a model needs
    guarantees: ClassVar[frozenset[str]] = frozenset({"max_risk", "coverage", "prior"})
    affine: ClassVar[bool] = False  # whether calibration shifts logits, too
    first_columns: ClassVar[int] = 4  # columns of an answer before those of the names
    no_option: ClassVar[tuple[str, ...]] = ()  # options of a fit that have no meaning
    needs: ClassVar[tuple[str, ...]] = ()  # what a method must support (`Method.supports`)

    @property
    def plural(self) -> str:
        return f"{self.noun}es" if self.noun.endswith("s") else f"{self.noun}s"

    @property
    def normal_names(self) -> tuple[str, ...]:
        return tuple(self.names[number] for number in self.normal)

    def describe(self) -> str:
        """The names, in words: `3 classes: cyst, stone, tumor`."""
        return f"{pluralize(len(self.names), self.noun)}: {', '.join(self.names)}"

    # Targets of cases

    def shown(self, target: Target) -> tuple[int, ...]:
        """The numbers of the names that a case shows."""
        return (int(target),)  # type: ignore[arg-type]  # a class

    def strata(self, target: Target) -> tuple[int, ...]:
        """What each part of a divided dataset should have its share of."""
        return self.shown(target)

    def text(self, target: Target) -> str:
        """A target in words."""
        return self.names[int(target)]  # type: ignore[arg-type]

    def cells(self, target: Target) -> list[tuple[str, str]]:
        """A target as columns and cells of a table."""
        return [("label", self.text(target))]

    def merge(self, targets: Sequence[Target]) -> Target | None:
        """The target of a case by those of its images; None if they contradict each other."""
        classes = set(targets)
        if len(classes) > 1:
            classes = classes - set(self.normal) or {min(classes)}
        return next(iter(classes)) if len(classes) == 1 else None

    def agree(self, targets: Sequence[Target]) -> Target | None:
        """The target of one image by those of its copies; None if they contradict each other."""
        return targets[0] if len(set(targets)) == 1 else None

    def restrict(self, numbers: Sequence[int]) -> tuple[Task, Callable[[Target], Target | None]]:
        """The task about some of its names, and the new target for an old one; None: there is none.

        Names keep their order.
        """
        new = {number: position for position, number in enumerate(numbers)}
        normal = tuple(new[number] for number in self.normal if number in new)
        names = tuple(self.names[number] for number in numbers)
        return replace(self, names=names, normal=normal), new.get  # type: ignore[return-value]

    def _require_same(self, other: Task) -> None:
        if self.kind != other.kind:
            raise DataError(
                f"The model answers {self.plural}, but the data lists {other.plural}: give a table "
                "of what it answers.",
                argument="findings" if self.affine else None,
            )

    def translate(self, other: Task, targets: Sequence[Target]) -> tuple[list[Target], list[str]]:
        """Targets of another task as targets of this one, matched by name, and warnings."""
        self._require_same(other)
        known = {fold_name(name): label for label, name in enumerate(self.names)}
        names = {t: other.text(t) for t in sorted(set(targets))}
        if unknown := [name for name in names.values() if fold_name(name) not in known]:
            raise DataError(
                f"The data has classes that the model does not know: {', '.join(unknown)}. "
                f"The model knows: {', '.join(self.names)}."
            )
        label_of = {number: known[fold_name(name)] for number, name in names.items()}
        return [label_of[target] for target in targets], []

    def draw(self, cases: Sequence[Case], shots: int, seed: int, rng: random.Random) -> list[Case]:
        """`shots` cases of each class, or with and without each finding."""
        by_class: dict[int, list[Case]] = {}
        for case in cases:
            by_class.setdefault(int(case.target), []).append(case)  # type: ignore[arg-type]
        drawn: list[Case] = []
        for members in by_class.values():
            # A class with exactly `shots` is shuffled too, as released: it moves the generator.
            drawn += rng.sample(members, shots) if len(members) >= shots else members
        return drawn

    def counts(self, targets: Sequence[Target]) -> dict[str, dict[str, int]]:
        """What the targets say about each name, and how many do."""
        counter = Counter(targets)
        return {name: {"images": counter[number]} for number, name in enumerate(self.names)}

    def summary(self, targets: Sequence[Target]) -> str:
        """What a user should know about the targets before a fit; "": nothing."""
        return ""

    def support_counts(self, targets: Sequence[Target]) -> tuple[int, ...]:
        """How many targets show each name."""
        counter = Counter(number for target in targets for number in self.shown(target))
        return tuple(counter[number] for number in range(len(self.names)))

    def labels(self, targets: Sequence[Target]) -> Labels:
        """Targets as an array: [N] classes, or [N, F] findings."""
        return np.array(targets, dtype=np.int64).reshape(len(targets), *self.label_shape)

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of one target as an array."""
        return ()

    @property
    def label_range(self) -> tuple[int, int]:
        """The least and the most that a number of `labels` may be."""
        return 0, len(self.names) - 1

    def learnable(self, targets: Sequence[Target]) -> tuple[list[int], list[str]]:
        """The numbers of the names that these targets can teach, and warnings about the others."""
        return list(range(len(self.names))), []

    # Questions: choices between classes that are fitted, pooled and calibrated each by itself

    def questions(self, logits: ArrayLike) -> list[Array]:
        """The logits of each question: [N, C] once, or [N, 2] for each finding."""
        return [np.asarray(logits, dtype=np.float64)]

    def combine(self, tables: Sequence[Any]) -> Any:
        """The inverse of `questions`, for arrays and tensors."""
        return tables[0]

    def question_labels(self, labels: Any) -> list[Any]:
        """The right answer to each question, [N] each; -1: unknown."""
        return [labels]

    def question_names(self) -> list[tuple[str, ...]]:
        """For each question, the names of its classes."""
        return [self.names]

    def question_normal(self) -> list[tuple[int, ...]]:
        """For each question, the classes that mean "no finding"."""
        return [self.normal]

    def _joined(self, tables: Sequence[Probabilities]) -> Probabilities:
        """Probabilities of the names [N, C] from those of each question."""
        return tables[0]

    def probabilities(self, logits: ArrayLike, calibration: Any = None) -> Probabilities:
        """Probabilities [N, C] of the names; a calibration has `questions`, with one each."""
        tables = self.questions(logits)
        if calibration is None:
            return self._joined([softmax(table) for table in tables])
        pairs = zip(calibration.questions, tables, strict=True)
        return self._joined([question.probabilities(table) for question, table in pairs])

    def plausible(self, p: Probabilities, limits: Sequence[Array]) -> Masks:
        """Which classes of each question may be right: [N, C], or [N, F, 2] for findings.

        `limits` are the smallest plausible probabilities of each question's classes.
        """
        return np.asarray(p.astype(np.float64) >= limits[0])

    def answers(self, p: Probabilities, plausible: Masks | None) -> list[Answer]:
        """Answers for probabilities [N, C]; `plausible` is what the method of that name returns."""
        sets: list[tuple[str, ...] | None] = [None] * len(p)
        if plausible is not None:
            sets = [tuple(self.names[c] for c in np.flatnonzero(row)) for row in plausible]
        rows = zip(map(tuple, p.astype(float).tolist()), p.argmax(1).tolist(), sets, strict=True)
        return [Answer(self.names[k], shown, k, shown[k], members) for shown, k, members in rows]

    def evidence_label(self, p: Sequence[float]) -> int:
        """The name that evidence is shown for."""
        return int(np.argmax(p))

    def locate(self, label: int) -> tuple[int, int]:
        """The question that a name belongs to, and its class there."""
        return 0, label

    def lead(self, logits: Any, label: int) -> Any:
        """How far logits [.., C] speak for a name, and not for others: [..]."""
        chosen = logits[..., label]
        return chosen - (logits.sum(-1) - chosen) / max(1, logits.shape[-1] - 1)

    # Tables of predictions

    def columns(self, answer: Answer | None) -> list[tuple[str, object]]:
        """Columns and cells of an answer; of None, the columns with empty cells.

        The cell `abstain`, which a policy decides, is empty.
        """
        first = ("prediction", "probability", "abstain", "set")
        if answer is None:
            return [(name, None) for name in (*first, *self.names)]
        # An empty set is not written like an unknown one.
        members = None if answer.plausible is None else "|".join(answer.plausible) or "(none)"
        cells = (answer.prediction, answer.probability, None, members, *answer.probabilities)
        return list(zip((*first, *self.names), cells, strict=True))

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "names": list(self.names), "normal": list(self.normal_names)}


def require_guarantees(task: Task, **requested: object) -> None:
    """Refuse a guarantee that has no meaning for the task."""
    for argument, value in requested.items():
        if value is not None and argument not in task.guarantees:
            raise ConfigError(
                f"{argument} has no meaning for {task.plural}; this model takes "
                f"{' and '.join(sorted(task.guarantees))}.",
                argument=argument,
            )
