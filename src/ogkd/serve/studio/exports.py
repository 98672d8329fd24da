"""What leaves the studio: a model folder, an ONNX file, tables, a report, a hand-over archive."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import torch

from ogkd.data.case import Case
from ogkd.data.grouping import Grouping
from ogkd.errors import ConfigError
from ogkd.evaluation.predictions import LabelledPredictions
from ogkd.features.store import given_batches
from ogkd.fitting.prepare import default_preset
from ogkd.methods import TextSide, make_method
from ogkd.model.card import BackboneCard, ModelCard, versions
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider, Decision, SeenImage
from ogkd.model.familiarity import SupportFeatures
from ogkd.model.table import row_writer
from ogkd.report import write_report
from ogkd.serve.studio.fitted import Fitted
from ogkd.serve.studio.learn import METHOD, SEED
from ogkd.serve.studio.project import MODEL, Project
from ogkd.serve.studio.session import Session

HAND_OVER = """This archive was made by ogkd studio. It contains no images.

model/            the fitted model: ogkd.load("model"), ogkd predict, ogkd app
labels.csv        the labels, by the paths of the images
predictions.csv   what the model says of every image
labels.jsonl      every click, in order
project.json      classes, their texts, settings

Research software, not for autonomous clinical use: a qualified person must judge every image.
"""


def classifier_of(
    session: Session, *, whole_card: bool = True, allow_missing_classes: bool = False
) -> Classifier:
    """The current model as a classifier, calibrated on labels that were held out in turn.

    Its card names the unlabelled images that it learned from, which takes a while, if `whole_card`.
    """
    fitted, text, features = session.fitted, session.text(), session.gallery.features
    if (
        fitted is None
        or text is None
        or features is None
        or (fitted.missing and not allow_missing_classes)
    ):
        missing = _without_images(session)
        raise ConfigError(
            "There is no model yet: label at least one image of each class"
            + (f". Missing: {', '.join(missing)}." if missing else ".")
        )
    return Classifier(
        text.backbone,
        fitted.head,
        _card(session, fitted, text, whole=whole_card),
        calibration=fitted.calibration,
        support=SupportFeatures(features[fitted.labelled], fitted.labels),
    )


def _card(session: Session, fitted: Fitted, text: TextSide, *, whole: bool) -> ModelCard:
    preset = default_preset(METHOD)
    refs = [session.gallery.refs[row] for row in fitted.labelled.tolist()]
    rest = [session.gallery.refs[row] for row in fitted.rest.tolist()] if whole else []
    labels = fitted.labels.tolist()
    return ModelCard(
        method=METHOD,
        preset=preset,
        config=make_method(METHOD, preset=preset).config.model_dump(mode="json"),
        asks=fitted.task.as_json(),
        backbone=BackboneCard.of(text.backbone),
        logit_scale=text.backbone.logit_scale,
        prompts_sha256=_digest(text.prompts),
        data_sha256=_digest(sorted(zip((ref.key for ref in refs), labels, strict=True))),
        support_counts=fitted.task.support_counts(labels),
        support_images=tuple(sorted({ref.fingerprint for ref in refs})),
        support_pixels=tuple(sorted({ref.pixel_fingerprint for ref in refs})),
        unlabelled_images=tuple(
            sorted({mark for ref in rest for mark in (ref.fingerprint, ref.pixel_fingerprint)})
        ),
        seed=SEED,
        cases=Grouping.parse(slice=session.project.facts.slice).as_json(),
        images=len(refs),
        learned_cases=len(refs),
        versions=dict(versions()),
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _without_images(session: Session) -> list[str]:
    used = set(session.project.labels.values())
    return [name for name in session.project.class_names if name not in used]


def write_model(session: Session) -> Path:
    folder = session.project.folder / MODEL
    classifier_of(session).save(folder)
    return folder


def predictions_csv(session: Session) -> str:
    """What the model says of every image, as the table that `ogkd predict` writes."""
    fitted, gallery = session.fitted, session.gallery
    if fitted is None or gallery.features is None:
        raise ConfigError("There are no predictions yet. Name at least two classes first.")
    classifier = classifier_of(session, whole_card=False, allow_missing_classes=True)
    pairs = zip(gallery.addresses, gallery.refs, strict=True)
    cases = [Case(address, (ref,)) for address, ref in pairs]
    rows = torch.from_numpy(gallery.features[fitted.known])
    known = [case for case, read in zip(cases, fitted.known, strict=True) if read]
    decisions = Decider(classifier).decide(known, lambda images: given_batches(rows, images))
    memory = io.StringIO()
    write = row_writer(memory, fitted.task, "csv", joined=False)
    for row, case in enumerate(cases):
        error = gallery.errors.get(row, "not read yet")
        unread = Decision(case, images=(SeenImage(case.image, error=error),))
        write(next(decisions) if fitted.known[row] else unread)
    return memory.getvalue()


def report_html(session: Session, path: Path) -> Path:
    """The usual report, about what the model says of labels that it was not shown."""
    classifier, fitted = classifier_of(session), session.fitted
    features = session.gallery.features
    judged = None if fitted is None else fitted.judged
    if judged is None or features is None or not len(judged.rows):
        raise ConfigError("A report needs at least two labelled images of each class.")
    rows = judged.rows.tolist()
    refs = [session.gallery.refs[row] for row in rows]
    targets = judged.labels.tolist()
    cases = [Case.single(ref, target) for ref, target in zip(refs, targets, strict=True)]
    predictions = LabelledPredictions(
        task=classifier.task,
        cases=cases,
        labels=judged.labels,
        logits=judged.logits,
        features=features[rows],
        images=refs,
        decisions=[Decision(case) for case in cases],
        warnings=(
            "These numbers are of labelled images that were held out in turn (leave-one-out), not "
            "of a separate test set. The studio asks for hard images, so other images may be "
            "easier or harder than these.",
        ),
    )
    write_report(path, classifier, session.project.dataset(), predictions, images=False)
    return path


def hand_over(project: Project, predictions: str) -> bytes:
    """Model, labels and predictions as one archive; no image is in it."""
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
