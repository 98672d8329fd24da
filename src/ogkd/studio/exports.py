"""What leaves the studio: a model folder, an ONNX file, tables, a report, a hand-over archive."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import torch

from ogkd.cells import harmless, harmless_path
from ogkd.datasets.manifest import Item, Manifest
from ogkd.datasets.tables import csv_text
from ogkd.errors import ConfigError
from ogkd.evaluation.predictions import LabelledPredictions
from ogkd.fitting.pipeline import train
from ogkd.fitting.pool import Pool
from ogkd.fitting.prepare import Drawn, Prepared, default_preset
from ogkd.fitting.request import FitRequest
from ogkd.methods import make_method
from ogkd.model.classifier import Classifier
from ogkd.model.familiarity import SupportFeatures
from ogkd.report import write_report
from ogkd.studio.fitted import Fitted
from ogkd.studio.learn import METHOD, support_of
from ogkd.studio.project import MODEL, Project
from ogkd.studio.session import Session

HAND_OVER = """This archive was made by ogkd studio. It contains no images.

model/            the fitted model: ogkd.load("model"), ogkd predict, ogkd app
labels.csv        the labels, by the paths of the images
predictions.csv   what the model says of every image
labels.jsonl      every click, in order
project.json      classes, their texts, settings

Research software, not for autonomous clinical use: a qualified person must judge every image.
"""


def classifier_of(session: Session, *, whole_card: bool = True) -> Classifier:
    """The current model as a classifier, calibrated on labels that were held out in turn.

    Its card names the unlabelled images that it learned from, which takes a while, if `whole_card`.
    """
    fitted, text, features = session.fitted, session.text(), session.gallery.features
    if fitted is None or text is None or features is None or fitted.missing:
        missing = _without_images(session)
        raise ConfigError(
            "There is no model yet: label at least one image of each class"
            + (f". Missing: {', '.join(missing)}." if missing else ".")
        )
    gallery = session.gallery
    items = [
        Item(gallery.refs[row], int(label))
        for row, label in zip(fitted.labelled.tolist(), fitted.labels, strict=True)
    ]
    X, rest = features[fitted.labelled], features[fitted.rest]
    request = FitRequest(
        Manifest(tuple(items), text.class_names),
        backbone=text.backbone,
        method=METHOD,
        slice=session.project.facts.slice,
    )
    preset = default_preset(METHOD)
    unlabelled = [gallery.refs[row] for row in fitted.rest.tolist()] if whole_card else []
    prepared = Prepared(
        request,
        (request.seed,),
        make_method(METHOD, preset=preset),
        preset,
        text,
        [Drawn(items, [])],
        [support_of(X, fitted.labels, text, rest)],
        [SupportFeatures(X, fitted.labels)],
        [Pool(unlabelled, torch.from_numpy(rest))],
        [],
    )
    with torch.no_grad():
        found = train(prepared)[0]
    found.calibration = fitted.calibration
    return found


def _without_images(session: Session) -> list[str]:
    used = set(session.project.labels.values())
    return [name for name in session.project.class_names if name not in used]


def write_model(session: Session) -> Path:
    place = session.project.folder / MODEL
    classifier_of(session).save(place)
    return place


def predictions_csv(session: Session) -> str:
    """Every image: its label if it has one, and what the model says of it."""
    names, fitted = session.project.class_names, session.fitted
    if fitted is None:
        raise ConfigError("There are no predictions yet. Name at least two classes first.")
    labels = session.labels()
    head = ["path", "label", "prediction", "probability", "plausible", "unfamiliar", "error"]
    rows: list[list[object]] = [[*head, *(f"p({harmless(name)})" for name in names)]]
    for row, address in enumerate(session.gallery.addresses):
        label = harmless(names[labels[row]]) if labels[row] >= 0 else ""
        if not fitted.known[row]:
            error = harmless(session.gallery.errors.get(row, "not read yet"))
            rows.append([harmless_path(address), label, "", "", "", "", error, *[""] * len(names)])
            continue
        p = fitted.probabilities[row]
        inside = "" if fitted.sets is None else "; ".join(_members(fitted, row, names))
        strange = "" if fitted.unfamiliar is None else str(bool(fitted.unfamiliar[row])).lower()
        best = int(p.argmax())
        shares = [f"{share:.4f}" for share in p]
        said = [harmless(names[best]), f"{p[best]:.4f}", harmless(inside), strange, ""]
        rows.append([harmless_path(address), label, *said, *shares])
    return csv_text(rows)


def _members(fitted: Fitted, row: int, names: tuple[str, ...]) -> list[str]:
    inside = fitted.sets[row] if fitted.sets is not None else np.zeros(len(names), bool)
    return [name for name, member in zip(names, inside, strict=True) if member]


def report_html(session: Session, place: Path) -> Path:
    """The usual report, about what the model says of labels that it was not shown."""
    classifier, fitted = classifier_of(session), session.fitted
    features = session.gallery.features
    judged = None if fitted is None else fitted.judged
    if judged is None or features is None or not len(judged.rows):
        raise ConfigError("A report needs at least two labelled images of each class.")
    rows = judged.rows.tolist()
    refs = [session.gallery.refs[row] for row in rows]
    names = session.project.class_names
    held = LabelledPredictions(
        labels=judged.labels,
        logits=judged.logits,
        features=features[rows],
        images=refs,
        groups=[None] * len(rows),
        keys=[ref.fingerprint for ref in refs],
        class_names=names,
        normal=tuple(n for n, one in enumerate(session.project.facts.classes) if one.normal),
        warnings=(
            "These numbers are of labelled images that were held out in turn (leave-one-out), not "
            "of a separate test set. The studio asks for hard images, so other images may be "
            "easier or harder than these.",
        ),
    )
    write_report(place, classifier, session.project.manifest(), held, images=False)
    return place


def hand_over(project: Project, predictions: str) -> bytes:
    """Model, labels and predictions as one archive; no picture is in it."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.txt", HAND_OVER)
        archive.writestr("predictions.csv", predictions)
        for name in ("labels.csv", "labels.jsonl", "project.json"):
            if (project.folder / name).is_file():
                archive.write(project.folder / name, name)
        for file in sorted((project.folder / MODEL).glob("*")):
            archive.write(file, f"{MODEL}/{file.name}")
    return memory.getvalue()
