"""A fitted classifier and images it has not learned from: what becomes `calibration.json`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ogkd.datasets.manifest import Manifest
from ogkd.errors import DataError
from ogkd.evaluation.judge import Judged, judge
from ogkd.model.calibration import (
    BOUNDS,
    Calibration,
    held_out_for_coverage,
    held_out_for_risk,
    images_needed_for_coverage,
)
from ogkd.model.classifier import Classifier

__all__ = ["FEWEST", "calibrate"]

FEWEST = images_needed_for_coverage(0.9)


def calibrate(
    classifier: Classifier,
    data: str | Path | Manifest,
    *,
    split: str = "val",
    leave_out_used: bool = False,
    say: Callable[[str], None] | None = None,
) -> Calibration:
    """Calibrate on labelled images; those that the model was fitted on are refused.

    With `leave_out_used` they are left out instead. Nothing is changed or written: give the
    result to the classifier (`classifier.calibration = ...`) or write it into its folder. `say`
    is given short notes for the user.
    """
    judged = judge(classifier, data, split=split)
    say = say or (lambda note: None)
    judged = _unused(classifier, judged, leave_out_used=leave_out_used)
    if len(judged.labels) < FEWEST:
        more = FEWEST - len(judged.labels)
        raise DataError(
            f"{len(judged.labels)} images are too few to calibrate on: sets that hold the true "
            f"class with 90 % probability need at least {FEWEST}, so {more} more. Label more "
            "images that the model has not learned from."
        )
    if len({group or key for group, key in zip(judged.groups, judged.keys, strict=True)}) < 2:
        raise DataError(
            "All images are of one patient or group, but calibration needs at least two. Check the "
            "column of patients or groups."
        )
    if not classifier.card.support_images and any(classifier.card.support_counts):
        say(
            "Note: this model does not say which images it learned from. Make sure that none of "
            "them is here: they would make it look surer than it is."
        )
    found = Calibration.fit(
        judged.logits,
        judged.labels,
        judged.keys,
        groups=judged.groups,
        weights_sha256=classifier.weights_sha256,
        engine=classifier.backbone.engine,
    )
    for note in _notes(judged, found):
        say(f"Note: {note}")
    return found


def _unused(classifier: Classifier, judged: Judged, *, leave_out_used: bool) -> Judged:
    learned = set(classifier.card.support_images)
    used, images = judged.among(learned), len(judged.labels)
    if not used:
        return judged
    if used == images:
        raise DataError(
            f"All {images} images were used for fitting this model. Calibrate on images that it "
            "has not seen: another part (--split), or other data."
        )
    if not leave_out_used:
        raise DataError(
            f"{used} of the {images} images were used for fitting this model, and would make it "
            f"look surer than it is. Add --leave-out-used to calibrate on the other "
            f"{images - used}, or choose another part (--split)."
        )
    return judged.without(learned)


def _notes(judged: Judged, found: Calibration) -> list[str]:
    """What a user should know about this calibration before relying on it."""
    notes = []
    low, high = BOUNDS
    if found.temperature == 1.0:
        notes.append(
            "all images that could fit the temperature are predicted right, so it stays 1. More "
            "or harder images would tell."
        )
    elif not low * 1.01 < found.temperature < high / 1.01:
        notes.append(
            f"the temperature {found.temperature:.3g} is at the limit of what is allowed: the "
            "probabilities say little about how often the model is right."
        )
    groups = [group for group in judged.groups if group is not None]
    if len(set(groups)) < len(groups):
        notes.append(
            f"{len(groups)} images are of {len(set(groups))} patients or groups. Sets and "
            "thresholds count images as independent, so their promises hold less well than stated."
        )
    absent = [name for name, n in zip(judged.class_names, found.counts, strict=True) if not n]
    if absent:
        notes.append(f"there is no image of: {', '.join(absent)}. The promises do not cover them.")
    notes += _short(found)
    return notes


def _short(found: Calibration) -> list[str]:
    """What these images are too few for, and how many more it would take."""
    wanted = [
        ("prediction sets of 90 % coverage", held_out_for_coverage(0.9)),
        ("prediction sets of 95 % coverage", held_out_for_coverage(0.95)),
        ("promising at most 10 % errors (--max-risk 0.1)", held_out_for_risk(0.1)),
        ("promising at most 5 % errors (--max-risk 0.05)", held_out_for_risk(0.05)),
    ]
    return [
        f"{found.images} images are too few for {what}: at least {more} more are needed."
        for what, held_out in wanted
        if (more := found.missing(held_out))
    ]
