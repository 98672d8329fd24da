"""Calibrate a fitted classifier on images that it has not learned from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from ogkd.datasets.manifest import Manifest
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation.predictions import LabelledPredictions, predict_labelled
from ogkd.fitting.bags import few_of_each
from ogkd.model.answers import Answers
from ogkd.model.calibration import (
    Calibration,
    held_out_for_coverage,
    held_out_for_risk,
    images_needed_for_coverage,
    more_needed,
)
from ogkd.model.classifier import Classifier
from ogkd.model.findings import CONFIDENCE, FindingsCalibration
from ogkd.model.policy import Policy
from ogkd.model.temperature import BOUNDS

FEWEST = images_needed_for_coverage(0.9)
_PURPOSES = {
    "prediction sets with 90 % coverage": held_out_for_coverage(0.9),
    "prediction sets with 95 % coverage": held_out_for_coverage(0.95),
    "guaranteeing at most 10 % errors (max_risk 0.1)": held_out_for_risk(0.1),
    "guaranteeing at most 5 % errors (max_risk 0.05)": held_out_for_risk(0.05),
}


def calibrate(
    classifier: Classifier,
    data: str | Path | Manifest,
    *,
    split: str = "val",
    leave_out_used: bool = False,
    sensitivity: float | None = None,
    confidence: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Calibration | FindingsCalibration:
    """Calibrate on labelled images; images that the model was fitted on are refused.

    With `leave_out_used` they are left out instead. Nothing is changed or written: assign the
    result to `classifier.calibration`, or write it into the model folder. `say` receives short
    notes for the user. Of a model of several findings, `sensitivity` is the share of images with
    a finding that are not to be answered "no", which is then promised with `confidence` (0.9).
    """
    card = classifier.card
    for argument, given in (("sensitivity", sensitivity), ("confidence", confidence)):
        if given is not None and not card.findings:
            raise ConfigError(
                f"{argument} is for models that answer several findings; this one gives an image "
                "one class.",
                argument=argument,
            )
    found = predict_labelled(classifier, data, split=split)
    found = _unused(found, card.seen, leave_out_used=leave_out_used)
    if (images := len(found.labels)) < FEWEST:
        raise DataError(
            f"Too few {found.unit}s to calibrate on: {images}. Prediction sets that contain the "
            f"true class with 90 % probability need at least {FEWEST}: label {FEWEST - images} "
            "more that the model has not learned from."
        )
    if len({group or key for group, key in zip(found.groups, found.keys, strict=True)}) < 2:
        raise DataError(
            "All images come from one patient or group, but calibration needs at least two. Check "
            "the column with patients or groups."
        )
    images_and_model: dict[str, Any] = {
        "groups": found.groups,
        "pixels": _pixels(found),
        "weights_sha256": classifier.weights_sha256,
        "engine": classifier.backbone.engine,
    }
    calibration: Calibration | FindingsCalibration
    if found.findings:
        calibration = FindingsCalibration.fit(
            found.logits,
            found.labels,
            found.keys,
            sensitivity=sensitivity,
            confidence=CONFIDENCE if confidence is None else confidence,
            **images_and_model,
        )
    else:
        calibration = Calibration.fit(found.logits, found.labels, found.keys, **images_and_model)
    if say is not None:
        for warning in found.warnings:
            say(f"WARNING: {warning}")
        if not card.support_images and any(card.support_counts):
            say(
                "Note: this model does not record which images it learned from. Make sure that "
                "none of them are included: they would make it look more confident than it should "
                "be."
            )
        if isinstance(calibration, FindingsCalibration):
            made = Classifier(classifier.backbone, classifier.head, card, calibration=calibration)
            for note in Answers(made, Policy()).notes:
                if note.startswith("Note: "):
                    say(note)
        for note in _notes(found, calibration):
            say(f"Note: {note}")
    return calibration


def _pixels(found: LabelledPredictions) -> list[str]:
    """What recognises the images again: their pixels, of bags those of a few and all contents."""
    if not found.bags:
        return [image.pixel_fingerprint for image in found.images]
    items = [item for bag in found.bags for item in bag.items]
    few = [item.image.pixel_fingerprint for item in few_of_each(items)]
    return [*few, *(item.image.fingerprint for item in items)]


def _unused(
    found: LabelledPredictions, learned: Collection[str], *, leave_out_used: bool
) -> LabelledPredictions:
    copies, images = found.copies_of(learned), len(found.labels)
    used = int(copies.sum())
    if used and used == images:
        raise DataError(
            f"All {images} images were used for fitting this model. Calibrate on images that it "
            "has not seen: another split, or other data.",
            argument="split",
        )
    if used and not leave_out_used:
        raise DataError(
            f"The model learned from {used} of the {images} images, which would make it look more "
            f"confident than it should be. Leave out what it learned from (leave_out_used) and "
            f"calibrate on the other {images - used}, or choose another split.",
            argument="leave_out_used",
        )
    return found.without(copies)


def _notes(
    found: LabelledPredictions, calibration: Calibration | FindingsCalibration
) -> Iterator[str]:
    """What a user should know about this calibration before relying on it."""
    low, high = BOUNDS
    if (
        isinstance(calibration, Calibration)
        and not low * 1.01 < calibration.temperature < high / 1.01
    ):
        yield (
            f"the temperature {calibration.temperature:.3g} is at the limit of the allowed range: "
            "the probabilities say little about how often the model is correct."
        )
    groups = [group for group in found.groups if group is not None]
    if len(set(groups)) < len(groups):
        yield (
            f"{len(groups)} images come from {len(set(groups))} patients or groups. Sets and "
            "thresholds treat images as independent, so their guarantees are weaker than stated."
        )
    if not isinstance(calibration, Calibration):
        return
    counted = zip(found.class_names, calibration.counts, strict=True)
    if absent := ", ".join(name for name, count in counted if not count):
        yield f"there are no images of: {absent}. The guarantees do not cover them."
    for what, held_out in _PURPOSES.items():
        if more := calibration.missing(held_out):
            few = f"{calibration.images} images are too few for {what}"
            yield f"{few}: at least {more_needed(more)}."
