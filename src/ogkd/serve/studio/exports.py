"""What leaves the studio: a model folder, an ONNX file, tables, a report, a hand-over archive."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import torch

from ogkd.data.case import Case
from ogkd.errors import ConfigError
from ogkd.evaluation.predictions import LabelledPredictions
from ogkd.features.store import given_batches
from ogkd.fitting.pipeline import train
from ogkd.fitting.pool import Pool
from ogkd.fitting.prepare import Drawn, Prepared, default_preset
from ogkd.fitting.request import FitRequest
from ogkd.methods import make_method
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decision, SeenImage
from ogkd.model.familiarity import SupportFeatures
from ogkd.model.table import row_writer
from ogkd.report import report
from ogkd.serve.studio.fit import METHOD, SEED, support_of
from ogkd.serve.studio.project import MODEL
from ogkd.serve.studio.session import Session

HAND_OVER = """This archive was made by ogkd studio. It contains no images.
{accuracy}

model/            the fitted model: ogkd.load("model"), ogkd predict, ogkd app
labels.csv        the labels, by the paths of the images
predictions.csv   what the model says of every image
labels.jsonl      every click, in order
project.json      classes, their texts, settings

Research software, not for autonomous clinical use: a qualified person must judge every image.
"""


def export(session: Session, kind: str, folder: Path) -> tuple[bytes, str, str]:
    """The content of a download, its name and its media type."""
    name, project = session.project.folder.name, session.project
    if kind == "labels":
        return project.write_table().read_bytes(), f"{name}-labels.csv", "text/csv"
    if kind == "predictions":
        return predictions_csv(session).encode(), f"{name}-predictions.csv", "text/csv"
    if kind == "report":
        path = folder / "report.html"
        write_held_out_report(session, path)
        return path.read_bytes(), f"{name}-report.html", "text/html"
    if kind == "onnx":
        from ogkd.export import export_onnx

        path = folder / "model.onnx"
        export_onnx(trained(session), path)
        return path.read_bytes(), f"{name}.onnx", "application/octet-stream"
    if kind == "handover":
        trained(session).save(project.folder / MODEL)
        project.write_table()
        return hand_over(session), f"{name}.zip", "application/zip"
    raise ConfigError("Export labels, predictions, report, onnx or handover.")


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
    fitted, gallery = session.fitted, session.gallery
    if fitted is None or gallery.features is None:
        raise ConfigError("There are no predictions yet. Name at least two classes first.")
    pairs = zip(gallery.addresses, gallery.refs, strict=True)
    cases = [Case(address, (ref,)) for address, ref in pairs]
    rows = torch.from_numpy(gallery.features[fitted.known])
    known = [case for case, read in zip(cases, fitted.known, strict=True) if read]
    decisions = fitted.decider.decide(known, lambda images: given_batches(rows, images))
    memory = io.StringIO()
    write = row_writer(memory, fitted.decider.task, "csv", joined=False)
    for row, case in enumerate(cases):
        error = gallery.errors.get(row, "not read yet")
        unread = Decision(case, images=(SeenImage(case.image, error=error),))
        write(next(decisions) if fitted.known[row] else unread)
    return memory.getvalue()


def write_held_out_report(session: Session, path: Path) -> None:
    """The usual report, about the images that the page's accuracy is of."""
    classifier, fitted, features = trained(session), session.fitted, session.gallery.features
    judged = None if fitted is None else fitted.judged
    if judged is None or features is None or not len(judged.rows):
        raise ConfigError("A report needs at least two labelled images of each class.")
    rows, labels = judged.rows[judged.counted], judged.labels[judged.counted]
    refs = [session.gallery.refs[row] for row in rows]
    cases = [Case.single(ref, label) for ref, label in zip(refs, labels.tolist(), strict=True)]
    predictions = LabelledPredictions(
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
    dataset = session.project.dataset()
    report(classifier, dataset, path, predictions=predictions, images=False, audit=False)


def accuracy_line(session: Session) -> str:
    """The accuracy with its interval and the weakest class; "" if nothing was checked."""
    judged = None if session.fitted is None else session.fitted.judged
    if judged is None or judged.accuracy is None or judged.interval is None:
        return ""
    low, high = judged.interval
    line = f"{judged.basis}: {judged.accuracy:.0%} (between {low:.0%} and {high:.0%})."
    if judged.weakest is None:
        return line
    label, recall, images = judged.weakest
    name = session.project.class_names[label]
    return f"{line} Weakest of the classes with five or more: {name}, {recall:.0%} of {images}."


def hand_over(session: Session) -> bytes:
    """Model, labels and predictions as one archive; no image is in it."""
    project, memory = session.project, io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.txt", HAND_OVER.format(accuracy=accuracy_line(session)))
        archive.writestr("predictions.csv", predictions_csv(session))
        for name in ("labels.csv", "labels.jsonl", "project.json"):
            if (project.folder / name).is_file():
                archive.write(project.folder / name, name)
        for file in sorted((project.folder / MODEL).glob("*")):
            archive.write(file, f"{MODEL}/{file.name}")
    return memory.getvalue()
