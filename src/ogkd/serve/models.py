"""The models that the page asks, loaded once and checked at the start, and their answers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.engines import with_engine
from ogkd.datasets.bags import BagRule, grouped
from ogkd.datasets.fetch import resolve_data
from ogkd.datasets.manifest import Item
from ogkd.errors import ConfigError, DataError, OgkdError, OgkdWarning
from ogkd.features.encode import EncodedBatch, encode_files
from ogkd.images import ImageRef, data_uri, read_image
from ogkd.images.ref import kind_of
from ogkd.images.slices import SlicesRule
from ogkd.model.answers import NONE
from ogkd.model.bags import decide_bags
from ogkd.model.card import CAUTION, ModelCard
from ogkd.model.classifier import CARD, Classifier
from ogkd.model.decide import Decider, Decision
from ogkd.model.engine_note import engine_note
from ogkd.model.evidence_check import SHARE, check_evidence
from ogkd.model.explain import evidence_of, parts_of
from ogkd.model.familiarity import nearest
from ogkd.model.load import load
from ogkd.model.drawing import draw
from ogkd.model.policy import Policy
from ogkd.progress import progress_bar
from ogkd.serve.uploads import Upload, exams_of

PREVIEW = 640  # pixels of the longer side
_EVIDENCE = 1024  # pixels of the longer side of an evidence picture, so that its words are legible
_SIMILAR = 4  # support images shown
_SAME = 0.999  # cosine above which features are of one image; they are kept in half precision
_THUMB = 160  # pixels
_DECIDING = 320  # of a picture that decided the answer for a bag
_MOST_PICTURES = 4096  # of one bag
_NO_PICTURE = "None of its pictures can be read."
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
        if classifier.card.findings:
            calibrated = classifier.calibration is not None
            policy = Policy(max_risk=max_risk, coverage=coverage if calibrated else None)
        elif classifier.calibration is not None:
            policy = Policy(max_risk=max_risk, coverage=coverage)
        elif max_risk is None:
            has_sets = classifier.head.ranking is not None and classifier.card.bags is None
            policy = Policy(coverage=coverage if has_sets else None)
        else:
            raise ConfigError(
                f"max_risk needs calibrated models, and {name} is not. Calibrate it with labelled "
                "images that it did not learn from.",
                argument="max_risk",
            )
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
    manifest = resolve_data(data)
    shown = [replace(model, thumbnails=_thumbnails(model, manifest.items)) for model in models]
    if not any(model.thumbnails for model in shown):
        names = ", ".join(model.name for model in models)
        raise ConfigError(
            f"{data} contains no image that {names} learned from. Give the data that was used "
            "for fitting, or start without support images.",
            argument="support",
        )
    return shown


def _thumbnails(model: Model, items: Sequence[Item]) -> dict[int, str]:
    classifier = model.classifier
    if classifier.support is None or classifier.card.bags is not None:
        return {}
    images = classifier.refs(list(dict.fromkeys(item.image for item in items)))
    learned = set(classifier.card.support_images)
    known = [image for image in images if image.fingerprint in learned]
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


def answers(models: Sequence[Model], upload: Upload, *, pictures: bool = True) -> list[Answer]:
    """What every model says about an upload.

    Models with the same backbone share one encoding of the image; predictions and evidence maps
    (`pictures`) come from it. A model of bags gives one answer for each exam of the upload.
    """
    encoded: dict[str, EncodedBatch] = {}
    collected: list[Answer] = []
    for model in models:
        if model.classifier.card.bags is not None:
            collected += _bag_answers(model, upload, model.classifier.card.bags.rule, pictures)
            continue
        if len(upload.files) > 1:
            raise DataError(f"{model.name} answers one image at a time. Send one file.")
        backbone = model.classifier.backbone
        batch = encoded.get(backbone.digest)
        if batch is None:
            deep = any(m.classifier.deep for m in models if m.classifier.backbone is backbone)
            batch = next(encode_files(backbone, [upload.image], patches=pictures, deep=deep))
            encoded[backbone.digest] = batch
        decision = next(model.decider.decide_batches([batch]))
        if decision.error is not None:  # names our copy of the file, so it is not shown
            raise DataError("The image could not be resized for the model. Crop it first.")
        collected.append(_answer(model, decision, pictures=pictures))
    return collected


def _bag_answers(model: Model, upload: Upload, rule: BagRule, pictures: bool) -> list[Answer]:
    """An answer for each exam of the upload; what has none is named with the first."""
    files = upload.files or {upload.image.file: upload.name}
    collected: list[Answer] = []
    failures: list[str] = []
    exams = exams_of(files, rule)
    for name, members in exams.items():
        try:
            collected.append(_bag_answer(model, upload, name, members, rule, pictures))
        except DataError as error:
            failures.append(f"{name}: {error}" if len(exams) > 1 else str(error))
    if not collected:
        raise DataError(failures[0])
    if failures:
        _add_note(collected[0], f"Not answered: {'; '.join(failures)}")
    return collected


def _bag_answer(
    model: Model, upload: Upload, name: str, files: Sequence[Path], rule: BagRule, pictures: bool
) -> Answer:
    """One answer for these files; volumes give their slices."""
    classifier = model.classifier
    backbone, deep = classifier.backbone, classifier.deep
    by = "series" if all(kind_of(file) == "dicom" for file in files) else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OgkdWarning)
        exam_rule = BagRule(by, rule.slices or SlicesRule())
        try:
            refs = [ref for _, ref in grouped([(ImageRef(f), name) for f in files], exam_rule)]
        except OgkdError as error:
            raise DataError(upload.in_user_words(str(error))) from None
    if len(refs) > _MOST_PICTURES:
        most = f"{_MOST_PICTURES:,} that the page answers. Use `ogkd predict`, or fit on fewer."
        raise DataError(f"The exam has {len(refs):,} pictures, more than the {most}")
    batches = encode_files(backbone, refs, deep=deep)
    decision = next(decide_bags(model.decider, batches, repeat(name)))
    if decision.error is not None or decision.image is None:
        raise DataError(upload.in_user_words(decision.error or _NO_PICTURE))
    if pictures:  # of the one that decided most
        [batch] = encode_files(backbone, [decision.image], patches=True, deep=deep)
        if batch.features is not None and batch.features.patches is not None:
            crop = None if batch.crops is None else batch.crops[0]
            decision = replace(decision, patches=batch.features.patches[0].cpu(), crop=crop)
    answer = _answer(model, decision, pictures=pictures and decision.patches is not None)
    for warning in caught:
        _add_note(answer, str(warning.message))
    deciding = [
        {
            "file": upload.files.get(part.image.file, name),
            "part": part.image.part,
            "share": round(part.share, 4),
            **({"picture": _thumbnail(part.image, _DECIDING)} if pictures else {}),
        }
        for part in decision.decided_by
        if part.image is not None
    ]
    bag = {"name": name, "pictures": decision.pictures, "decided_by": deciding}
    return {**answer, "bag": bag}


def _add_note(answer: Answer, note: str) -> None:
    answer["note"] = f"{answer['note']} {note}".strip()


def _thumbnail(image: ImageRef, most: int) -> str:
    return data_uri(Image.fromarray(read_image(image)), most=most)


def _answer(model: Model, decision: Decision, *, pictures: bool) -> Answer:
    classifier = model.classifier
    names, shares = classifier.class_names, decision.probabilities or ()
    order = np.argsort(-np.asarray(shares), kind="stable")
    ranked = {names[label]: round(shares[label], 6) for label in order}
    plausible, prediction = decision.set, next(iter(ranked))
    findings: dict[str, str] = {}
    if decision.answers is not None:
        findings = dict(zip(names, decision.answers, strict=True))
        prediction = _joined(name for name, answer in findings.items() if answer == "yes")
    return {
        "model": model.name,
        "method": classifier.card.method,
        "prediction": prediction,
        "probabilities": ranked,
        "calibrated": classifier.calibration is not None,
        "conformal_set": None if plausible is None else [n for n in ranked if n in plausible],
        "coverage": model.decider.coverage,
        "uncertain": bool(decision.reasons),
        "withheld": bool(decision.unfamiliar or decision.abstain),
        "reasons": list(decision.reasons),
        "note": model.note,
        "similar": _similar(model, decision, pictures=pictures),
        **({"evidence": evidence_json(classifier, decision)} if pictures else {}),
        **({"findings": findings} if findings else {}),
    }


def evidence_json(classifier: Classifier, decision: Decision) -> dict[str, Any]:
    """The evidence map of a decision, and whether it marks what the answer rests on.

    `picture` is a data URI, empty if blurring what the map marks takes no more of the answer away
    than blurring other places does. `kind` is "parts" (for and against, adding up) or "patches".
    """
    evidence = parts_of(classifier, decision)
    kind = "patches" if evidence is None else "parts"
    if evidence is None:
        evidence = evidence_of(classifier, decision)
    check = check_evidence(classifier, evidence)
    shown = check is None or check.holds
    body: dict[str, Any] = {
        "kind": kind,
        "class": evidence.name,
        "picture": data_uri(draw(evidence), most=_EVIDENCE) if shown else "",
    }
    if check is not None:
        body["check"] = {
            "blurred": SHARE,
            "marked": round(check.marked, 4),
            "random": round(check.random, 4),
        }
    return body


def _similar(model: Model, decision: Decision, *, pictures: bool) -> list[dict[str, Any]]:
    """The nearest support images: class, cosine and, where it is known, the image."""
    support, names = model.classifier.support, model.classifier.class_names
    if support is None or decision.features is None:
        return []
    [rows], [cosines] = nearest(support, decision.features[None], _SIMILAR)
    similar = []
    for row, cosine in zip(rows.tolist(), cosines.tolist(), strict=True):
        entry = {"class": _label(names, support.labels[row]), "similarity": round(cosine, 4)}
        if pictures and row in model.thumbnails:
            entry["picture"] = model.thumbnails[row]
        similar.append(entry)
    return similar


def _label(names: Sequence[str], label: Any) -> str:
    """The class of a support image, or the findings that it shows."""
    if np.ndim(label) == 0:
        return str(names[label])
    return _joined(name for name, present in zip(names, label, strict=True) if present == 1)


def _joined(findings: Iterable[str]) -> str:
    return "|".join(findings) or NONE


def as_json(upload: Upload, given: Sequence[Answer]) -> dict[str, Any]:
    height, width = upload.pixels.shape[:2]
    image = {"name": upload.name, "width": width, "height": height, "note": upload.note}
    return {"image": image, "models": list(given), "caution": CAUTION}
