"""What a model says about an image: class, probability, set, whether to abstain, and why.

Every command, page and export that answers for an image decides here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ogkd.backbones.builtin import is_builtin, unlike_phantoms
from ogkd.errors import ConfigError
from ogkd.features.encode import EncodedBatch
from ogkd.images import ImageRef
from ogkd.images.memory import InMemory
from ogkd.model.answers import Answers
from ogkd.model.calibration import Calibration
from ogkd.model.engine_note import engine_note
from ogkd.model.familiarity import Familiarity, can_judge
from ogkd.model.findings import Answer
from ogkd.model.policy import Policy
from ogkd.model.prior import class_shares, equal, reweighted, shown_shares
from ogkd.model.support_sets import SupportSets

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier

COVERAGE = 0.9  # of prediction sets if none is asked for


@dataclass(frozen=True)
class Share:
    """A picture of a bag, and its share in the bag's answer."""

    image: ImageRef | None  # None: it is not a file
    share: float


@dataclass(frozen=True)
class Decision:
    """What the model says about one image; None stands for what is not known."""

    image: ImageRef | None = None  # None: it is not a file
    label: int | None = None
    prediction: str | None = None
    probability: float | None = None
    probabilities: tuple[float, ...] | None = None  # of every class or finding, in label order
    answers: tuple[Answer, ...] | None = None  # about every finding; then there is no class
    set: tuple[str, ...] | None = None  # classes that are plausible at the wanted coverage
    abstain: bool | None = None  # None: no risk was promised
    unfamiliar: bool | None = None  # None: too few support images to tell
    not_phantom: bool | None = None  # True: the built-in model cannot know it; None: another one
    reasons: tuple[str, ...] = ()  # why a specialist should look; empty if nothing speaks for it
    error: str | None = None  # why the image could not be read; then nothing else is known
    bag: str | None = None  # the bag that is answered, or that the image is a picture of
    pictures: int | None = None  # of a bag: how many of them were read
    decided_by: tuple[Share, ...] = ()  # of a bag: the pictures that weigh most, the first most
    weight: float | None = None  # of a picture: its share in the answer for its bag
    features: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)  # [d]
    patches: Tensor | None = field(default=None, repr=False, compare=False)  # [P, d], if asked for
    crop: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)  # what was seen

    def __repr__(self) -> str:
        """What is known, with short numbers."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.repr}
        shown = {name: value for name, value in known.items() if value not in (None, ())}
        if self.image is not None:
            shown["image"] = str(self.image)
        if self.probability is not None:
            shown["probability"] = round(self.probability, 4)
        if self.probabilities is not None:
            shown["probabilities"] = tuple(round(value, 4) for value in self.probabilities)
        return f"Decision({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class Decider:
    """Decides by one policy; what the policy needs of the model is checked at once."""

    def __init__(self, classifier: Classifier, policy: Policy | None = None) -> None:
        self.classifier = classifier
        self.policy = policy = policy or Policy()
        self.coverage = COVERAGE if policy.coverage is None else policy.coverage
        self.notes: list[str] = []
        self.threshold: float | None = None  # of the top probability, below which it abstains
        self._calibration = classifier.class_calibration
        self._answers = Answers(classifier, policy) if classifier.card.findings else None
        self.prior: NDArray[np.float64] | None = None  # class frequencies, if given
        if self._answers is not None:
            self.notes += self._answers.notes
        elif policy.sensitivity is not None:
            raise ConfigError(
                "sensitivity is for models that answer several findings; this one gives an image "
                "one class. It takes max_risk and coverage.",
                argument="sensitivity",
            )
        elif policy.prior is not None:
            # What the calibration promised is for the frequencies of its own images.
            self._calibration, names = None, classifier.class_names
            self.prior = class_shares(policy.prior, names)
            self.notes.append(
                f"Probabilities are for these class frequencies: {shown_shares(self.prior, names)}."
            )
        if policy.max_risk is not None:
            self.threshold = _calibrated(classifier, "max_risk").threshold(
                policy.max_risk, confidence=policy.confidence
            )
            self.notes.append(
                f"Abstaining if the probability is below {self.threshold:.4f}: with "
                f"{100 * policy.confidence:g} % confidence, at most {100 * policy.max_risk:g} % of "
                "the other predictions are wrong on images like those of the calibration."
            )
        plain = self._answers is None
        self._from_support = self._support_sets() if plain else None
        if self._from_support is None and plain:
            if policy.coverage is not None:
                _calibrated(classifier, "coverage", prior=policy.prior is not None)
            elif policy.prior is not None and classifier.calibration is not None:
                self.notes.append(
                    "Note: there are no prediction sets. The calibration promises them for the "
                    "class frequencies of its own images."
                )
        if note := engine_note(classifier):
            self.notes.append(f"Note: {note}")
        try:
            if self._from_support is not None:
                self._from_support.check(self.coverage)
                self.notes.append(self._from_support.note(self.coverage))
            elif self._calibration is not None:
                evenly = np.full((1, len(classifier.class_names)), 1 / len(classifier.class_names))
                self._calibration.sets(evenly, coverage=self.coverage, kind=policy.sets)
        except ConfigError as error:
            if policy.coverage is not None:
                raise
            self._calibration = self._from_support = (
                None  # no sets were asked for: continue without
            )
            self.notes.append(f"Note: there are no prediction sets. {error}")
        self._builtin = is_builtin(classifier.backbone)
        self._familiarity = None
        if classifier.support is not None and can_judge(classifier.support):
            self._familiarity = Familiarity(classifier.support, classifier.backbone.embed_dim)

    def _support_sets(self) -> SupportSets | None:
        """Sets from the images learned from: without a calibration, or in place of one on them.

        Answers to these same images, held out in turn, give a temperature, but only an estimate of
        sets: exact ones replace it once every class has images enough. Their promise is for each
        class, so it holds at all class frequencies, where that of a calibration does not.
        """
        calibration = self.classifier.calibration
        if calibration is None or self.policy.prior is not None:
            return SupportSets.of(self.classifier)
        others = set(calibration.image_keys) - set(self.classifier.card.support_images)
        if others or self.policy.sets != "lac":
            return None
        found = SupportSets.of(self.classifier)
        return found if found is not None and found.holds(self.coverage) else None

    @property
    def least_probability(self) -> float | None:
        """A class is in the set if its probability is at least this; None without "lac" sets."""
        if self._calibration is None or self._from_support or self.policy.sets != "lac":
            return None
        return self._calibration.least_probability(self.coverage)

    def decide(
        self, features: NDArray[np.float32], images: Sequence[ImageRef] | None = None
    ) -> list[Decision]:
        """Decide for features [N, d] of images."""
        strange, real = self.odd(features)
        p = self.classifier.probabilities(features)
        if self.prior is not None:
            p = reweighted(p, self.prior, equal(p.shape[1]))
        return [
            replace(
                said,
                image=None if images is None else a_file(images[row]),
                features=features[row],
            )
            for row, said in enumerate(self.answers(p, self.sets(p, features), strange, real))
        ]

    def odd(
        self, features: NDArray[np.float32]
    ) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_] | None]:
        """Which rows are unlike the support, and which are not phantoms; None if unknown."""
        strange = None if self._familiarity is None else self._familiarity.unfamiliar(features)
        return strange, unlike_phantoms(features) if self._builtin else None

    def answers(
        self,
        p: NDArray[np.float32],
        sets: NDArray[np.bool_] | None,
        strange: NDArray[np.bool_] | None,
        real: NDArray[np.bool_] | None,
    ) -> list[Decision]:
        """The decision for each row of probabilities [N, C], with what else is known about it."""
        names, found = self.classifier.class_names, []
        for row, shares in enumerate(p):
            best = int(shares.argmax())
            top, prediction = float(shares[best]), names[best]
            inside = answers = None
            if sets is not None:
                inside = tuple(name for name, in_it in zip(names, sets[row], strict=True) if in_it)
            if self._answers is not None:
                answers = self._answers.of(shares.tolist())
                prediction = self._answers.prediction(answers)
            not_phantom = None if real is None else bool(real[row])
            unfamiliar = None if strange is None else bool(strange[row])
            said = Decision(
                label=best if answers is None else None,
                prediction=prediction,
                probability=top if answers is None else None,
                probabilities=tuple(map(float, shares)),
                answers=answers,
                set=inside,
                abstain=None if self.threshold is None else top < self.threshold,
                unfamiliar=not_phantom or unfamiliar,
                not_phantom=not_phantom,
            )
            reasons = tuple(self._reasons(said))
            found.append(replace(said, reasons=reasons) if reasons else said)
        return found

    def decide_batches(self, batches: Iterable[EncodedBatch]) -> Iterator[Decision]:
        """Decide for images that were encoded here or elsewhere, in order."""
        for batch in batches:
            decisions: Iterator[Decision] = iter(())
            if batch.features is not None:
                rows = batch.features.rows.detach().cpu().float().numpy()
                decisions = iter(self._with_evidence(batch, self.decide(rows, batch.readable)))
            for row, image in enumerate(batch.images):
                error = batch.errors.get(row)
                yield next(decisions) if error is None else Decision(a_file(image), error=error)

    def _with_evidence(self, batch: EncodedBatch, decisions: list[Decision]) -> list[Decision]:
        """The decisions, with patches and crops if the batch has patches."""
        patches = None if batch.features is None else batch.features.patches
        if patches is None:
            return decisions
        crops: Sequence[NDArray[np.uint8] | None] = batch.crops or [None] * len(decisions)
        return [
            replace(said, patches=own.cpu(), crop=crop)
            for said, own, crop in zip(decisions, patches, crops, strict=True)
        ]

    def sets(
        self, p: NDArray[np.float32], features: NDArray[np.float32] | None = None
    ) -> NDArray[np.bool_] | None:
        """Prediction sets [N, C] by probabilities, and features where the support gives them."""
        if self._from_support is not None and features is not None:
            return self._from_support.sets(features, coverage=self.coverage)
        if self._calibration is None:
            return None
        return self._calibration.sets(p, coverage=self.coverage, kind=self.policy.sets)

    def _reasons(self, said: Decision) -> Iterator[str]:
        """Why a specialist should look: the model is unsure, or has seen nothing like it."""
        if said.not_phantom:
            yield (
                "The built-in model knows only computer-drawn phantoms, and this image is not one: "
                "do not rely on the answer."
            )
        if self._answers is not None and (unsure := self._answers.unsure(said.answers or ())):
            yield f"It is unsure about: {', '.join(unsure)}."
        if said.abstain:
            yield (
                f"Its confidence of {said.probability:.1%} is below the {self.threshold:.1%} that "
                f"keeps the share of errors at most {100 * (self.policy.max_risk or 0):g}%."
            )
        if said.set is not None and len(said.set) != 1:
            several = f"{len(said.set)} classes are plausible, not one"
            found = several if said.set else "no class is plausible"
            yield f"At {100 * self.coverage:g}% coverage {found}."
        elif said.set is not None and said.prediction not in said.set:
            yield f"At {100 * self.coverage:g}% coverage only {said.set[0]} is plausible."
        if said.unfamiliar and not said.not_phantom:
            yield "The image is unlike the images that the model learned from."


def a_file(image: ImageRef) -> ImageRef | None:
    """The image if it is a file; one in memory is not held by a decision about it."""
    return None if isinstance(image, InMemory) else image


def _calibrated(classifier: Classifier, argument: str, *, prior: bool = False) -> Calibration:
    if prior:
        raise ConfigError(
            f"{argument} cannot be promised with a prior here: a calibration promises it on "
            "average over its own images, and a class that is more frequent elsewhere may be "
            "covered less. Sets that hold for every class come from the images learned from (nine "
            "of each class or more, methods such as fused). Leave one of them out.",
            argument=argument,
        )
    if classifier.class_calibration is None:
        other = ""
        if argument == "coverage":
            other = f", and {classifier.card.method} gives no sets without that"
        raise ConfigError(
            f"{argument} needs a calibrated model, and this one is not{other}. Calibrate it with "
            "labelled images that it did not learn from.",
            argument=argument,
        )
    return classifier.class_calibration
