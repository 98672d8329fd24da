"""What an exported file says about itself: classes, preprocessing, calibration, caution."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from ogkd.export.graph import INPUT
from ogkd.images.transforms import Preprocessing
from ogkd.model.card import CAUTION
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider, Policy, engine_note

KEY = "ogkd"  # of the JSON in the file's metadata
SCHEMA = 1
_INT8 = "onnx int8"  # not an engine of ours, so no calibration is made with it


def file_metadata(
    classifier: Classifier,
    *,
    include_preprocessing: bool = False,
    max_risk: float | None = None,
    int8: bool = False,
) -> dict[str, Any]:
    """Everything that a program needs besides the graph; contains no path and no file name."""
    card, prep = classifier.card, classifier.backbone.preprocessing
    size = prep.size
    shape = ["N", size, size, 3] if include_preprocessing else ["N", 3, size, size]
    return {
        "schema_version": SCHEMA,
        "class_names": list(card.class_names),
        "normal": list(card.normal),
        "input": {
            "name": INPUT,
            "type": "uint8" if include_preprocessing else "float32",
            "shape": shape,
            "normalised": not include_preprocessing,
        },
        "preprocessing": {
            "colour": "RGB",
            "size": size,
            "resize": prep.resize,
            "crop": "center",
            "interpolation": prep.interpolation,
            "antialias": True,
            "mean": list(prep.mean),
            "std": list(prep.std),
            "steps": _steps(prep, include_preprocessing=include_preprocessing),
        },
        "slice": card.slice,
        "backbone": {"name": card.backbone.short_name, "digest": classifier.backbone.digest},
        "method": card.method,
        "preset": card.preset,
        **_calibration(classifier, max_risk, int8=int8),
        "caution": CAUTION,
        "versions": {name: version(name) for name in ("ogkd", "torch", "onnx")},
    }


def guarantee_note(classifier: Classifier, *, int8: bool) -> str:
    """Why the calibration guarantees nothing for the file, if it was made with another engine."""
    return engine_note(classifier, engine=_INT8 if int8 else None)


def _calibration(classifier: Classifier, max_risk: float | None, *, int8: bool) -> dict[str, Any]:
    """The temperature, the limit of prediction sets, and the threshold below which to abstain."""
    decider = Decider(classifier, Policy(max_risk=max_risk))
    found = classifier.calibration
    if found is None:
        return {"temperature": 1.0, "calibration": None}
    values: dict[str, Any] = {"images": found.images, "sets": None, "abstain": None}
    if note := guarantee_note(classifier, int8=int8):
        return {"temperature": found.temperature, "calibration": values | {"note": note}}
    if (least := decider.least_probability) is not None:
        # A class belongs to the set if its probability is at least this.
        values["sets"] = {"kind": "lac", "coverage": decider.coverage, "least_probability": least}
    if (below := decider.threshold) is not None:
        confidence = decider.policy.confidence
        values["abstain"] = {"max_risk": max_risk, "confidence": confidence, "below": below}
    return {"temperature": found.temperature, "calibration": values}


def _steps(prep: Preprocessing, *, include_preprocessing: bool) -> str:
    size = prep.size
    scale, crop = f"Scale both sides to {size}", ""
    if prep.resize == "shortest":
        scale = f"Scale the short side to {size} and the long one to int({size} * long / short)"
        left = f"left = round((width - {size}) / 2), top likewise"
        crop = f" Crop the central {size} x {size}: {left}."
    end = " Pass the bytes unchanged."
    if not include_preprocessing:
        end = " Divide by 255, subtract mean and divide by std per channel, channels first."
    return (
        "Decode to 8-bit RGB, upright by its EXIF orientation. "
        f"{scale} with Pillow's {prep.interpolation} filter.{crop}{end}"
    )
