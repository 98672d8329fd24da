"""The report: everything known about a model on labelled images, as one self-contained page."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from ogkd.audit import Audit, audit_data
from ogkd.data.case import Dataset
from ogkd.data.fetch import resolve_data
from ogkd.data.names import fold_name
from ogkd.data.task import Labels, Probabilities
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import pluralize
from ogkd.evaluation import (
    Evaluation,
    LabelledPredictions,
    evaluate_predictions,
    predict_labelled,
)
from ogkd.evaluation.sections import Section, Table
from ogkd.files import write_text
from ogkd.methods import flatten
from ogkd.model.card import CAUTION, ModelCard, versions
from ogkd.model.classifier import Classifier
from ogkd.report.page import Subject, render

_NOT_SHOWN = {"support_images", "support_pixels", "unlabelled_images", "metrics"}  # of the card
_MOST = 12  # cards in a gallery: keeps the page below 3 MB
_MARKS = {  # of a verdict: class in the style sheet, sign
    True: ("good", "\u2713"),
    False: ("error", "\u2717"),
    None: ("warning", "?"),
}
_MAPS = (
    "In the maps, red areas speak for the named class and blue ones against it, within this image. "
    "This shows what the model relies on, not where the disease is."
)
_ERRORS = (
    "Of the misclassified images, those that the model was most confident about. They are worth a "
    "look: a wrong label in the data, an unusual image, or something the model has not learned."
)
_EXAMPLES = "For each class, the correctly classified image that the model is most confident about."
_MISTAKES = (
    "For each finding, the image without it that was given the highest probability, and the image "
    "with it that was given the lowest."
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
    sections = [
        *result.sections,
        *_galleries(subject),
        _data(dataset, card, predictions, left_out),
        _making(classifier, predictions, show_names=show_names),
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


def confident_errors(labels: Labels, p: Probabilities) -> list[tuple[int, int]]:
    """Misclassified images and their predicted classes, the most confident first."""
    best = p.argmax(axis=1)
    wrong = np.flatnonzero(best != labels)
    order = wrong[np.argsort(-p[wrong].max(axis=1), kind="stable")]
    return [(int(n), int(best[n])) for n in order[:_MOST]]


def correct_examples(labels: Labels, p: Probabilities) -> list[tuple[int, int]]:
    """For each class the most confident correct image, if there is one."""
    best, confidence = p.argmax(axis=1), p.max(axis=1)
    members = [(np.flatnonzero((labels == c) & (best == c)), c) for c in np.unique(labels)]
    chosen = [(int(rows[np.argmax(confidence[rows])]), int(c)) for rows, c in members if len(rows)]
    return chosen[:_MOST]


def worst_mistakes(labels: Labels, p: Probabilities) -> list[tuple[int, int]]:
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


def _finding_card(subject: Subject, number: int, f: int) -> tuple[str, str]:
    """What a card says about an image on which a finding is missed or wrongly seen."""
    name, present = subject.predictions.class_names[f], subject.predictions.labels[number, f] == 1
    title = f"{name}: {'missed' if present else 'not there'}"
    return title, f"{100 * subject.p[number, f]:.0f} % for {name}"


@dataclass(frozen=True)
class Gallery:
    """A section of images: which images and classes it shows, and what it says of each."""

    section: Section
    choose: Callable[[Labels, Probabilities], list[tuple[int, int]]]
    describe: Callable[[Subject, int, int], tuple[str, str]]


_GALLERIES: Mapping[str, tuple[Gallery, ...]] = {
    OneOf.kind: (
        Gallery(
            Section("Most confident errors", (_ERRORS, _MAPS), key="errors", short="Errors"),
            confident_errors,
            _class_card,
        ),
        Gallery(
            Section("Evidence: where it looks", (_EXAMPLES,), key="examples", short="Evidence"),
            correct_examples,
            _class_card,
        ),
    ),
    Findings.kind: (
        Gallery(
            Section(
                "Most confident mistakes", (_MISTAKES, _MAPS), key="mistakes", short="Mistakes"
            ),
            worst_mistakes,
            _finding_card,
        ),
    ),
}


def _galleries(subject: Subject) -> Iterator[Section]:
    """The sections with images that have something to show."""
    for gallery in _GALLERIES[subject.predictions.task.kind]:
        chosen = gallery.choose(subject.predictions.labels, subject.p)
        if cards := subject.cards(chosen, gallery.describe):
            yield replace(gallery.section, cards=cards)


def _data(
    dataset: Dataset,
    card: ModelCard,
    predictions: LabelledPredictions,
    left_out: Sequence[str] = (),
) -> Section:
    """Images of each class or finding in each split, those learned from, and what was left out.

    Classes are matched by name, as in the evaluation.
    """
    splits, task = dataset.splits, dataset.task
    names = {fold_name(name): name for name in (*card.class_names, *task.names)}
    counted = Counter(
        (fold_name(task.names[number]), case.split)
        for case in dataset.cases
        for number in task.shown(case.target)
    )
    learned = dict(zip(map(fold_name, card.class_names), card.support_counts, strict=False))
    rows = [
        (name, *(str(counted[key, split]) for split in splits), str(learned.get(key, 0)))
        for key, name in names.items()
    ]
    head = (task.noun, *(split or "images" for split in splits), "learned from")
    groups = "an unknown number of" if predictions.group_count is None else predictions.group_count
    text = [f"The evaluated images come from {groups} patients (groups)."]
    if count := predictions.left_out:
        used = pluralize(count, predictions.unit)
        left_out = (*left_out, f"{used} that the model learned from or was calibrated on")
    if left_out:
        text.append(f"Left out: {'; '.join(left_out)}.")
    return Section("The data", tuple(text), Table(head, tuple(rows)), key="data", short="Data")


def _making(
    classifier: Classifier, predictions: LabelledPredictions, *, show_names: bool
) -> Section:
    """The model card, and what else the numbers depend on."""
    card = classifier.card
    seen = json.dumps(sorted(zip(predictions.keys, predictions.labels.tolist(), strict=True)))
    name = card.backbone.name if show_names else card.backbone.short_name
    facts = {
        "evaluated images, with labels": hashlib.sha256(seen.encode()).hexdigest(),
        "evaluated with": {"engine": classifier.backbone.engine, **versions()},
        **card.model_dump(mode="json", exclude=_NOT_SHOWN),
        "weights_sha256": classifier.weights_sha256,
    }
    facts["backbone"]["name"] = name
    if calibration := classifier.calibration:
        facts["calibration"] = {
            "temperatures": [round(each.temperature, 3) for each in calibration.questions],
            "cases": calibration.cases,
        }
    rows = [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in flatten(facts)
        if value not in (None, "", {}, [])
    ]
    table = Table((), tuple(rows))
    return Section("How the model was made", table=table, key="making", short="Settings")
