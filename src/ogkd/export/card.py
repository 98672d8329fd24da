"""What an exported file says about itself: classes, preprocessing, calibration, caution."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from ogkd.calibration import conformal_rank
from ogkd.classifier import Classifier
from ogkd.export.graph import INPUT
from ogkd.images.transforms import Preprocessing

__all__ = ["KEY", "SCHEMA", "describe"]

KEY = "ogkd"  # of the JSON in the file's metadata
SCHEMA = 1
COVERAGE = 0.9
CAUTION = (
    "Research software, not a medical device and not for autonomous clinical use. Its output is "
    "an aid for qualified people, who decide. It knows only the classes it was fitted on."
)


def describe(
    classifier: Classifier, *, include_preprocessing: bool = False, max_risk: float | None = None
) -> dict[str, Any]:
    """Everything that a program needs beside the graph; no path and no file name."""
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
        "backbone": {"name": _last_part(card.backbone.name), "digest": classifier.backbone.digest},
        "method": card.method,
        "preset": card.preset,
        **_calibration(classifier, max_risk),
        "caution": CAUTION,
        "versions": {name: version(name) for name in ("ogkd", "torch", "onnx")},
    }


def _calibration(classifier: Classifier, max_risk: float | None) -> dict[str, Any]:
    """Temperature, the set of classes that holds the true one, and where to abstain."""
    found = classifier.calibration
    if found is None:
        return {"temperature": 1.0, "calibration": None}
    scores = sorted(found.lac)
    rank = conformal_rank(len(scores), COVERAGE)
    sets = None  # too few images for this coverage
    if rank <= len(scores):
        # A class belongs to the set where its probability is at least this.
        least = max(0.0, 1.0 - scores[rank - 1])
        sets = {"kind": "lac", "coverage": COVERAGE, "least_probability": least}
    abstain = None
    if max_risk is not None:
        below = found.threshold(max_risk)
        abstain = {"max_risk": max_risk, "confidence": 0.9, "below": below}
    return {
        "temperature": found.temperature,
        "calibration": {"images": found.images, "sets": sets, "abstain": abstain},
    }


def _steps(prep: Preprocessing, *, include_preprocessing: bool) -> str:
    size = prep.size
    scale = f"Scale both sides to {size}"
    crop = ""
    if prep.resize == "shortest":
        scale = f"Scale the short side to {size} and the long one to int({size} * long / short)"
        crop = (
            f" Cut out the middle {size} x {size}: left = round((width - {size}) / 2), top alike."
        )
    end = " Give the bytes as they are."
    if not include_preprocessing:
        end = " Divide by 255, subtract mean and divide by std per channel, channels first."
    return (
        "Decode to 8-bit RGB, upright by its EXIF orientation. "
        f"{scale} with Pillow's {prep.interpolation} filter.{crop}{end}"
    )


def _last_part(name: str) -> str:
    """The name of a backbone; of a folder, the last part of its path alone."""
    if PurePosixPath(name).is_absolute() or name.startswith((".", "~")):
        return PurePosixPath(name).name
    return PureWindowsPath(name).name if "\\" in name else name
