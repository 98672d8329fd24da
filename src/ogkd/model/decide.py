"""What a model says about an image: class, probability, set, whether to abstain, and why.

Every command, page and export that answers for an image decides here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ogkd.errors import ConfigError
from ogkd.features.encode import EncodedBatch
from ogkd.images import ImageRef
from ogkd.model.calibration import Calibration, SetKind
from ogkd.model.familiarity import Familiarity, can_judge

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier

COVERAGE = 0.9  # of prediction sets that nobody asked for in particular


@dataclass(frozen=True)
class Policy:
    """What the user wants to be promised.

    Args:
        max_risk: abstain so that at most this share of the other predictions is wrong.
        confidence: how sure that promise has to be, over calibration images.
        coverage: how often the set contains the true class; None: 90 % if the calibration allows.
        sets: "lac" (smallest on average) or "aps".
    """

    max_risk: float | None = None
    confidence: float = 0.9
    coverage: float | None = None
    sets: SetKind = "lac"

    def __post_init__(self) -> None:
        if self.sets not in ("lac", "aps"):
            raise ConfigError(
                f"sets must be 'lac' or 'aps', but is '{self.sets}'.", argument="sets"
            )


@dataclass(frozen=True)
class Decision:
    """What the model says about one image; None stands for what is not known."""

    image: ImageRef | None = None
    label: int | None = None
    prediction: str | None = None
    probability: float | None = None
    probabilities: tuple[float, ...] | None = None  # of every class, in label order
    set: tuple[str, ...] | None = None  # classes that are plausible at the wanted coverage
    abstain: bool | None = None  # None: no risk was promised
    unfamiliar: bool | None = None  # None: too few support images to tell
    reasons: tuple[str, ...] = ()  # why a specialist should look; empty if nothing speaks for it
    error: str | None = None  # why the image could not be read; then nothing else is known
    features: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)  # [d]
    patches: Tensor | None = field(default=None, repr=False, compare=False)  # [P, d], if asked for
    crop: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)  # what was seen


class Decider:
    """Decides by one policy; what the policy needs of the model is checked at once."""

    def __init__(self, classifier: Classifier, policy: Policy | None = None) -> None:
        self.classifier = classifier
        self.policy = policy = policy or Policy()
        self.coverage = COVERAGE if policy.coverage is None else policy.coverage
        self.notes: list[str] = []
        self.threshold: float | None = None  # of the top probability, below which it abstains
        self._calibration = classifier.calibration
        if policy.max_risk is not None:
            self.threshold = _calibrated(classifier, "max_risk").threshold(
                policy.max_risk, confidence=policy.confidence
            )
            self.notes.append(
                f"Abstaining if the probability is below {self.threshold:.4f}: with "
                f"{100 * policy.confidence:g} % confidence, at most {100 * policy.max_risk:g} % of "
                "the other predictions are wrong on images like those of the calibration."
            )
        if policy.coverage is not None:
            _calibrated(classifier, "coverage")
        if note := engine_note(classifier):
            self.notes.append(f"Note: {note}")
        try:
            self._sets(np.full((1, len(classifier.class_names)), 1 / len(classifier.class_names)))
        except ConfigError as error:
            if policy.coverage is not None:
                raise
            self._calibration = None  # nobody asked for sets: go on without them
            self.notes.append(f"Note: there are no prediction sets. {error}")
        self._familiarity = None
        if classifier.support is not None and can_judge(classifier.support):
            self._familiarity = Familiarity(classifier.support)

    @property
    def least_probability(self) -> float | None:
        """A class is in the set if its probability is at least this; None without "lac" sets."""
        if self._calibration is None or self.policy.sets != "lac":
            return None
        return self._calibration.least_probability(self.coverage)

    def decide(
        self, features: NDArray[np.float32], images: Sequence[ImageRef] | None = None
    ) -> list[Decision]:
        """Decide for global features [N, d] of images."""
        names = self.classifier.class_names
        p = self.classifier.probabilities(features)
        sets = self._sets(p)
        strange = None if self._familiarity is None else self._familiarity.unfamiliar(features)
        found = []
        for row, shares in enumerate(p):
            best = int(shares.argmax())
            inside = (
                None
                if sets is None
                else tuple(name for name, member in zip(names, sets[row], strict=True) if member)
            )
            top = float(shares[best])
            unfamiliar = None if strange is None else bool(strange[row])
            found.append(
                Decision(
                    image=None if images is None else images[row],
                    label=best,
                    prediction=names[best],
                    probability=top,
                    probabilities=tuple(map(float, shares)),
                    set=inside,
                    abstain=None if self.threshold is None else top < self.threshold,
                    unfamiliar=unfamiliar,
                    reasons=tuple(self._reasons(top, inside, unfamiliar=bool(unfamiliar))),
                    features=features[row],
                )
            )
        return found

    def decide_batches(self, batches: Iterable[EncodedBatch]) -> Iterator[Decision]:
        """Decide for images that were encoded here or elsewhere, in order."""
        for batch in batches:
            decisions: Iterator[Decision] = iter(())
            if batch.features is not None:
                rows = batch.features.globals.detach().cpu().float().numpy()
                decisions = self._with_evidence(batch, self.decide(rows, batch.readable))
            for row, image in enumerate(batch.images):
                error = batch.errors.get(row)
                yield next(decisions) if error is None else Decision(image, error=error)

    def _with_evidence(
        self, batch: EncodedBatch, decisions: Sequence[Decision]
    ) -> Iterator[Decision]:
        """The decisions, with patches and crops if the batch has patches."""
        patches = None if batch.features is None else batch.features.patches
        for row, said in enumerate(decisions):
            decision = said
            if patches is not None:
                crop = None if batch.crops is None else batch.crops[row]
                decision = replace(decision, patches=patches[row].cpu(), crop=crop)
            yield decision

    def _sets(self, p: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.bool_] | None:
        if self._calibration is None:
            return None
        return self._calibration.sets(p, coverage=self.coverage, kind=self.policy.sets)

    def _reasons(
        self, top: float, inside: tuple[str, ...] | None, *, unfamiliar: bool
    ) -> Iterator[str]:
        """Why a specialist should look: the model is unsure, or has seen nothing like it."""
        if self.threshold is not None and top < self.threshold:
            yield (
                f"Its confidence of {top:.1%} is below the {self.threshold:.1%} that keeps the "
                f"share of errors at most {100 * (self.policy.max_risk or 0):g}%."
            )
        if inside is not None and len(inside) != 1:
            several = f"{len(inside)} classes are plausible, not one"
            found = several if inside else "no class is plausible"
            yield f"At {100 * self.coverage:g}% coverage {found}."
        if unfamiliar:
            yield "The image is unlike the images that the model learned from."


def engine_note(classifier: Classifier, *, engine: str | None = None) -> str:
    """A warning if images are encoded in another way than for the calibration; else nothing.

    `engine` is what encodes them, if it is not the classifier's backbone.
    """
    if classifier.calibration is None:
        return ""
    # Older files do not record it: calibrating then used the engine of the fit.
    made = classifier.calibration.engine or classifier.card.backbone.engine
    used = engine or classifier.backbone.engine
    if used == made:
        return ""
    advice = "" if engine else f" Calibrate again with the engine {used} to have one for it."
    return (
        f"The calibration was made with the encoder engine {made}, but here {used} encodes the "
        f"images: its promises (prediction sets, risk) do not hold for that.{advice}"
    )


def _calibrated(classifier: Classifier, argument: str) -> Calibration:
    if classifier.calibration is None:
        raise ConfigError(
            f"{argument} needs a calibrated model, and this one is not. Calibrate it with labelled "
            "images that it did not learn from.",
            argument=argument,
        )
    return classifier.calibration
