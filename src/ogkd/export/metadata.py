"""What an exported file says about itself, as JSON: classes, preprocessing, calibration."""

from __future__ import annotations

import math
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from ogkd.core.pooling import Pooling
from ogkd.export.graph import INPUT
from ogkd.images.transforms import LONGEST, Preprocessing
from ogkd.model.card import CAUTION, BagCard
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider
from ogkd.model.engine_note import engine_note
from ogkd.model.policy import Policy

KEY = "ogkd"  # of the JSON in the file's metadata
SCHEMA = 1


def file_metadata(
    classifier: Classifier,
    *,
    include_preprocessing: bool = False,
    max_risk: float | None = None,
) -> dict[str, Any]:
    """Everything that a program needs besides the graph; contains no path and no file name."""
    card, prep = classifier.card, classifier.backbone.preprocessing
    size = prep.size
    bytes_in = include_preprocessing
    return {
        "schema_version": SCHEMA,
        "class_names": list(card.class_names),
        "asks": "findings" if card.findings else "class",
        "normal": list(card.normal),
        "input": {
            "name": INPUT,
            "type": "uint8" if bytes_in else "float32",
            "shape": ["N", size, size, 3] if bytes_in else ["N", 3, size, size],
            "normalised": not bytes_in,
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
            "steps": _steps(prep, bytes_in=bytes_in),
        },
        "slice": card.slice,
        "bags": None if card.bags is None else _bag_metadata(card.bags, classifier.pooling),
        "backbone": {"name": card.backbone.short_name, "digest": classifier.backbone.digest},
        "method": card.method,
        "preset": card.preset,
        **_calibration(classifier, max_risk),
        "caution": CAUTION,
        "versions": {name: version(name) for name in ("ogkd", "torch", "onnx")},
    }


def guarantee_note(classifier: Classifier) -> str:
    """Why the file has no guarantees that the model has, if there is a reason."""
    if classifier.calibration is None:
        if classifier.head.ranking is None or classifier.support is None:
            return ""
        return "Prediction sets from the images learned from need the model folder."
    return engine_note(classifier)


def _calibration(classifier: Classifier, max_risk: float | None) -> dict[str, Any]:
    """The temperature, the limit of prediction sets, and the threshold below which to abstain."""
    decider = Decider(classifier, Policy(max_risk=max_risk))
    if classifier.card.findings:
        return _findings(classifier)
    calibration = classifier.class_calibration
    if calibration is None:
        return {"temperature": 1.0, "calibration": None}
    values: dict[str, Any] = {"images": calibration.images, "sets": None, "abstain": None}
    if note := guarantee_note(classifier):
        return {"temperature": calibration.temperature, "calibration": values | {"note": note}}
    if (least := decider.least_probability) is not None:
        # A class belongs to the set if its probability is at least this.
        values["sets"] = {"kind": "lac", "coverage": decider.coverage, "least_probability": least}
    if (below := decider.threshold) is not None:
        confidence = decider.policy.confidence
        values["abstain"] = {"max_risk": max_risk, "confidence": confidence, "below": below}
    return {"temperature": calibration.temperature, "calibration": values}


def _findings(classifier: Classifier) -> dict[str, Any]:
    """Of each finding, the limits below which the answer is no and above which it is yes."""
    calibration = classifier.finding_calibration
    if calibration is None:
        return {"calibration": None}
    values: dict[str, Any] = {"images": calibration.images, "sensitivity": calibration.sensitivity}
    if note := guarantee_note(classifier):
        return {"calibration": values | {"note": note}}
    limits = zip(classifier.class_names, calibration.limits(), strict=True)
    return {"calibration": values | {"limits": {name: asdict(limit) for name, limit in limits}}}


def _steps(prep: Preprocessing, *, bytes_in: bool) -> str:
    decode = "Decode to 8-bit RGB, upright by its EXIF orientation; scale deeper images by their "
    decode += "own smallest and largest value. "
    size = prep.size
    scale, crop = f"Scale both sides to {size}", ""
    if prep.resize == "shortest":
        scale = f"Scale the short side to {size} and the long one to int({size} * long / short)"
        left = f"left = round((width - {size}) / 2), top likewise"
        crop = f" Crop the central {size} x {size}: {left}."
        scale = f"Cut a side longer than {LONGEST} times the other to that, centrally. {scale}"
    end = " Pass the bytes unchanged."
    if not bytes_in:
        end = " Divide by 255, subtract mean and divide by std per channel, channels first."
    return f"{decode}{scale} with Pillow's {prep.interpolation} filter.{crop}{end}"


def _bag_metadata(card: BagCard, pooling: Pooling) -> dict[str, Any]:
    """What a program needs to make bags, and to pool those that do not fit into one batch."""
    return {
        "by": card.by,
        "slices": card.slices,
        "tau": None if math.isinf(pooling.tau) else pooling.tau,
        "heat": pooling.heat,
        "mean_weight": pooling.mean_weight,
        "bias": list(pooling.bias),
        "normal": list(pooling.normal),
        "steps": "The N pictures of a batch are one bag: `probabilities` is its answer, `weights` "
        "the share of each picture in it. A bag too large for one batch: run it in parts, ask for "
        "`logits` alone, join them to z [N, C], and pool: r = z - logsumexp(z over the classes "
        "`normal`, or over all if there are none); s = tau * log(mean(exp(r / tau))) over the "
        "pictures (tau 0: the largest; null: the mean); u = (1 - 1 / N) * mean(r) over them; "
        "probabilities = softmax((heat * s - mean_weight * u + bias) / temperature).",
    }
