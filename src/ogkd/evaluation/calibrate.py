"""Calibrate a fitted classifier on images that it has not learned from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from ogkd.data.case import Dataset
from ogkd.data.task import require_guarantees
from ogkd.errors import ConfigError, DataError, pluralize
from ogkd.evaluation.predictions import LabelledPredictions, predict_labelled
from ogkd.evaluation.sections import Section, Table
from ogkd.model.calibration import Calibration
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider
from ogkd.model.scaling import CONFIDENCE, cases_needed_for_coverage

FEWEST = cases_needed_for_coverage(0.9)
log = logging.getLogger("ogkd.calibrate")
_WORTHWHILE = (("sets", 0.9), ("sets", 0.95), ("risk", 0.1), ("risk", 0.05))


def calibrate(
    classifier: Classifier,
    data: str | Path | Dataset,
    *,
    split: str = "val",
    leave_out_used: bool = False,
    sensitivity: float | None = None,
    confidence: float | None = None,
) -> Calibration:
    """Calibrate on labelled images; images that the model was fitted on are refused.

    With `leave_out_used` they are left out instead. Nothing is changed or written: assign the
    result to `classifier.calibration`, or write it into the model folder. Of a model of several
    findings, `sensitivity` is the share of images with a finding that are not to be answered "no",
    which is then promised with `confidence` (0.9).
    """
    card = classifier.card
    require_guarantees(
        classifier.task, sensitivity=confidence if sensitivity is None else sensitivity
    )
    every = predict_labelled(classifier, data, split=split)
    judged = every.unused(Classifier(classifier.backbone, classifier.head, card))
    if judged.left_out and not leave_out_used:
        raise DataError(
            f"The model learned from {judged.left_out} of the {len(every.labels)} images, which "
            "would make it look more confident than it should be. Leave them out "
            "(leave_out_used), or choose another split.",
            argument="leave_out_used",
        )
    if (count := len(judged.labels)) < FEWEST:
        raise DataError(
            f"Too few {judged.unit}s to calibrate on: {count}. Prediction sets that contain the "
            f"true class with 90 % probability need at least {FEWEST}: label {FEWEST - count} "
            "more that the model has not learned from."
        )
    if len({group or key for group, key in zip(judged.groups, judged.keys, strict=True)}) < 2:
        raise DataError(
            "All images come from one patient or group, but calibration needs at least two. Check "
            "the column with patients or groups."
        )
    images = [image for case in judged.cases for image in case.images]
    calibration = Calibration.fit(
        judged.task,
        judged.logits,
        judged.labels,
        judged.keys,
        groups=judged.groups,
        image_keys=[image.fingerprint for image in images],
        pixels=[image.pixel_fingerprint for case in judged.cases for image in case.few],
        weights_sha256=classifier.weights_sha256,
        engine=classifier.backbone.engine,
        sensitivity=sensitivity,
        confidence=CONFIDENCE if confidence is None else confidence,
    )
    for warning in judged.warnings:
        log.warning(f"WARNING: {warning}")
    if calibration.questions[0].shift:
        made = Classifier(classifier.backbone, classifier.head, card, calibration=calibration)
        for note in Decider(made).notes:
            if note.startswith("Note: "):
                log.warning(note)
    for note in _notes(judged, calibration):
        log.warning(f"Note: {note}")
    return calibration


def _notes(judged: LabelledPredictions, calibration: Calibration) -> Iterator[str]:
    """What a user should know about this calibration before relying on it."""
    groups = [group for group in judged.groups if group is not None]
    if len(set(groups)) < len(groups):
        yield (
            f"{len(groups)} images come from {len(set(groups))} patients or groups. Sets and "
            "thresholds treat images as independent, so their guarantees are weaker than stated."
        )
    question = calibration.questions[0]
    if question.shift:
        return
    named = zip(judged.class_names, question.counts, strict=True)
    if absent := ", ".join(name for name, count in named if not count):
        yield f"there are no images of: {absent}. The guarantees do not cover them."
    for guarantee, share in _WORTHWHILE:
        try:
            (calibration.require_sets if guarantee == "sets" else question.threshold)(share)
        except ConfigError as error:
            yield str(error)


def calibration_section(classifier: Classifier, calibration: Calibration) -> Section:
    """What was fitted: the temperature of a choice between classes, or each finding's limits."""
    task, cases = classifier.task, pluralize(calibration.cases, classifier.card.grouping.unit)
    question = calibration.questions[0]
    held_out = len(question.confidences)
    if not question.shift:
        change = "less" if question.temperature > 1 else "more"
        lines = (
            f"{calibration.cases - held_out} for the temperature, {held_out} for the sets and "
            "thresholds.",
            f"Temperature {question.temperature:.3f}: the model is now {change} confident than "
            "before."
            if question.applied
            else f"Temperature 1: {question.reason}",
            f"Accuracy on those {held_out}: {100 * sum(question.correct) / held_out:.1f} %.",
        )
        return Section(f"Calibrated on {cases}", lines)
    rows = []
    limits = calibration.limits()
    for name, question, limit in zip(task.names, calibration.questions, limits, strict=True):
        absent, present = map(len, question.scores)
        shown = (f"{100 * limit[1]:.1f}", f"{100 * (1 - limit[0]):.1f}")
        rows.append((name, str(present), str(absent), *shown))
    text = "Two thirds of them give the limits."
    if calibration.sensitivity is not None:
        text += (
            f" With {100 * calibration.confidence:g} % confidence, at most "
            f"{100 * (1 - calibration.sensitivity):g} % of the images with a finding are answered "
            "no."
        )
    head = ("finding", "with it", "without", "no below (%)", "yes above (%)")
    return Section(f"Calibrated on {cases}", (text,), Table(head, tuple(rows)))
