"""What is asked of an image, one class or several findings, and how logits answer it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ogkd.errors import ConfigError
from ogkd.model.calibration import Calibration
from ogkd.model.calibration_file import CalibrationFile
from ogkd.model.card import ModelCard
from ogkd.model.findings import (
    COVERAGE,
    Answer,
    FindingsCalibration,
    Limits,
    needed_for_sensitivity,
    sigmoid,
)
from ogkd.model.temperature import softmax

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier
    from ogkd.model.policy import Policy

NONE = "none"  # the prediction where no finding is answered with yes


def probabilities_of(
    logits: NDArray[np.float32], calibration: CalibrationFile | None, *, findings: bool
) -> NDArray[np.float32]:
    """Probabilities of a model's logits: of classes they add up to 1, of findings each is alone."""
    if isinstance(calibration, FindingsCalibration):
        return calibration.probabilities(logits)
    if findings:
        return sigmoid(logits)
    return softmax(logits, calibration.temperature if isinstance(calibration, Calibration) else 1.0)


def read_calibration(path: Path, weights_sha256: str, card: ModelCard) -> CalibrationFile | None:
    """The calibration beside a model; None if there is none."""
    kind: type[CalibrationFile] = FindingsCalibration if card.findings else Calibration
    found = kind.read(path, weights_sha256=weights_sha256)
    if found is not None and found.names != (classes := len(card.class_names)):
        what = "findings" if card.findings else "classes"
        raise ConfigError(
            f"{path} is for {found.names} {what}, but the model has {classes}. "
            "Calibrate again, or delete this file."
        )
    return found


class Answers:
    """Yes, no or unsure for each finding, by what a policy wants to be promised."""

    def __init__(self, classifier: Classifier, policy: Policy) -> None:
        self.names = classifier.class_names
        calibration = classifier.finding_calibration
        refused = {
            "max_risk": policy.max_risk is not None,
            "prior": policy.prior is not None,
            "sets": policy.sets != "lac",
        }
        for argument in (name for name, given in refused.items() if given):
            raise ConfigError(
                f"{argument} is for models that give an image one class, but this one answers "
                "several findings. It takes coverage and sensitivity.",
                argument=argument,
            )
        for argument in ("coverage", "sensitivity"):
            if getattr(policy, argument) is not None and calibration is None:
                raise ConfigError(
                    f"{argument} needs a calibrated model, and this one is not. Calibrate it with "
                    "labelled images that it did not learn from.",
                    argument=argument,
                )
        self.limits = [Limits()] * len(self.names)
        if calibration is None:
            self.notes = ["Note: the model is not calibrated: yes means 50 % or more."]
            return
        coverage = COVERAGE if policy.coverage is None else policy.coverage
        asked = policy.sensitivity is not None
        wanted = policy.sensitivity if asked else calibration.sensitivity
        sure = policy.confidence if asked else calibration.confidence
        self.limits = calibration.limits(coverage=coverage, sensitivity=wanted, confidence=sure)
        self.notes = list(self._promises(calibration, coverage, wanted, sure))

    def of(self, p: Sequence[float]) -> tuple[Answer, ...]:
        """The answers for the probabilities of one image."""
        return tuple(limit.answer(one) for limit, one in zip(self.limits, p, strict=True))

    def prediction(self, answers: Sequence[Answer]) -> str:
        """The findings answered with yes, as one text."""
        pairs = zip(self.names, answers, strict=True)
        return "|".join(name for name, said in pairs if said == "yes") or NONE

    def unsure(self, answers: Sequence[Answer]) -> list[str]:
        return [name for name, said in zip(self.names, answers, strict=True) if said == "unsure"]

    def _promises(
        self, found: FindingsCalibration, coverage: float, wanted: float | None, sure: float
    ) -> Iterator[str]:
        missed = f"{100 * (1 - (coverage if wanted is None else wanted)):g} %"
        how = "" if wanted is None else f" (with {100 * sure:g} % confidence)"
        yield (
            f"On images like those of the calibration, at most {missed} of the images with a "
            f"finding are answered no{how}, and at most {100 * (1 - coverage):g} % of those "
            "without it yes; others are unsure."
        )
        least = round(1 / (1 - coverage)) - 1
        needed = least if wanted is None else needed_for_sensitivity(wanted, sure)
        for what, few, number in (("no", "present", needed), ("yes", "absent", least)):
            counts = [len(getattr(one, few)) for one in found.scores]
            if lacking := [
                f"{name} ({count})"
                for name, count in zip(self.names, counts, strict=True)
                if count < number
            ]:
                kind = "with" if few == "present" else "without"
                yield (
                    f"Note: '{what}' cannot be promised, and is not answered, for: "
                    f"{', '.join(lacking)}. It takes {number} held-out calibration images {kind} "
                    "the finding; two thirds of the calibration images are held out."
                )
