"""What to say where images are encoded in another way than those that promises rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier


def engine_note(classifier: Classifier, *, engine: str | None = None) -> str:
    """A warning if images are encoded in another way than for the calibration; else nothing.

    `engine` is what encodes them, if it is not the classifier's backbone.
    """
    if classifier.calibration is None:
        return _support_engine_note(classifier, engine or classifier.backbone.engine)
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


def _support_engine_note(classifier: Classifier, used: str) -> str:
    made = classifier.card.backbone.engine
    if used == made or classifier.head.ranking is None or classifier.support is None:
        return ""
    return (
        f"The images learned from were encoded with the engine {made}, but here {used} encodes the "
        "images: prediction sets promise nothing for that."
    )
