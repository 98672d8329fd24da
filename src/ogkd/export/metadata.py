"""What an exported file says about itself, as JSON: classes, preprocessing, calibration."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from ogkd.export.graph import INPUT, question_scales
from ogkd.model.card import CAUTION, PoolingCard
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider, default_poolings, engine_note
from ogkd.model.policy import Policy

KEY = "ogkd"  # of the JSON in the file's metadata
SCHEMA = 4


def file_metadata(classifier: Classifier, *, max_risk: float | None = None) -> dict[str, Any]:
    """Everything that a program needs besides the graph; contains no path and no file name."""
    card, prep = classifier.card, classifier.backbone.preprocessing
    return {
        "schema_version": SCHEMA,
        "class_names": list(card.class_names),
        "asks": classifier.task.kind,
        "normal": list(card.normal),
        "input": {
            "name": INPUT,
            "type": "float32",
            "shape": ["N", 3, prep.size, prep.size],
            "normalised": True,
        },
        "preprocessing": {
            "colour": "RGB",
            "crop": "center",
            "antialias": True,
            **prep.identity(),
        },
        "cases": _cases(classifier),
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
    """Each question's scale and limits, and the probability below which to abstain."""
    decider = Decider(classifier, Policy(max_risk=max_risk))
    pairs = zip(classifier.task.question_names(), question_scales(classifier), strict=True)
    questions = [
        {"names": list(names), "temperature": 1 / scale, "shift": list(shift)}
        for names, (scale, shift) in pairs
    ]
    if (calibration := classifier.calibration) is None:
        return {"questions": questions, "calibration": None}
    values: dict[str, Any] = {"cases": calibration.cases, "sets": None, "abstain": None}
    if note := guarantee_note(classifier):
        return {"questions": questions, "calibration": values | {"note": note}}
    if (least := decider.least_probability) is not None:
        values["sets"] = {
            "coverage": decider.coverage,
            "sensitivity": calibration.sensitivity,
            # An answer is plausible if its probability is at least this.
            "least_probability": [limit.tolist() for limit in least],
        }
    if (below := decider.threshold) is not None:
        confidence = decider.policy.confidence
        values["abstain"] = {"max_risk": max_risk, "confidence": confidence, "below": below}
    return {"questions": questions, "calibration": values}


def _cases(classifier: Classifier) -> dict[str, Any]:
    """What a program needs to make cases, and to pool the logits of their images."""
    grouping = classifier.card.grouping
    made = {**grouping.as_json(), "joins_images": grouping.joins_images}
    if not grouping.joins_images:
        return made
    chosen = classifier.poolings or default_poolings(classifier.task)
    pairs = zip(chosen, classifier.task.question_normal(), strict=True)
    poolings = [PoolingCard.of(p).model_dump() | {"normal": list(normal)} for p, normal in pairs]
    return made | {"poolings": poolings}
