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
from ogkd.model.calibration import COVERAGE, Calibration
from ogkd.model.engine_note import engine_note
from ogkd.model.familiarity import Familiarity, can_judge
from ogkd.model.policy import Policy, class_shares, reweighted
from ogkd.model.scaling import held_out_for_coverage, held_out_for_sensitivity
from ogkd.model.support_sets import SupportSets

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier

Encode = Callable[[Iterable[ImageRef]], Iterator[EncodedBatch]]
Rows = NDArray[np.float32]
_DECIDING = 3  # images at most that are named as those that decided
_NEGLIGIBLE = 0.01  # weight below which an image has not decided the answer


@dataclass(frozen=True)
class ImageWeight:
    """An image of a case, and its weight in the case's answer."""

    image: ImageRef
    weight: float


@dataclass(frozen=True)
class Decision:
    """What the model says about one case; None stands for what is not known."""

    case: Case
    answer: Answer | None = None  # None: no image could be read
    abstain: bool | None = None  # None: no risk was guaranteed
    unfamiliar: bool | None = None  # None: too few support images to tell
    out_of_domain: bool | None = None  # True: the backbone itself cannot know such images
    reasons: tuple[str, ...] = ()  # why a person should judge; empty if nothing speaks for it
    errors: tuple[tuple[ImageRef, str], ...] = ()  # images that could not be read, and why
    deciding: tuple[ImageWeight, ...] = ()  # the images that weigh most, the first most
    logits: Rows | None = field(default=None, repr=False, compare=False)  # [C], not calibrated
    image_logits: Rows | None = field(default=None, repr=False, compare=False)  # [n, C]
    weights: Array | None = field(default=None, repr=False, compare=False)  # [n], of those
    image_unfamiliar: tuple[bool | None, ...] = field(default=(), repr=False)  # [n], too
    features: Rows | None = field(default=None, repr=False, compare=False)  # [d], of the first
    crop: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)  # what was seen

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
        require_guarantees(
            task, max_risk=policy.max_risk, prior=policy.prior, sensitivity=policy.sensitivity
        )
        self.prior = None if policy.prior is None else class_shares(policy.prior, task.names)
        if self.prior is not None:
            shown = zip(task.names, self.prior, strict=True)
            shares = ", ".join(f"{name} {100 * share:.3g} %" for name, share in shown)
            self.notes.append(f"Probabilities are for these class frequencies: {shares}.")
        if policy.max_risk is not None:
            self.threshold = self._abstention_threshold(policy.max_risk)
        self._limits: list[Array] | None = None
        self.support_sets: SupportSets | None = None
        try:
            self._prepare_sets()
        except ConfigError as error:
            if policy.coverage is not None or policy.sensitivity is not None:
                raise
            self._limits = self.support_sets = None  # none was requested: continue without
            self.notes.append(f"Note: there are no prediction sets. {error}")
        if note := engine_note(classifier):
            self.notes.append(f"Note: {note}")
        self._familiarity = None
        if classifier.support is not None and can_judge(classifier.support):
            self._familiarity = Familiarity(classifier.support, classifier.backbone.embed_dim)

    @property
    def least_probability(self) -> list[Array] | None:
        """Smallest plausible probabilities of each question; None if sets do not rest on them."""
        return None if self.support_sets is not None else self._limits

    def _abstention_threshold(self, max_risk: float) -> float:
        confidence = self.policy.confidence
        calibration = self._calibrated("max_risk")
        threshold = calibration.questions[0].threshold(max_risk, confidence=confidence)
        how = f"with {100 * confidence:g} % confidence" if calibration.split else "by estimate"
        self.notes.append(
            f"Abstaining if the probability is below {threshold:.4f}: {how}, at most "
            f"{100 * max_risk:g} % of the other predictions are wrong on images like those of the "
            "calibration."
        )
        return threshold

    def _prepare_sets(self) -> None:
        """Sets from the support, where they hold for each class, or from the calibration."""
        calibration, policy = self.classifier.calibration, self.policy
        self.support_sets = self._sets_from_support()
        if self.support_sets is not None:
            self.support_sets.check(self.coverage)
            self.notes.append(self.support_sets.note(self.coverage))
            return
        if calibration is None:
            for argument in ("coverage", "sensitivity"):
                if getattr(policy, argument) is not None:
                    self._calibrated(argument)
            if self.task.affine:
                self.notes.append("Note: the model is not calibrated: yes means 50 % or more.")
            return
        if self.prior is not None:
            raise ConfigError(
                "A calibration guarantees sets for the class frequencies of its own images, not "
                "for others.",
                argument="coverage",
            )
        if not self.task.affine:
            calibration.require_sets(self.coverage)
        asked = policy.sensitivity is not None
        self._limits = calibration.limits(
            self.task,
            self.coverage,
            sensitivity=policy.sensitivity,
            confidence=policy.confidence if asked else None,
        )
        if self.task.affine:
            self.notes += self._finding_guarantees(calibration)

    def _sets_from_support(self) -> SupportSets | None:
        """Sets from the images learned from: without a calibration, or in place of one on them.

        Answers to these same images, held out in turn, give a temperature, but only an estimate of
        sets: exact ones replace it once every class has images enough. They hold for each class, so
        at all class frequencies, where those of a calibration do not.
        """
        calibration = self.classifier.calibration
        if calibration is None or self.prior is not None:
            return SupportSets.of(self.classifier)
        if set(calibration.image_keys) - set(self.classifier.card.support_images):
            return None
        sets = SupportSets.of(self.classifier)
        return sets if sets is not None and sets.holds(self.coverage) else None

    def _calibrated(self, argument: str) -> Calibration:
        if self.classifier.calibration is None:
            raise ConfigError(
                f"{argument} needs a calibrated model, and this one is not. Calibrate it with "
                "labelled images that it did not learn from.",
                argument=argument,
            )
        return self.classifier.calibration

    def _finding_guarantees(self, calibration: Calibration) -> Iterator[str]:
        policy, coverage = self.policy, self.coverage
        asked = policy.sensitivity is not None
        wanted = policy.sensitivity if asked else calibration.sensitivity
        level = policy.confidence if asked else calibration.confidence
        missed = f"{100 * (1 - (coverage if wanted is None else wanted)):g} %"
        how = "" if wanted is None else f" (with {100 * level:g} % confidence)"
        yield (
            f"On images like those of the calibration, at most {missed} of the images with a "
            f"finding are answered no{how}, and at most {100 * (1 - coverage):g} % of those "
            "without it yes; others are unsure."
        )
        least = held_out_for_coverage(coverage)
        needed = least if wanted is None else held_out_for_sensitivity(wanted, level)
        for word, column, number in (("no", 1, needed), ("yes", 0, least)):
            counts = [len(question.scores[column]) for question in calibration.questions]
            pairs = zip(self.task.names, counts, strict=True)
            if lacking := [f"{name} ({count})" for name, count in pairs if count < number]:
                kind = "with" if column else "without"
                yield (
                    f"Note: '{word}' cannot be guaranteed, and is not answered, for: "
                    f"{', '.join(lacking)}. It takes {number} held-out calibration images {kind} "
                    "the finding; two thirds of the calibration images are held out."
                )

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

        pending = _Pending()
        for batch in (encode or from_files)(images()):
            complete: list[tuple[Case, _Pending]] = []
            for image in self._judged(batch, crops=keep):
                complete += _without_images(waiting)
                pending.add(image)
                if pending.count == len(waiting[0].images):
                    complete.append((waiting.popleft(), pending))
                    pending = _Pending()
            yield from self._decided(complete)
        yield from self._decided(list(_without_images(waiting)))

    def _judged(self, batch: EncodedBatch, *, crops: bool) -> Iterator[_Image]:
        """Every image of a batch with what the model says of it alone."""
        rows = logits = unfamiliar = foreign = None
        features = batch.features
        if features is not None:
            rows = features.rows.detach().cpu().float().numpy()
            logits = self.classifier.logits(rows)
            unfamiliar = self.unfamiliar(rows)
            foreign = self.classifier.backbone.out_of_domain(rows)
        row = 0
        for position, image in enumerate(batch.images):
            if position in batch.errors:
                yield _Image(image, error=batch.errors[position])
                continue
            assert rows is not None
            assert logits is not None
            yield _Image(
                image,
                rows[row],
                logits[row],
                None if unfamiliar is None else bool(unfamiliar[row]),
                None if foreign is None else bool(foreign[row]),
                batch.crops[row] if crops and batch.crops is not None else None,
            )
            row += 1

    def _decided(self, complete: Sequence[tuple[Case, _Pending]]) -> Iterator[Decision]:
        """Decisions for cases all of whose images have been seen."""
        readable = [(case, images) for case, images in complete if images.readable]
        answers: Iterator[tuple[Rows, Answer, Array]] = iter(())
        if readable:
            answers = self._answers([images for _, images in readable])
        for case, images in complete:
            if not images.readable:
                yield Decision(case, errors=images.errors)
                continue
            logits, answer, weights = next(answers)
            yield self._decision(case, images, logits, answer, weights)

    def _answers(self, cases: Sequence[_Pending]) -> Iterator[tuple[Rows, Answer, Array]]:
        model, task = self.classifier, self.task
        number = np.repeat(np.arange(len(cases)), [len(case.readable) for case in cases])
        z = torch.from_numpy(np.stack([i.logits for case in cases for i in case.readable]))
        logits = case_logits(task, model.poolings, z, torch.from_numpy(number)).numpy()
        p = task.probabilities(logits, model.calibration)
        if self.prior is not None:
            p = reweighted(p, self.prior)
        features = np.stack([case.readable[0].features for case in cases])
        answers = task.answers(p, self.plausible(p, features))
        for row, (case, answer) in enumerate(zip(cases, answers, strict=True)):
            image_logits = torch.from_numpy(np.stack([image.logits for image in case.readable]))
            weights = image_weights(task, model.poolings, image_logits, answer.probabilities)
            if self.support_sets is not None and len(case.readable) > 1:  # they rank single images
                answer = replace(answer, plausible=None)
            yield logits[row], answer, weights

    def unfamiliar(self, rows: Rows) -> NDArray[np.bool_] | None:
        """Which rows of features [N, d] are unlike those learned from; None: too few to tell."""
        return None if self._familiarity is None else self._familiarity.unfamiliar(rows)

    def plausible(self, p: Probabilities, features: Rows) -> Masks | None:
        """Sets for probabilities p [N, C] of features [N, d]; None without a guarantee."""
        if self.support_sets is not None:
            return self.support_sets.sets(features, coverage=self.coverage)
        return None if self._limits is None else self.task.plausible(p, self._limits)

    def _decision(
        self, case: Case, images: _Pending, logits: Rows, answer: Answer, weights: Array
    ) -> Decision:
        order = np.argsort(-weights, kind="stable")[:_DECIDING].tolist()
        deciding = tuple(
            ImageWeight(images.readable[n].image, float(weights[n]))
            for n in order
            if n == order[0] or weights[n] >= _NEGLIGIBLE
        )
        first = images.readable[order[0]]
        foreign = majority([image.out_of_domain for image in images.readable])
        unfamiliar = majority([image.unfamiliar for image in images.readable])
        top = answer.probability
        decision = Decision(
            case,
            answer,
            abstain=None if self.threshold is None or top is None else top < self.threshold,
            unfamiliar=foreign or unfamiliar,
            out_of_domain=foreign,
            errors=images.errors,
            deciding=deciding,
            logits=logits,
            image_logits=np.stack([image.logits for image in images.readable]),
            weights=weights,
            image_unfamiliar=tuple(i.out_of_domain or i.unfamiliar for i in images.readable),
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
            several = f"{len(members)} classes are plausible, not one"
            what = several if members else "no class is plausible"
            yield f"At {100 * self.coverage:g}% coverage {what}."
        elif members is not None and answer.prediction not in members:
            yield f"At {100 * self.coverage:g}% coverage only {members[0]} is plausible."
        if decision.unfamiliar and not decision.out_of_domain:
            yield "The image is unlike the images that the model learned from."
        if decision.errors:
            yield f"{pluralize(len(decision.errors), 'image')} could not be read."


@dataclass(frozen=True)
class _Image:
    """One encoded image; with an error, nothing else is known."""

    image: ImageRef
    features: Rows = field(default_factory=lambda: np.empty(0, np.float32))
    logits: Rows = field(default_factory=lambda: np.empty(0, np.float32))
    unfamiliar: bool | None = None
    out_of_domain: bool | None = None
    crop: NDArray[np.uint8] | None = None
    error: str | None = None


class _Pending:
    """The images of a case that have been seen so far."""

    def __init__(self) -> None:
        self.readable: list[_Image] = []
        self.errors: tuple[tuple[ImageRef, str], ...] = ()

    @property
    def count(self) -> int:
        return len(self.readable) + len(self.errors)

    def add(self, image: _Image) -> None:
        if image.error is None:
            self.readable.append(image)
        else:
            self.errors = (*self.errors, (image.image, image.error))


def _without_images(waiting: deque[Case]) -> Iterator[tuple[Case, _Pending]]:
    """Take the next cases as long as they have no image, which no batch will complete."""
    while waiting and not waiting[0].images:
        yield waiting.popleft(), _Pending()


def majority(votes: Sequence[bool | None]) -> bool | None:
    """Majority vote over a case's images; None if nothing is known."""
    known = [vote for vote in votes if vote is not None]
    return sum(known) > len(known) / 2 if known else None
