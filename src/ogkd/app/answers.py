"""What each model says of one picture, as plain records that the page and the API both show."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ogkd.app.models import Model
from ogkd.app.uploads import Picture
from ogkd.errors import DataError
from ogkd.model.card import CAUTION
from ogkd.model.explain import draw, evidence
from ogkd.model.familiarity import nearest, unfamiliar

__all__ = ["Answer", "Similar", "answers", "as_json", "data_uri"]

_SIMILAR = 4  # support images shown
_PREVIEW = 640  # pixels of the longer side


@dataclass(frozen=True)
class Similar:
    """A support image near to the picture."""

    name: str  # of its class
    similarity: float  # cosine
    picture: str = ""  # data URI, where the support images are known


@dataclass(frozen=True)
class Answer:
    """What one model says; `reasons` are why it abstains, and there are none where it does not."""

    model: str
    method: str
    ranked: tuple[tuple[str, float], ...]  # class name, probability; most probable first
    calibrated: bool
    coverage: float
    plausible: tuple[str, ...] | None  # the conformal set, where there is a calibration
    reasons: tuple[str, ...]
    similar: tuple[Similar, ...]
    evidence: str = ""  # data URI
    note: str = ""  # where the calibration was made with another engine

    @property
    def uncertain(self) -> bool:
        return bool(self.reasons)


def answers(models: Sequence[Model], picture: Picture, *, pictures: bool = True) -> list[Answer]:
    """Ask every model; models of one backbone share the picture's features."""
    features: dict[str, NDArray[np.float32]] = {}
    found = []
    for model in models:
        digest = model.classifier.backbone.digest
        if digest not in features:
            features[digest] = _features(model, picture)
        found.append(_answer(model, picture, features[digest], pictures))
    return found


def _features(model: Model, picture: Picture) -> NDArray[np.float32]:
    """Global features [d] of the picture."""
    prediction = next(model.classifier.decide([picture.image]))
    if prediction.features is None:
        raise DataError("The image could not be brought to the model's size. Crop it first.")
    return prediction.features


def _answer(
    model: Model, picture: Picture, features: NDArray[np.float32], pictures: bool
) -> Answer:
    classifier = model.classifier
    names = classifier.class_names
    row = classifier.probabilities(torch.from_numpy(features)[None])[0]
    order = np.argsort(-row, kind="stable")
    plausible = None
    if classifier.calibration is not None:
        inside = classifier.calibration.sets(row[None], coverage=model.coverage)[0]
        plausible = tuple(names[label] for label in order if inside[label])
    return Answer(
        model=model.name,
        method=classifier.card.method,
        ranked=tuple((names[label], float(row[label])) for label in order),
        calibrated=classifier.calibration is not None,
        coverage=model.coverage,
        plausible=plausible,
        reasons=tuple(_reasons(model, float(row.max()), plausible, features)),
        similar=_similar(model, features),
        evidence=_evidence(model, picture, int(order[0])) if pictures else "",
        note=model.note,
    )


def _reasons(
    model: Model, top: float, plausible: tuple[str, ...] | None, features: NDArray[np.float32]
) -> list[str]:
    """Why a specialist should look: the model is unsure, or this is nothing it knows."""
    reasons = []
    if model.max_risk is not None and model.threshold is not None and top < model.threshold:
        reasons.append(
            f"Its confidence of {top:.1%} is below the {model.threshold:.1%} that keeps the share "
            f"of errors at most {100 * model.max_risk:g}%."
        )
    if plausible is not None and len(plausible) != 1:
        several = f"{len(plausible)} classes are plausible, not one"
        found = several if plausible else "no class is plausible"
        reasons.append(f"At {100 * model.coverage:g}% coverage {found}.")
    support = model.classifier.support
    if support is not None and unfamiliar(support, features[None])[0]:
        reasons.append("The image is unlike the images that the model learned from.")
    return reasons


def _similar(model: Model, features: NDArray[np.float32]) -> tuple[Similar, ...]:
    support = model.classifier.support
    if support is None:
        return ()
    rows, cosines = nearest(support, features[None], min(_SIMILAR, len(support.labels)))
    names = model.classifier.class_names
    return tuple(
        Similar(names[support.labels[row]], float(cosine), model.pictures.get(int(row), ""))
        for row, cosine in zip(rows[0], cosines[0], strict=True)
    )


def _evidence(model: Model, picture: Picture, label: int) -> str:
    found = next(iter(evidence(model.classifier, [picture.image], labels=[label])))
    return data_uri(draw(found))


def data_uri(image: Image.Image, *, most: int = _PREVIEW) -> str:
    """A small copy that is carried inside the page, so that no file is served."""
    small = image.convert("RGB")
    small.thumbnail((most, most))
    memory = io.BytesIO()
    small.save(memory, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(memory.getvalue()).decode()


def as_json(picture: Picture, found: Sequence[Answer], *, pictures: bool) -> dict[str, Any]:
    """The API's answer."""
    return {
        "image": {
            "name": picture.name,
            "width": picture.pixels.shape[1],
            "height": picture.pixels.shape[0],
            "note": picture.note,
        },
        "models": [_one(answer, pictures) for answer in found],
        "caution": CAUTION,
    }


def _one(answer: Answer, pictures: bool) -> dict[str, Any]:
    one: dict[str, Any] = {
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
            {"class": near.name, "similarity": round(near.similarity, 4)} for near in answer.similar
        ],
    }
    if pictures:
        one["evidence"] = answer.evidence
    return one
