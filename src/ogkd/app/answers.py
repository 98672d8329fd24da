"""What each model says about one upload, as plain records for the page and the API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ogkd.app.models import Model
from ogkd.app.uploads import Upload
from ogkd.errors import DataError
from ogkd.features.encode import EncodedBatch, encode_files
from ogkd.model.card import CAUTION
from ogkd.model.decide import Decision
from ogkd.model.explain import data_uri, draw, evidence_of
from ogkd.model.familiarity import nearest

_SIMILAR = 4  # support images shown
PREVIEW = 640  # pixels of the longer side


@dataclass(frozen=True)
class Answer:
    """What one model says; `reasons` are why a specialist should look, if there are any."""

    model: str
    method: str
    ranked: tuple[tuple[str, float], ...]  # class name, probability; most probable first
    calibrated: bool
    coverage: float
    plausible: tuple[str, ...] | None  # the prediction set, if the model is calibrated
    reasons: tuple[str, ...]
    similar: tuple[tuple[str, float, str], ...]  # support images: class, cosine, data URI or ""
    evidence: str = ""  # data URI
    note: str = ""  # a warning if the calibration was made with another engine

    @property
    def uncertain(self) -> bool:
        return bool(self.reasons)


def answers(models: Sequence[Model], upload: Upload, *, pictures: bool = True) -> list[Answer]:
    """Ask every model; models with the same backbone share one encoding of the image.

    Predictions and evidence maps (`pictures`) come from the same encoding.
    """
    encoded: dict[str, EncodedBatch] = {}
    found = []
    for model in models:
        backbone = model.classifier.backbone
        batch = encoded.get(backbone.digest)
        if batch is None:
            batch = next(encode_files(backbone, [upload.image], patches=pictures))
            encoded[backbone.digest] = batch
        decision = next(model.decider.decide_batches([batch]))
        if decision.error is not None:  # names our copy of the file, so it is not shown
            raise DataError("The image could not be resized for the model. Crop it first.")
        found.append(_answer(model, decision, pictures=pictures))
    return found


def _answer(model: Model, decision: Decision, *, pictures: bool) -> Answer:
    classifier = model.classifier
    names, shares = classifier.class_names, decision.probabilities or ()
    order = np.argsort(-np.asarray(shares), kind="stable")
    ranked = tuple((names[label], shares[label]) for label in order)
    inside = decision.set
    evidence = ""
    if pictures:
        evidence = data_uri(draw(evidence_of(classifier, decision)), most=PREVIEW)
    return Answer(
        model=model.name,
        method=classifier.card.method,
        ranked=ranked,
        calibrated=classifier.calibration is not None,
        coverage=model.decider.coverage,
        plausible=None if inside is None else tuple(n for n, _ in ranked if n in inside),
        reasons=decision.reasons,
        similar=_similar(model, decision),
        evidence=evidence,
        note=model.note,
    )


def _similar(model: Model, decision: Decision) -> tuple[tuple[str, float, str], ...]:
    support = model.classifier.support
    if support is None or decision.features is None:
        return ()
    rows, cosines = nearest(support, decision.features[None], _SIMILAR)
    names = model.classifier.class_names
    return tuple(
        (names[support.labels[row]], float(cosine), model.thumbnails.get(int(row), ""))
        for row, cosine in zip(rows[0], cosines[0], strict=True)
    )


def as_json(upload: Upload, found: Sequence[Answer], *, pictures: bool) -> dict[str, Any]:
    """The API's answer."""
    height, width = upload.pixels.shape[:2]
    return {
        "image": {"name": upload.name, "width": width, "height": height, "note": upload.note},
        "models": [
            {
                "model": answer.model,
                "method": answer.method,
                "prediction": answer.ranked[0][0],
                "probabilities": {name: round(value, 6) for name, value in answer.ranked},
                "calibrated": answer.calibrated,
                "conformal_set": None if answer.plausible is None else list(answer.plausible),
                "coverage": answer.coverage,
                "uncertain": answer.uncertain,
                "reasons": list(answer.reasons),
                "note": answer.note,
                "similar": [
                    {"class": name, "similarity": round(cosine, 4)}
                    for name, cosine, _ in answer.similar
                ],
                **({"evidence": answer.evidence} if pictures else {}),
            }
            for answer in found
        ],
        "caution": CAUTION,
    }
