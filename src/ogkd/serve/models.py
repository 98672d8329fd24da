"""The model that the page asks, loaded once and checked at the start, and its answers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ogkd.errors import DataError, OgkdError, OgkdWarning
from ogkd.images import data_uri, read_image
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider, Decision, engine_note
from ogkd.model.drawing import draw
from ogkd.model.explain import SHARE, evidence_of
from ogkd.model.load import load
from ogkd.model.policy import Policy
from ogkd.model.table import decision_json
from ogkd.serve.uploads import Upload

_EVIDENCE = 1024  # pixels of the longer side of an evidence map, so that its words are legible
_DECIDING = 320  # of an image that decided the answer for a case
Answer = dict[str, Any]  # `ModelAnswer` of openapi.json


@dataclass(frozen=True)
class Model:
    name: str
    decider: Decider

    @property
    def classifier(self) -> Classifier:
        return self.decider.classifier

    @property
    def joins_images(self) -> bool:
        """Whether its cases may have several images."""
        return self.classifier.card.grouping.joins_images

    @property
    def note(self) -> str:
        """A warning if the calibration was made with another engine."""
        return engine_note(self.classifier)


def load_model(
    folder: Path,
    *,
    backbone: str | None = None,
    device: str = "auto",
    policy: Policy | None = None,
) -> Model:
    """Load a model folder; a policy that it cannot meet is refused now, not at the first upload."""
    classifier = load(folder, backbone=backbone, device=device)
    return Model(folder.resolve().name, Decider(classifier, policy))


def answers(model: Model, upload: Upload, *, images: bool = True) -> Iterator[Answer]:
    """An answer for each case of the upload; what has none is named with the first.

    Predictions and evidence maps (`images`) come from the same encodings.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OgkdWarning)
        try:
            cases = upload.cases(model.classifier.card.grouping)
        except OgkdError as error:
            raise DataError(upload.in_user_words(str(error))) from None
    decisions = list(model.decider.decide(cases, crops=images))
    answered = [decision for decision in decisions if decision.error is None]
    failures = [
        f"{decision.case.name}: {decision.error}" if cases[1:] else str(decision.error)
        for decision in decisions
        if decision.error is not None
    ]
    if not answered:
        raise DataError(upload.in_user_words(failures[0]))
    notes = [model.note, *(str(warning.message) for warning in caught)]
    if failures:
        notes.append(f"Not answered: {'; '.join(failures)}")
    note = upload.in_user_words(" ".join(filter(None, notes)))
    for decision in answered:
        yield _answer(model, upload, decision, note, images=images)
        note = model.note


def _answer(model: Model, upload: Upload, decision: Decision, note: str, *, images: bool) -> Answer:
    """The decision as `predict` writes it, and what the page shows beside it."""
    classifier, made = model.classifier, model.classifier.calibration
    body: Answer = {
        **decision_json(classifier.task, decision, joined=True),
        "model": model.name,
        "method": classifier.card.method,
        "calibrated": made is not None and any(question.applied for question in made.questions),
        "coverage": model.decider.coverage,
        "reasons": list(decision.reasons),
        "note": note,
    }
    for entry, part in zip(body["decided_by"], decision.deciding, strict=True):
        entry["path"] = upload.in_user_words(entry["path"])
        if images and model.joins_images:
            entry["image"] = data_uri(Image.fromarray(read_image(part.image)), most=_DECIDING)
    if images and (evidence := evidence_json(classifier, decision)) is not None:
        body["evidence"] = evidence
    return body


def evidence_json(classifier: Classifier, decision: Decision) -> dict[str, Any] | None:
    """The evidence map of a decision, and whether it marks what the answer rests on.

    `image` is a data URI, empty if blurring what the map marks takes no more of the answer away
    than blurring other places does. None if the model has no maps or does not know the image.
    """
    evidence = evidence_of(classifier, decision)
    if evidence is None:
        return None
    body: dict[str, Any] = {
        "class": evidence.name,
        "image": data_uri(draw(evidence), most=_EVIDENCE) if evidence.shown else "",
    }
    if (check := evidence.check) is not None:
        body["check"] = {
            "blurred": SHARE,
            "marked": round(check.marked, 4),
            "random": round(check.random, 4),
        }
    return body


def describe(model: Model) -> dict[str, Any]:
    """`/model` of openapi.json."""
    classifier, made = model.classifier, model.classifier.calibration
    return {
        "name": model.name,
        "method": classifier.card.method,
        "backbone": classifier.card.backbone.short_name,
        "classes": list(classifier.class_names),
        "normal": list(classifier.card.normal),
        "learned_from": list(classifier.card.support_counts),
        "calibrated": classifier.calibration is not None,
        "coverage": model.decider.coverage,
        "quality": "" if made is None else made.quality(classifier.card.grouping.unit),
        "note": model.note,
        "cases": model.joins_images,
    }
