"""From images to answers: every command, page and export decides here.

A case is one or more images that share one answer; pooling over one image is the identity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ogkd.backbones.builtin import OUT_OF_DOMAIN
from ogkd.core.pooling import Pooling
from ogkd.data.case import Case
from ogkd.data.task import Answer, Array, Masks, Probabilities, Task, require_guarantees
from ogkd.errors import ConfigError, pluralize
from ogkd.features.encode import EncodedBatch, encode_files
from ogkd.images import ImageRef
from ogkd.images.memory import InMemory
from ogkd.model.calibration import COVERAGE, CalibratedSets, Calibration
from ogkd.model.familiarity import Familiarity, can_judge
from ogkd.model.policy import Policy, class_shares, reweighted
from ogkd.model.support_sets import SupportSets

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier

Encode = Callable[[Iterable[ImageRef]], Iterator[EncodedBatch]]
Rows = NDArray[np.float32]
_DECIDING = 3  # images at most that are named as those that decided
_NUMBERS = {2: "Two", 3: "Three", 4: "Four", 5: "Five"}
_NEGLIGIBLE = 0.01  # weight below which an image has not decided the answer


@dataclass(frozen=True)
class SeenImage:
    """One image of a case and what the model says of it alone; with an error, nothing is known."""

    image: ImageRef
    error: str | None = None  # why it could not be read
    logits: Rows | None = field(default=None, repr=False, compare=False)  # [C], not calibrated
    unfamiliar: bool | None = None
    out_of_domain: bool | None = None
    weight: float = 0.0  # in the answer of its case
    # What it was encoded to [d] and seen as; kept only until its case is decided:
    features: Rows | None = field(default=None, repr=False, compare=False)
    crop: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Decision:
    """What the model says about one case; None stands for what is not known."""

    case: Case
    answer: Answer | None = None  # None: no image could be read
    abstain: bool | None = None  # None: no risk was guaranteed
    unfamiliar: bool | None = None  # None: too few support images to tell
    out_of_domain: bool | None = None  # True: the backbone itself cannot know such images
    reasons: tuple[str, ...] = ()  # why not to rely on it; empty if nothing speaks against it
    images: tuple[SeenImage, ...] = ()
    logits: Rows | None = field(default=None, repr=False, compare=False)  # [C], not calibrated
    features: Rows | None = field(default=None, repr=False, compare=False)  # [d], of `image`
    crop: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)  # of it, too

    @property
    def errors(self) -> tuple[tuple[ImageRef, str], ...]:
        """Images that could not be read, and why."""
        return tuple((seen.image, seen.error) for seen in self.images if seen.error is not None)

    @property
    def deciding(self) -> tuple[SeenImage, ...]:
        """The images that weigh most in the answer, at most three, the first most."""
        readable = [seen for seen in self.images if seen.error is None]
        most = sorted(readable, key=lambda seen: -seen.weight)[:_DECIDING]
        return tuple(seen for seen in most if seen is most[0] or seen.weight >= _NEGLIGIBLE)

    @property
    def image(self) -> ImageRef | None:
        """The image that decided most, or represents the case; None if it is not a file."""
        image = self.deciding[0].image if self.deciding else self.case.image
        return None if isinstance(image, InMemory) else image

    @property
    def prediction(self) -> str | None:
        return None if self.answer is None else self.answer.prediction

    @property
    def probability(self) -> float | None:
        return None if self.answer is None else self.answer.probability

    @property
    def probabilities(self) -> tuple[float, ...] | None:
        return None if self.answer is None else self.answer.probabilities

    @property
    def set(self) -> tuple[str, ...] | None:
        return None if self.answer is None else self.answer.plausible

    @property
    def read(self) -> int:
        """How many images of the case were read."""
        return len(self.case.images) - len(self.errors)

    @property
    def error(self) -> str | None:
        """Why there is no answer; None if there is one."""
        if self.answer is not None:
            return None
        if not self.errors:
            return f"'{self.case.name}' has no image."
        if len(self.errors) == 1:
            return self.errors[0][1]
        return f"None of its {len(self.errors)} images can be read. The first: {self.errors[0][1]}"

    def __repr__(self) -> str:
        shown = {"case": self.case.name, "answer": self.prediction}
        if self.probability is not None:
            shown["probability"] = f"{self.probability:.4f}"
        extra = {"set": self.set, "abstain": self.abstain, "unfamiliar": self.unfamiliar,
                 "reasons": self.reasons or None, "error": self.error}  # fmt: skip
        known = {**shown, **{name: value for name, value in extra.items() if value is not None}}
        return f"Decision({', '.join(f'{name}={value!r}' for name, value in known.items())})"


def case_logits(
    task: Task, poolings: Sequence[Pooling], image_logits: Tensor, case: Tensor
) -> Tensor:
    """Logits [B, C] of cases by those of their images [N, C]; case [N] numbers them from 0.

    A model that was fitted on single images has no poolings: an image is then its own case, and
    several are pooled by the defaults.
    """
    if not poolings and len(case) == int(case.max()) + 1:
        return image_logits
    poolings = poolings or default_poolings(task)
    tables = [torch.from_numpy(table) for table in task.questions(image_logits.double().numpy())]
    pairs = zip(poolings, tables, strict=True)
    pooled: Tensor = task.combine([pooling.logits(table, case) for pooling, table in pairs])
    return pooled.float()


def default_poolings(task: Task) -> list[Pooling]:
    """Of each question, for cases of several images where none was fitted."""
    return [Pooling(normal=normal) for normal in task.question_normal()]


def image_weights(
    task: Task, poolings: Sequence[Pooling], image_logits: Tensor, p: Sequence[float]
) -> Array:
    """The weight [n] of each image of one case in its answer with probabilities p."""
    if len(image_logits) == 1:
        return np.ones(1)
    poolings = poolings or default_poolings(task)
    label = task.evidence_label(p)
    tables = task.questions(image_logits.double().numpy())
    question, column = task.locate(label)
    weights: Array = poolings[question].weights(torch.from_numpy(tables[question]), column).numpy()
    return weights


class Decider:
    """Decides by one policy; what the policy needs of the model is checked at once."""

    def __init__(self, classifier: Classifier, policy: Policy | None = None) -> None:
        self.classifier = classifier
        self.task = task = classifier.task
        self.policy = policy = policy or Policy()
        self.coverage = COVERAGE if policy.coverage is None else policy.coverage
        self.notes: list[str] = []
        self.threshold: float | None = None  # of the top probability, below which it abstains
        require_guarantees(task, max_risk=policy.max_risk, prior=policy.prior)
        self.prior = None if policy.prior is None else class_shares(policy.prior, task.names)
        if self.prior is not None:
            shown = zip(task.names, self.prior, strict=True)
            shares = ", ".join(f"{name} {100 * share:.3g} %" for name, share in shown)
            self.notes.append(f"Probabilities are for these class frequencies: {shares}.")
        if policy.max_risk is not None:
            self.threshold = self._abstention_threshold(policy.max_risk)
        self.sets: SupportSets | CalibratedSets | None = None
        try:
            self.sets = self._prediction_sets()
        except ConfigError as error:
            if policy.coverage is not None:
                raise
            self.notes.append(f"Note: there are no prediction sets. {error}")
        if self.sets is not None:
            self.notes += self.sets.notes(self.coverage)
        elif classifier.calibration is None and "sensitivity" in task.guarantees:
            self.notes.append("Note: the model is not calibrated: yes means 50 % or more.")
        if note := engine_note(classifier):
            self.notes.append(f"Note: {note}")
        self._familiarity = None
        if classifier.support is not None and can_judge(classifier.support):
            self._familiarity = Familiarity(classifier.support, classifier.backbone.embed_dim)

    @property
    def least_probability(self) -> list[Array] | None:
        """Smallest plausible probabilities of each question; None if sets do not rest on them."""
        return self.sets.limits(self.coverage) if isinstance(self.sets, CalibratedSets) else None

    def _abstention_threshold(self, max_risk: float) -> float:
        confidence = self.policy.confidence
        calibration = self._calibrated("max_risk")
        threshold = calibration.questions[0].threshold(max_risk, confidence=confidence)
        rule = f"Abstaining if the probability is below {threshold:.4f}"
        how = f"with {100 * confidence:g} % confidence" if calibration.split else "by estimate"
        self.notes.append(
            f"{rule if threshold else 'No answer needs to be withheld'}: {how}, at most "
            f"{100 * max_risk:g} % of the other predictions are wrong on images like those of the "
            "calibration."
        )
        return threshold

    def _prediction_sets(self) -> SupportSets | CalibratedSets | None:
        """Sets from the images learned from, or from the calibration; None: there are none.

        Answers to the images learned from, held out in turn, give a temperature, but only an
        estimate of sets: exact ones replace such a calibration once every class has images enough.
        They hold for each class, so at all class frequencies, where a calibration's do not.
        """
        calibration, policy = self.classifier.calibration, self.policy
        sets: SupportSets | CalibratedSets | None = None
        if calibration is None or self.prior is not None:
            sets = SupportSets.of(self.classifier)
        elif set(calibration.image_keys) <= set(self.classifier.card.support_images):
            exact = SupportSets.of(self.classifier)
            sets = exact if exact is not None and exact.holds(self.coverage) else None
        if sets is None:
            if policy.coverage is not None:
                self._calibrated("coverage")
            if calibration is None:
                return None
            if self.prior is not None:
                raise ConfigError(
                    "A calibration guarantees sets for the class frequencies of its own images, "
                    "not for others.",
                    argument="coverage",
                )
            sets = CalibratedSets(calibration, self.task)
        sets.check(self.coverage)
        return sets

    def _calibrated(self, argument: str) -> Calibration:
        if self.classifier.calibration is None:
            raise ConfigError(
                f"{argument} needs a calibrated model, and this one is not. Calibrate it with "
                "labelled images that it did not learn from.",
                argument=argument,
            )
        return self.classifier.calibration

    def decide(
        self,
        cases: Iterable[Case],
        encode: Encode | None = None,
        *,
        crops: bool = False,
        batch_size: int = 32,
    ) -> Iterator[Decision]:
        """One decision for each case, in order; memory grows with the images of one case.

        `encode` is where encodings come from (default: the files); `crops` keeps what the tower
        saw, which evidence maps need.
        """
        model = self.classifier
        # Crops of many images would fill the memory: that of the deciding one is made again.
        keep = crops and not model.card.grouping.joins_images

        def from_files(images: Iterable[ImageRef]) -> Iterator[EncodedBatch]:
            return encode_files(model.backbone, images, deep=model.deep, batch_size=batch_size)

        waiting: deque[Case] = deque()

        def images() -> Iterator[ImageRef]:
            for case in cases:
                waiting.append(case)
                yield from case.images

        seen: list[SeenImage] = []  # of the first case that waits
        for batch in (encode or from_files)(images()):
            complete: list[tuple[Case, list[SeenImage]]] = []
            for image in self._seen(batch, crops=keep):
                while not waiting[0].images:  # which no batch will complete
                    complete.append((waiting.popleft(), []))
                seen.append(image)
                if len(seen) == len(waiting[0].images):
                    complete.append((waiting.popleft(), seen))
                    seen = []
            yield from self._decided(complete)
        yield from self._decided([(case, []) for case in waiting])

    def _seen(self, batch: EncodedBatch, *, crops: bool) -> Iterator[SeenImage]:
        """Every image of a batch with what the model says of it alone."""
        if batch.features is not None:
            rows = batch.features.rows.detach().cpu().float().numpy()
            logits = self.classifier.logits(rows)
            unfamiliar = self.unfamiliar(rows)
            foreign = self.classifier.backbone.out_of_domain(rows)
        row = 0
        for position, image in enumerate(batch.images):
            if position in batch.errors:
                yield SeenImage(image, error=batch.errors[position])
                continue
            yield SeenImage(
                image,
                logits=logits[row],
                unfamiliar=None if unfamiliar is None else bool(unfamiliar[row]),
                out_of_domain=None if foreign is None else bool(foreign[row]),
                features=rows[row],
                crop=batch.crops[row] if crops and batch.crops is not None else None,
            )
            row += 1

    def _decided(self, complete: Sequence[tuple[Case, list[SeenImage]]]) -> Iterator[Decision]:
        """Decisions for cases all of whose images have been seen."""
        readable = [[seen for seen in images if seen.error is None] for _, images in complete]
        answers = self._answers([images for images in readable if images])
        for (case, images), good in zip(complete, readable, strict=True):
            if good:
                yield self._decision(case, images, good, *next(answers))
            else:
                yield Decision(case, images=tuple(images))

    def _answers(self, cases: Sequence[list[SeenImage]]) -> Iterator[tuple[Rows, Answer]]:
        """Logits and the answer of each case, by its readable images."""
        if not cases:
            return
        model, task = self.classifier, self.task
        number = torch.from_numpy(np.repeat(np.arange(len(cases)), list(map(len, cases))))
        logits = case_logits(
            task, model.poolings, _logits([seen for case in cases for seen in case]), number
        ).numpy()
        p = task.probabilities(logits, model.calibration)
        if self.prior is not None:
            p = reweighted(p, self.prior)
        features = np.stack([_features(case[0]) for case in cases])
        answers = task.answers(p, self.plausible(p, features))
        for row, (case, answer) in enumerate(zip(cases, answers, strict=True)):
            if isinstance(self.sets, SupportSets) and len(case) > 1:  # they rank single images
                answer = replace(answer, plausible=None)
            yield logits[row], answer

    def unfamiliar(self, rows: Rows) -> NDArray[np.bool_] | None:
        """Which rows of features [N, d] are unlike those learned from; None: too few to tell."""
        return None if self._familiarity is None else self._familiarity.unfamiliar(rows)

    def plausible(self, p: Probabilities, features: Rows) -> Masks | None:
        """Sets for probabilities p [N, C] of features [N, d]; None without a guarantee."""
        return None if self.sets is None else self.sets.members(p, features, self.coverage)

    def _decision(
        self,
        case: Case,
        images: Sequence[SeenImage],
        readable: Sequence[SeenImage],
        logits: Rows,
        answer: Answer,
    ) -> Decision:
        weights = image_weights(
            self.task, self.classifier.poolings, _logits(readable), answer.probabilities
        )
        first = readable[int(np.argsort(-weights, kind="stable")[0])]
        weight = iter(weights.tolist())
        foreign = majority([seen.out_of_domain for seen in readable])
        top = answer.probability
        decision = Decision(
            case,
            answer,
            abstain=None if self.threshold is None or top is None else top < self.threshold,
            unfamiliar=foreign or majority([seen.unfamiliar for seen in readable]),
            out_of_domain=foreign,
            images=tuple(
                seen
                if seen.error is not None
                else replace(seen, weight=next(weight), features=None, crop=None)
                for seen in images
            ),
            logits=logits,
            features=first.features,
            crop=first.crop,
        )
        reasons = tuple(self._reasons(decision, answer))
        return replace(decision, reasons=reasons) if reasons else decision

    def _reasons(self, decision: Decision, answer: Answer) -> Iterator[str]:
        """Why a person should judge: the model is unsure, or has seen nothing like it."""
        if decision.out_of_domain:
            yield OUT_OF_DOMAIN
        if answer.unsure and answer.verdicts is not None:
            pairs = zip(self.task.names, answer.verdicts, strict=True)
            yield f"It is unsure about: {', '.join(n for n, word in pairs if word == 'unsure')}."
        if decision.abstain:
            yield (
                f"Its confidence of {answer.probability:.1%} is below the {self.threshold:.1%} "
                f"that keeps the share of errors at most {100 * (self.policy.max_risk or 0):g}%."
            )
        members = answer.plausible
        if members is not None and len(members) != 1:
            count = _NUMBERS.get(len(members), str(len(members)))
            yield f"{count} classes remain possible." if members else "No class seems possible."
        elif members is not None and answer.prediction not in members:
            yield f"Only {members[0]} seems possible."
        if decision.unfamiliar and not decision.out_of_domain:
            yield "The image is unlike the images that the model learned from."
        if decision.errors:
            yield f"{pluralize(len(decision.errors), 'image')} could not be read."


def _logits(images: Sequence[SeenImage]) -> Tensor:
    return torch.from_numpy(np.stack([seen.logits for seen in images if seen.logits is not None]))


def _features(seen: SeenImage) -> Rows:
    assert seen.features is not None  # it was read
    return seen.features


def engine_note(classifier: Classifier) -> str:
    """A warning if images are encoded in another way than guarantees rest on; else nothing."""
    calibration, used = classifier.calibration, classifier.backbone.engine
    made = classifier.card.backbone.engine
    if calibration is not None:
        made = calibration.engine or made
    elif classifier.head.ranking is None or classifier.support is None:
        return ""
    if used == made:
        return ""
    source = "images learned from" if calibration is None else "images of the calibration"
    return (
        f"The {source} were encoded with the engine {made}, but here {used} encodes the images: "
        "prediction sets and risks are not guaranteed for that."
    )


def majority(votes: Sequence[bool | None]) -> bool | None:
    """Majority vote over a case's images; None if nothing is known."""
    known = [vote for vote in votes if vote is not None]
    return sum(known) > len(known) / 2 if known else None
