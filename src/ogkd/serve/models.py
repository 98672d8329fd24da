"""The models that the page asks, loaded once and checked at the start, and their answers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.engines import with_engine
from ogkd.data.case import Case, Dataset, images_of
from ogkd.data.fetch import resolve_data
from ogkd.errors import ConfigError, DataError, OgkdError, OgkdWarning
from ogkd.features.encode import EncodedBatch, encode_files
from ogkd.images import ImageRef, data_uri, read_image
from ogkd.model.card import CAUTION, ModelCard
from ogkd.model.classifier import CARD, Classifier
from ogkd.model.decide import Decider, Decision, Encode, engine_note
from ogkd.model.drawing import draw
from ogkd.model.explain import SHARE, check_evidence, evidence_of
from ogkd.model.familiarity import nearest
from ogkd.model.load import load
from ogkd.model.policy import Policy
from ogkd.model.support_sets import SupportSets
from ogkd.progress import progress_bar
from ogkd.serve.uploads import Upload

PREVIEW = 640  # pixels of the longer side
_EVIDENCE = 1024  # pixels of the longer side of an evidence map, so that its words are legible
_SIMILAR = 4  # support images shown
_SAME = 0.999  # cosine above which features are of one image; they are kept in half precision
_THUMB = 160  # pixels
_DECIDING = 320  # of an image that decided the answer for a case
_MOST_IMAGES = 4096  # of one upload
Answer = dict[str, Any]  # `ModelAnswer` of openapi.json


@dataclass(frozen=True)
class Model:
    name: str
    decider: Decider
    thumbnails: Mapping[int, str] = field(default_factory=dict)  # support row -> data URI

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


def load_models(
    folders: Sequence[Path],
    *,
    backbone: str | None = None,
    device: str = "auto",
    coverage: float = 0.9,
    max_risk: float | None = None,
) -> list[Model]:
    """Load model folders; models with the same backbone share it.

    A policy that a model cannot meet is refused now, not at the first upload. Each model encodes
    images with the engine of its fit, even if `backbone` says where its backbone is now.
    """
    known: dict[str, Backbone] = {}
    moved = None if backbone is None else load_backbone(backbone, device=device)
    models = []
    for name, folder in zip(_names(folders), folders, strict=True):
        card = ModelCard.read(folder / CARD)
        shared = known.get(card.backbone.digest)
        if shared is None and moved is not None:
            shared = with_engine(moved, card.backbone.engine)
        classifier = load(folder, backbone=shared, device=device)
        known[classifier.backbone.digest] = classifier.backbone
        able = classifier.calibration is not None or SupportSets.of(classifier) is not None
        policy = Policy(max_risk=max_risk, coverage=coverage if able else None)
        models.append(Model(name, Decider(classifier, policy)))
    return models


def _names(folders: Sequence[Path]) -> list[str]:
    """Folder names; if two are equal, with their parent folder or a number."""
    last = [folder.resolve().name for folder in folders]
    names = [
        f"{folder.resolve().parent.name}/{name}" if last.count(name) > 1 else name
        for folder, name in zip(folders, last, strict=True)
    ]
    if len(set(names)) < len(names):
        return [f"{number}. {name}" for number, name in enumerate(names, 1)]
    return names


def with_support_images(models: Sequence[Model], data: Path) -> list[Model]:
    """The models with thumbnails of their support images, taken from `data`.

    A model keeps features of its support images, never the images: they are found again by
    their content and matched with the features.
    """
    dataset = resolve_data(data)
    shown = [replace(model, thumbnails=_thumbnails(model, dataset)) for model in models]
    if not any(model.thumbnails for model in shown):
        names = ", ".join(model.name for model in models)
        raise ConfigError(
            f"{data} contains no image that {names} learned from. Give the data that was used "
            "for fitting, or start without support images.",
            argument="support",
        )
    return shown


def _thumbnails(model: Model, dataset: Dataset) -> dict[int, str]:
    classifier = model.classifier
    if classifier.support is None:
        return {}
    images = dict.fromkeys(classifier.card.grouping.apply(dataset).images)
    learned = set(classifier.card.support_images)
    known = [Case.single(image) for image in images if image.fingerprint in learned]
    thumbnails: dict[int, str] = {}
    with progress_bar("Reading support images", len(known)) as bar:
        for decision in classifier.decide(known):
            bar.advance()
            if decision.features is None or decision.image is None:
                continue
            rows = np.flatnonzero(classifier.support.features @ decision.features > _SAME)
            if rows.size:
                thumbnails |= dict.fromkeys(rows.tolist(), _thumbnail(decision.image, _THUMB))
    return thumbnails


def answers(models: Sequence[Model], upload: Upload, *, images: bool = True) -> list[Answer]:
    """What every model says about each case of an upload.

    Models with the same backbone share encodings; predictions and evidence maps (`images`) come
    from them.
    """
    encodings = _Encodings(models)
    return [answer for model in models for answer in _answers(model, upload, encodings, images)]


class _Encodings:
    """Encodes the images of an upload once for all models of a backbone."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._deep = {m.classifier.backbone.digest for m in models if m.classifier.deep}
        self._known: dict[tuple[object, ...], list[EncodedBatch]] = {}

    def of(self, model: Model) -> Encode:
        backbone = model.classifier.backbone

        def encode(images: Iterable[ImageRef]) -> Iterator[EncodedBatch]:
            refs = tuple(images)
            key = (backbone.digest, refs)
            if key not in self._known:
                deep = backbone.digest in self._deep
                batches = encode_files(backbone, refs, deep=deep)
                # Crops of many images would fill the memory: evidence makes that of one again.
                many = model.joins_images
                self._known[key] = [replace(b, crops=None) if many else b for b in batches]
            return iter(self._known[key])

        return encode


def _answers(model: Model, upload: Upload, encodings: _Encodings, images: bool) -> Iterator[Answer]:
    """An answer for each case of the upload; what has none is named with the first."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OgkdWarning)
        try:
            cases = upload.cases(model.classifier.card.grouping)
        except OgkdError as error:
            raise DataError(upload.in_user_words(str(error))) from None
    if (count := len(images_of(cases))) > _MOST_IMAGES:
        raise DataError(
            f"The upload has {count:,} images, more than the {_MOST_IMAGES:,} that the page "
            "answers. Use `ogkd predict`, or fit on fewer."
        )
    decisions = list(model.decider.decide(cases, encodings.of(model), crops=images))
    failures = [
        upload.in_user_words(
            f"{decision.case.name}: {decision.error}" if cases[1:] else str(decision.error)
        )
        for decision in decisions
        if decision.error is not None
    ]
    notes = [upload.in_user_words(str(warning.message)) for warning in caught]
    if failures:
        notes.append(f"Not answered: {'; '.join(failures)}")
    answered = [decision for decision in decisions if decision.error is None]
    if not answered:
        raise DataError(failures[0])
    for number, decision in enumerate(answered):
        answer = _answer(model, upload, decision, images=images)
        if not number:
            answer["note"] = " ".join(filter(None, [answer["note"], *notes]))
        yield answer


def _thumbnail(image: ImageRef, most: int) -> str:
    return data_uri(Image.fromarray(read_image(image)), most=most)


def _answer(model: Model, upload: Upload, decision: Decision, *, images: bool) -> Answer:
    classifier, answer = model.classifier, decision.answer
    assert answer is not None
    names, shares = classifier.class_names, answer.probabilities
    order = np.argsort(-np.asarray(shares), kind="stable")
    ranked = {names[label]: round(shares[label], 6) for label in order}
    plausible = answer.plausible
    body: Answer = {
        "model": model.name,
        "method": classifier.card.method,
        "prediction": answer.prediction,
        "probabilities": ranked,
        "calibrated": classifier.calibration is not None,
        "conformal_set": None if plausible is None else [n for n in ranked if n in plausible],
        "coverage": model.decider.coverage,
        "uncertain": bool(decision.reasons),
        "withheld": bool(decision.unfamiliar or decision.abstain),
        "reasons": list(decision.reasons),
        "note": model.note,
        "similar": _similar(model, decision, images=images),
        "case": _case(upload, decision, images=images and model.joins_images),
    }
    if answer.verdicts is not None:
        body["findings"] = dict(zip(names, answer.verdicts, strict=True))
    if images and (evidence := evidence_json(classifier, decision)) is not None:
        body["evidence"] = evidence
    return body


def _case(upload: Upload, decision: Decision, *, images: bool) -> dict[str, Any]:
    """Which case an answer is about, and its images that weigh most."""
    deciding = [
        {
            "file": upload.files[part.image.file],
            "part": part.image.part,
            "weight": round(part.weight, 4),
            **({"image": _thumbnail(part.image, _DECIDING)} if images else {}),
        }
        for part in decision.deciding
    ]
    return {"name": decision.case.name, "images": decision.read, "decided_by": deciding}


def evidence_json(classifier: Classifier, decision: Decision) -> dict[str, Any] | None:
    """The evidence map of a decision, and whether it marks what the answer rests on.

    `image` is a data URI, empty if blurring what the map marks takes no more of the answer away
    than blurring other places does. None if the model has no maps.
    """
    evidence = evidence_of(classifier, decision)
    if evidence is None:
        return None
    check = check_evidence(classifier, evidence)
    shown = check is None or check.holds
    body: dict[str, Any] = {
        "class": evidence.name,
        "image": data_uri(draw(evidence), most=_EVIDENCE) if shown else "",
    }
    if check is not None:
        body["check"] = {
            "blurred": SHARE,
            "marked": round(check.marked, 4),
            "random": round(check.random, 4),
        }
    return body


def _similar(model: Model, decision: Decision, *, images: bool) -> list[dict[str, Any]]:
    """The nearest support images: class, cosine and, where it is known, the image."""
    support, task = model.classifier.support, model.classifier.task
    if support is None or decision.features is None:
        return []
    [rows], [cosines] = nearest(support, decision.features[None], _SIMILAR)
    similar = []
    for row, cosine in zip(rows.tolist(), cosines.tolist(), strict=True):
        name = task.shown_names(support.labels[row])
        entry = {"class": name, "similarity": round(cosine, 4)}
        if images and row in model.thumbnails:
            entry["image"] = model.thumbnails[row]
        similar.append(entry)
    return similar


def as_json(upload: Upload, given: Sequence[Answer]) -> dict[str, Any]:
    height, width = upload.pixels.shape[:2]
    image = {"name": upload.name, "width": width, "height": height, "note": upload.note}
    return {"image": image, "models": list(given), "caution": CAUTION}
