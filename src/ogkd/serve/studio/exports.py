"""What leaves the studio: one archive of model, labels, predictions and report."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from ogkd.backbones.base import ImageFeatures
from ogkd.data.case import Case
from ogkd.errors import ConfigError
from ogkd.evaluation.predictions import LabelledPredictions
from ogkd.features.encode import EncodedBatch
from ogkd.fitting.pipeline import train
from ogkd.fitting.pool import Pool
from ogkd.fitting.prepare import Drawn, Prepared, default_preset
from ogkd.fitting.request import FitRequest
from ogkd.images import ImageRef
from ogkd.methods import make_method
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decision
from ogkd.model.familiarity import SupportFeatures
from ogkd.model.table import row_writer
from ogkd.report import report
from ogkd.serve.studio.fit import METHOD, SEED, Judged, support_of
from ogkd.serve.studio.project import MODEL
from ogkd.serve.studio.session import Session

HAND_OVER = """This archive was made by ogkd studio. It contains no images.
{accuracy}

model/            the fitted model: ogkd.load("model"), ogkd predict, ogkd app, ogkd export
labels.csv        the labels, by the paths of the images
predictions.csv   what the model says of every image
report.html       a page about the model, once it could be checked
labels.jsonl      every click, in order
project.json      classes, their texts, settings

Research software, not for autonomous clinical use: a qualified person must judge every image.
"""


def hand_over(session: Session, folder: Path) -> bytes:
    """Model, labels, predictions and report as one archive, made in a folder; no image is in it."""
    project, memory, classifier = session.project, io.BytesIO(), trained(session)
    classifier.save(project.folder / MODEL)
    project.write_table()
    judged = None if session.fitted is None else session.fitted.judged
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        summary = "" if judged is None else judged.summary
        archive.writestr("README.txt", HAND_OVER.format(accuracy=summary))
        archive.writestr("predictions.csv", predictions_csv(session))
        if judged is not None and len(judged.rows):
            page = folder / "report.html"
            predictions = held_out_predictions(session, judged, classifier)
            data = project.dataset()
            report(classifier, data, page, predictions=predictions, images=False, audit=False)
            archive.write(page, page.name)
        for name in ("labels.csv", "labels.jsonl", "project.json"):
            archive.write(project.folder / name, name)
        for file in sorted((project.folder / MODEL).glob("*")):
            archive.write(file, f"{MODEL}/{file.name}")
    return memory.getvalue()


def trained(session: Session) -> Classifier:
    """The current model, fitted as `ogkd fit` does, calibrated on labels held out in turn."""
    fitted, text, gallery = session.fitted, session.text(), session.gallery
    if fitted is None or text is None or gallery.features is None or fitted.missing:
        used = set(session.project.labels.values())
        missing = [name for name in session.project.class_names if name not in used]
        raise ConfigError(
            "There is no model yet: label at least one image of each class"
            + (f". Missing: {', '.join(missing)}." if missing else ".")
        )
    X, y, rest = gallery.features[fitted.labelled], fitted.labels, gallery.features[fitted.rest]
    refs = [gallery.refs[row] for row in fitted.labelled]
    cases = [Case.single(ref, label) for ref, label in zip(refs, y.tolist(), strict=True)]
    preset = default_preset(METHOD)
    data = session.project.dataset().with_cases(cases)
    prepared = Prepared(
        FitRequest(data, seed=SEED, method=METHOD, slice=session.project.facts.slice),
        make_method(METHOD, preset=preset),
        preset,
        data.task,
        [text],
        Drawn(cases, []),
        support=support_of(X, y, text, rest),
        kept=SupportFeatures(X, y),
        pool=Pool([gallery.refs[row] for row in fitted.rest], torch.from_numpy(rest)),
    )
    classifier = train(prepared)
    classifier.calibration = fitted.decider.classifier.calibration
    return classifier


def predictions_csv(session: Session) -> str:
    """What the model says of every image, as the table that `ogkd predict` writes."""
    fitted, gallery, memory = session.fitted, session.gallery, io.StringIO()
    assert fitted is not None  # there is a model
    assert gallery.features is not None
    errors = {
        row: gallery.errors.get(row, "not read yet")
        for row in np.flatnonzero(~fitted.known).tolist()
    }
    rows = ImageFeatures(torch.from_numpy(gallery.features[fitted.known]))
    pairs = zip(gallery.addresses, gallery.refs, strict=True)
    write = row_writer(memory, fitted.decider.task, "csv", joined=False)
    cases = [Case(address, (ref,)) for address, ref in pairs]

    def encode(images: Iterable[ImageRef]) -> Iterator[EncodedBatch]:
        yield EncodedBatch(list(images), rows, errors)

    for decision in fitted.decider.decide(cases, encode):
        write(decision)
    return memory.getvalue()


def held_out_predictions(
    session: Session, judged: Judged, classifier: Classifier
) -> LabelledPredictions:
    """What was said of the images that the page's accuracy is of."""
    gallery, features = session.gallery, session.gallery.features
    assert features is not None  # else nothing was judged
    rows, labels = judged.rows[judged.counted], judged.labels[judged.counted]
    refs = [gallery.refs[row] for row in rows]
    cases = [Case.single(ref, label) for ref, label in zip(refs, labels.tolist(), strict=True)]
    return LabelledPredictions(
        task=classifier.task,
        cases=cases,
        labels=labels,
        logits=judged.logits[judged.counted],
        features=features[rows],
        images=refs,
        decisions=[Decision(case) for case in cases],
        held_out=True,
        warnings=(f"{judged.basis}. There is no separate test set.",),
    )
