"""What is asked about a case: which one of several classes, or which of several findings.

A dataset has a task, a model card keeps it, and whatever differs between tasks is here: how targets
are encoded and drawn, which questions logits answer, how an answer reads. Another kind of question,
such as ordinal grades, is one more class in this file.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ogkd.errors import ConfigError, pluralize

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


class Calibrated(Protocol):
    """A calibration: for each question of a task, an object with `probabilities(logits)`."""

    @property
    def questions(self) -> Sequence[Any]: ...


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
class Task(ABC):
    """The names that are asked about; `normal` are the numbers of those that mean "no finding"."""

    names: tuple[str, ...]
    normal: tuple[int, ...] = ()

    kind: ClassVar[str]
    noun: ClassVar[str]  # what a name is
    fewest: ClassVar[int]  # names that a model needs
    guarantees: ClassVar[frozenset[str]]  # that a policy may request
    affine: ClassVar[bool]  # whether calibration shifts logits, too
    first_columns: ClassVar[int]  # columns of an answer before those of the names
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

    @abstractmethod
    def shown(self, target: Target) -> tuple[int, ...]:
        """The numbers of the names that a case shows."""

    def strata(self, target: Target) -> tuple[int, ...]:
        """What each part of a divided dataset should have its share of."""
        return self.shown(target)

    @abstractmethod
    def text(self, target: Target) -> str:
        """A target in words."""

    @abstractmethod
    def cells(self, target: Target) -> list[tuple[str, str]]:
        """A target as columns and cells of a table."""

    @abstractmethod
    def merge(self, targets: Sequence[Target]) -> Target | None:
        """The target of a case by those of its images; None if they contradict each other."""

    @abstractmethod
    def agree(self, targets: Sequence[Target]) -> Target | None:
        """The target of one image by those of its copies; None if they contradict each other."""

    @abstractmethod
    def restrict(self, numbers: Sequence[int]) -> tuple[Task, Callable[[Target], Target | None]]:
        """The task about some of its names, and the new target for an old one; None: there is none.

        Names keep their order.
        """

    @abstractmethod
    def translate(self, other: Task, targets: Sequence[Target]) -> tuple[list[Target], list[str]]:
        """Targets of another task as targets of this one, matched by name, and warnings."""

    @abstractmethod
    def draw(
        self, cases: Sequence[Case], shots: int, seed: int, rng: random.Random | None
    ) -> list[Case]:
        """`shots` cases of each class, or with and without each finding.

        With `rng`, as the released code draws; without, nested: the cases of K shots are among
        those of more, whatever their order.
        """

    @abstractmethod
    def counts(self, targets: Sequence[Target]) -> dict[str, dict[str, int]]:
        """What the targets say about each name, and how many do."""

    def summary(self, targets: Sequence[Target]) -> str:
        """What a user should know about the targets before a fit; "": nothing."""
        return ""

    def support_counts(self, targets: Sequence[Target]) -> tuple[int, ...]:
        """How many targets show each name."""
        counter = Counter(number for target in targets for number in self.shown(target))
        return tuple(counter[number] for number in range(len(self.names)))

    def shown_names(self, label: Any) -> str:
        """The names that a row of `labels` shows, as a|b."""
        target = tuple(label.tolist()) if np.ndim(label) else label
        return "|".join(self.names[number] for number in self.shown(target)) or NOTHING

    def labels(self, targets: Sequence[Target]) -> Labels:
        """Targets as an array: [N] classes, or [N, F] findings."""
        return np.array(targets, dtype=np.int64).reshape(len(targets), *self.label_shape)

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of one target as an array."""
        return ()

    @property
    def label_range(self) -> tuple[int, int]:
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

    def probabilities(
        self, logits: ArrayLike, calibration: Calibrated | None = None
    ) -> Probabilities:
        """Probabilities [N, C] of the names, calibrated if a calibration is given."""
        tables = self.questions(logits)
        if calibration is None:
            return self._joined([softmax(table) for table in tables])
        pairs = zip(calibration.questions, tables, strict=True)
        return self._joined([question.probabilities(table) for question, table in pairs])

    @abstractmethod
    def plausible(self, p: Probabilities, limits: Sequence[Array]) -> Masks:
        """Which classes of each question may be right: [N, C], or [N, F, 2] for findings.

        `limits` are the smallest plausible probabilities of each question's classes.
        """

    @abstractmethod
    def answers(self, p: Probabilities, plausible: Masks | None) -> list[Answer]:
        """Answers for probabilities [N, C]; `plausible` is what the method of that name returns."""

    def evidence_label(self, p: Sequence[float]) -> int:
        """The name that evidence is shown for."""
        return int(np.argmax(p))

    def locate(self, label: int) -> tuple[int, int]:
        """The question that a name belongs to, and its class there."""
        return 0, label

    @abstractmethod
    def lead(self, logits: Any, label: int) -> Any:
        """How far logits [.., C] speak for a name, and not for others: [..]."""

    # Tables of predictions

    @abstractmethod
    def columns(self, answer: Answer | None) -> list[tuple[str, object]]:
        """Columns and cells of an answer; of None, the columns with empty cells.

        The cell `abstain`, which a policy decides, is empty.
        """

    @abstractmethod
    def judged_cells(self, target: Target, answer: Answer) -> list[tuple[str, str]]:
        """Columns and cells of a target beside the answer."""

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
