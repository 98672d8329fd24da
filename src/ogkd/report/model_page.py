"""The report: everything known about a model on labelled images, as one self-contained page."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ogkd.audit import Audit, audit_data
from ogkd.data.case import Dataset
from ogkd.data.fetch import resolve_data
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import pluralize
from ogkd.evaluation import (
    Evaluation,
    LabelledPredictions,
    evaluate_predictions,
    predict_labelled,
)
from ogkd.evaluation.sections import Section, Table, percent
from ogkd.files import write_text
from ogkd.model.card import CAUTION
from ogkd.model.classifier import Classifier
from ogkd.report import facts
from ogkd.report.page import Subject, render

_MOST = 12  # cards in a gallery: keeps the page below 3 MB
_MARKS = {  # of a verdict: class in the style sheet, sign
    True: ("good", "\u2713"),
    False: ("error", "\u2717"),
    None: ("warning", "?"),
}
_EXAMPLES = (
    "For each class, the correctly classified image that the model is most confident about. The "
    "lighter the blue of an area, the more evidence it gives for the class compared with the rest "
    "of the image; the patches that count most are outlined, and the empty background is left out. "
    "This shows what the model relies on, not where the disease is."
)
_MISTAKES = (
    "For each finding, the image without it that was given the highest probability, and the image "
    "with it that was given the lowest. The lighter the blue of an area, the more evidence it "
    "gives for the finding. This shows what the model relies on, not where the disease is."
)
_CAUTION = (
    "Performance may differ between hospitals, scanners, imaging protocols and patient groups, and "
    "these numbers hold only for images like those evaluated here. Before any use, validate the "
    "model where it will be used, under human supervision."
)


def report(
    classifier: Classifier,
    data: str | Path | Dataset,
    out: str | Path = "report.html",
    *,
    split: str = "test",
    show_names: bool = False,
    images: bool = True,
    audit: Audit | bool = True,
    predictions: LabelledPredictions | None = None,
    result: Evaluation | None = None,
    left_out: Sequence[str] = (),
) -> Path:
    """Evaluate a model on labelled images and write one self-contained HTML page about it.

    The page shows small copies of images (`images=False`: none), and file names only with
    `show_names`. `audit` is the check of the data, or whether to make one, which reads all images.
    `predictions` are the model's outputs and `result` the value of `evaluate_predictions`, if
    they are known already. `left_out` says what was. But for the time, the same input gives the
    same page. Returns the path of the page.
    """
    dataset, card = resolve_data(data), classifier.card
    if predictions is None:
        predictions = predict_labelled(classifier, dataset, split=split)
    if audit is True:
        folders = {str(image.file.absolute().parent) for image in dataset.images}
        audit = audit_data(dataset, root=Path(os.path.commonpath(folders)))
    checked = audit or None
    result = result or evaluate_predictions(predictions, classifier)
    subject = Subject(classifier, predictions, show_names, images)
    galleries = _GALLERIES[predictions.task.kind](subject)
    sections = [
        *result.sections,
        *(section for section in galleries if section.cards or section.key == "errors"),
        facts.data_section(dataset, card, predictions, left_out),
        facts.making_section(classifier, predictions, show_names=show_names),
    ]
    warnings = list(result["warnings"])
    if checked is not None and (errors := checked.count("error")):
        warnings.append(f"The data check found {pluralize(errors, 'error')}: see Data below.")
    now = datetime.now().astimezone()
    page = render(
        "report.html",
        title="Model report",
        subtitle=f"{card.method} on {card.backbone.short_name}: {', '.join(card.class_names)}",
        caution=f"{CAUTION} {_CAUTION}",
        made=f"Created on {now:%Y-%m-%d} at {now:%H:%M %Z}",
        warnings=warnings,
        verdict=result["verdict"],
        outcome_mark=_MARKS[result["verdict"]["better_than_guessing"]],
        has_images=any(section.cards for section in sections),
        show_names=show_names,
        audit=checked,
        sections=sections,
    )
    write_text(Path(out), page, suffixes=(".html",))
    return Path(out)


def _class_galleries(subject: Subject) -> list[Section]:
    """Errors and examples of a model of classes; the errors are a table if there are no images."""
    p, labels = subject.p, subject.predictions.labels
    names, best = subject.predictions.class_names, subject.p.argmax(axis=1)
    wrong, right = confident_errors(labels, p), correct_examples(labels, p)
    errors, examples = (
        subject.cards([(int(n), int(best[n])) for n in chosen], _class_card)
        for chosen in (wrong, right)
    )
    count = int((best != labels).sum())
    text, table = "The model made no errors on these images.", None
    if count:
        shown = f"{len(wrong)} of the {count}" if len(wrong) < count else "All"
        text = (
            f"{shown} misclassified images, most confident first. These are worth a look: a wrong "
            "label in the data, an unusual image, or something the model has not learned."
        )
    if count and not errors:
        rows = [
            (names[labels[n]], names[best[n]], percent(float(p[n].max())), subject.file(n))
            for n in wrong
        ]
        table = Table(("true class", "predicted", "confidence", "file"), tuple(rows))
    evidence = "Evidence: where it looks"
    return [
        Section(
            "Most confident errors", (text,), table, key="errors", short="Errors", cards=errors
        ),
        Section(evidence, (_EXAMPLES,), key="examples", short="Evidence", cards=examples),
    ]


def confident_errors(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> NDArray[np.intp]:
    """Numbers of the misclassified images to show, the most confident first."""
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    confidence = probabilities[wrong].max(axis=1)
    return wrong[np.argsort(-confidence, kind="stable")][:_MOST]


def correct_examples(labels: NDArray[np.integer], probabilities: NDArray[np.floating]) -> list[int]:
    """For each class the most confident correct image, if there is one."""
    best, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    members = [np.flatnonzero((labels == c) & (best == c)) for c in np.unique(labels)]
    return [int(rows[np.argmax(confidence[rows])]) for rows in members if len(rows)][:_MOST]


def _class_card(subject: Subject, number: int, predicted: int) -> tuple[str, str]:
    """What a card says about an image and its predicted class."""
    predictions, row = subject.predictions, subject.p[number]
    label = int(predictions.labels[number])
    name, truth = predictions.class_names[predicted], predictions.class_names[label]
    title, text = truth, f"{100 * row[predicted]:.0f} % for {name}"
    if name != truth:
        title = f"{truth}, mistaken for {name}"
        text += f", {100 * row[label]:.0f} % for {truth}"
    return title, text


def _finding_galleries(subject: Subject) -> list[Section]:
    """The worst mistakes of a model of findings."""
    cards = subject.cards(worst_mistakes(subject.predictions.labels, subject.p), _finding_card)
    title = "Most confident mistakes"
    return [Section(title, (_MISTAKES,), key="mistakes", short="Mistakes", cards=cards)]


def worst_mistakes(labels: NDArray[np.int64], p: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Images and findings: of each the most probable where absent, the least where present.

    Only those on the wrong side of one half are mistakes.
    """
    chosen = []
    for f in range(labels.shape[1]):
        for truth, sign in ((0, 1), (1, -1)):
            wrong = np.flatnonzero((labels[:, f] == truth) & (sign * (p[:, f] - 0.5) > 0))
            if len(wrong):
                chosen.append((int(wrong[np.argmax(sign * p[wrong, f])]), f))
    return chosen[:_MOST]


def _finding_card(subject: Subject, number: int, f: int) -> tuple[str, str]:
    """What a card says about an image on which a finding is missed or wrongly seen."""
    name, present = subject.predictions.class_names[f], subject.predictions.labels[number, f] == 1
    title = f"{name}: {'missed' if present else 'not there'}"
    return title, f"{100 * subject.p[number, f]:.0f} % for {name}"


# Of each task: the sections with images.
_GALLERIES: Mapping[str, Callable[[Subject], list[Section]]]
_GALLERIES = {OneOf.kind: _class_galleries, Findings.kind: _finding_galleries}
