"""The report: everything known about a model on labelled images, as one self-contained page."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.audit import Audit, audit_data
from ogkd.data.case import Dataset
from ogkd.data.fetch import resolve_data
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import pluralize
from ogkd.evaluation import LabelledPredictions, evaluate_predictions, predict_labelled
from ogkd.evaluation.show import answer_rows, finding_rows, limit_rows
from ogkd.files import write_text
from ogkd.model.card import CAUTION
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider, engine_note
from ogkd.model.support_sets import SupportSets
from ogkd.report import facts, sections
from ogkd.report.charts import confusion_table, graph_table
from ogkd.report.page import SIDE, Subject, Words, percent, render

_MOST = 12  # cards in a gallery: keeps the page below 3 MB
_MARKS = {  # of a verdict: class in the style sheet, sign
    True: ("good", "\u2713"),
    False: ("error", "\u2717"),
    None: ("warning", "?"),
}
_NOT_CALIBRATED = (
    "The model was not calibrated: it answers yes from a probability of 50 % on, and guarantees "
    "nothing. The command ogkd calibrate finds limits that do."
)
_CONTENTS = {  # of every report: sections and their short names
    "findings": "Findings",
    "answers": "Answers",
    "mistakes": "Mistakes",
    "summary": "Summary",
    "metrics": "Metrics",
    "confusion": "Confusions",
    "screening": "Screening",
    "selective": "Referral",
    "calibration": "Calibration",
    "errors": "Errors",
    "examples": "Evidence",
    "graph": "Class graph",
    "statistics": "For statisticians",
    "data": "Data",
    "making": "Settings",
    "caution": "Caution",
}


def report(
    classifier: Classifier,
    data: str | Path | Dataset,
    out: str | Path = "report.html",
    *,
    split: str = "test",
    show_names: bool = False,
    images: bool = True,
    check: bool = True,
) -> Path:
    """Evaluate a model on labelled images and write one self-contained HTML page about it.

    The page shows small copies of images (`images=False`: none), and file names only with
    `show_names`. `check` reads all images of the data and adds what is wrong with them. Returns
    the path of the page.
    """
    dataset = resolve_data(data)
    predictions = predict_labelled(classifier, dataset, split=split)
    folders = {str(image.file.absolute().parent) for image in dataset.images}
    audit = audit_data(dataset, root=Path(os.path.commonpath(folders))) if check else None
    write_report(
        out, classifier, dataset, predictions, show_names=show_names, audit=audit, images=images
    )
    return Path(out)


def write_report(
    path: str | Path,
    classifier: Classifier,
    dataset: Dataset,
    predictions: LabelledPredictions,
    *,
    command: str = "",
    show_names: bool = False,
    audit: Audit | None = None,
    images: bool = True,
    result: Mapping[str, Any] | None = None,
) -> None:
    """Write the page about `predictions`, the model's outputs on a part of `dataset`.

    File names are left out unless `show_names`; `images=False` leaves the images out. `result`
    is the value of `evaluate_predictions`, if that was computed already. `command` is the command
    line to show. But for the time, the same input gives the same page.
    """
    card = classifier.card
    if result is None:
        result = evaluate_predictions(
            predictions,
            classifier.calibration,
            card=card,
            support_sets=SupportSets.of(classifier),
        )
    subject = Subject(classifier, predictions, result, show_names, images)
    sections_file, describe = _SECTIONS[predictions.task.kind]
    values = describe(subject, audit)
    contents = [*values.pop("contents"), "data", "making", "caution"]
    columns, rows = facts.part_counts(dataset, card)
    now = datetime.now().astimezone()
    page = render(
        "report.html",
        sections_file=sections_file,
        title="Model report",
        subtitle=f"{card.method} on {card.backbone.short_name}: {', '.join(card.class_names)}",
        caution=CAUTION,
        made=f"Created on {now:%Y-%m-%d} at {now:%H:%M %Z}",
        alarms=result["warnings"],
        verdict=result["verdict"],
        outcome_mark=_MARKS[result["verdict"]["better_than_guessing"]],
        side=SIDE,
        show_names=show_names,
        counted_name=classifier.task.noun,
        count_columns=columns,
        count_rows=rows,
        facts=facts.data_facts(predictions, audit),
        audit=audit,
        model=facts.model_facts(classifier, show_names=show_names),
        settings=facts.settings_rows(card.config),
        versions=facts.version_rows(card),
        hashes=facts.fingerprints(classifier, predictions),
        command=facts.plain_command(command, show_names=show_names),
        interval_words=sections.interval_words(result),
        contents=[(key, _CONTENTS[key]) for key in contents],
        **values,
    )
    write_text(Path(path), page, suffixes=(".html",))


def _class_values(subject: Subject, audit: Audit | None) -> dict[str, Any]:
    """What only the report about a model of classes has."""
    classifier, result, p = subject.classifier, subject.result, subject.p
    labels, names = subject.predictions.labels, subject.predictions.class_names
    wrong = confident_errors(labels, p)
    errors, examples = (
        subject.cards([(int(n), int(p[n].argmax())) for n in chosen], partial(_words, subject))
        for chosen in (wrong, correct_examples(labels, p))
    )
    screening = sections.screening(result)
    contents = ["summary", "metrics", "confusion", *(["screening"] if screening else [])]
    contents += ["selective", "calibration", "errors", *(["examples"] if examples else [])]
    return {
        "has_images": bool(errors or examples),
        "contents": [*contents, "graph", "statistics"],
        "tiles": sections.tiles(result),
        "sentences": sections.sentences(result),
        "warnings": _warnings(classifier, sections.warnings(result), audit),
        "metrics": sections.metrics(result),
        "confusion": confusion_table(np.asarray(result["confusion"]), names),
        "confusions": sections.frequent_confusions(result),
        "screening": screening,
        "risk": sections.selective(result),
        "calibration": sections.calibration(result),
        "sets": sections.sets(result),
        "result": result,
        "errors": errors,
        "error_rows": [
            (names[labels[n]], names[p[n].argmax()], float(p[n].max()), subject.file(n))
            for n in wrong
        ],
        "all_errors": int((p.argmax(axis=1) != labels).sum()),
        "examples": examples,
        "graph": _graph(classifier),
    }


def _warnings(
    classifier: Classifier, about_numbers: Sequence[str], audit: Audit | None
) -> list[str]:
    messages = [*filter(None, [engine_note(classifier)]), *about_numbers]
    if audit is not None and (errors := audit.count("error")):
        messages.append(f"The data check found {pluralize(errors, 'error')}: see Data below.")
    return messages


def _graph(classifier: Classifier) -> dict[str, Any]:
    W, alpha, learned = facts.graph(classifier)
    texts = "class texts that the model learned" if learned else "class names"
    caption = f"W in percent: each row sums to 100. Sharpness alpha = {alpha:g}."
    return {
        "words": f"The class graph W compares the {texts}: the more similar two of them are, the "
        "larger the number. Classes with similar texts may also be hard to tell apart in images. "
        f"With {len(W)} classes, {percent(1 / len(W))} everywhere would mean that no two classes "
        "are more similar than any others.",
        "table": graph_table(W, classifier.class_names, caption=caption),
    }


def confident_errors(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> NDArray[np.intp]:
    """Numbers of the misclassified images to show, the most confident first."""
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    confidence = probabilities[wrong].max(axis=1)
    return wrong[np.argsort(-confidence, kind="stable")][:_MOST]


def correct_examples(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> NDArray[np.intp]:
    """For each class the most confident correct image, if there is one."""
    correct = probabilities.argmax(axis=1) == labels
    confidence = np.where(correct, probabilities.max(axis=1), -1.0)
    examples = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        best = members[np.argmax(confidence[members])]
        if confidence[best] >= 0:
            examples.append(best)
    return np.asarray(examples[:_MOST], np.intp)


def _words(subject: Subject, number: int, predicted: int) -> Words:
    """What a card says about an image and its predicted class."""
    predictions, row = subject.predictions, subject.p[number]
    label = int(predictions.labels[number])
    name, truth = predictions.class_names[predicted], predictions.class_names[label]
    title, text = truth, f"{100 * row[predicted]:.0f} % for {name}"
    if name != truth:
        title = f"{truth}, mistaken for {name}"
        text += f", {100 * row[label]:.0f} % for {truth}"
    outlined = f"The same image; the patches with most evidence for {name} are outlined"
    return Words(title, text, f"An image of the class {truth}", "what it saw", outlined)


def _findings_values(subject: Subject, audit: Audit | None) -> dict[str, Any]:
    """What only the report about a model of findings has."""
    classifier, result = subject.classifier, subject.result
    chosen = worst_mistakes(subject.predictions.labels, subject.p)
    mistakes = subject.cards(chosen, partial(_finding_words, subject))
    return {
        "contents": ["findings", "answers", *(["mistakes"] if mistakes else [])],
        "has_images": bool(mistakes),
        "warnings": _warnings(classifier, [], audit),
        "measured": finding_rows(result),
        "answered": answer_rows(result),
        "limits": limit_rows(result),
        "promise": next(iter(Decider(classifier).notes), _NOT_CALIBRATED).removeprefix("Note: "),
        "mistakes": mistakes,
    }


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


def _finding_words(subject: Subject, number: int, f: int) -> Words:
    """What a card says about an image on which a finding is missed or wrongly seen."""
    name, present = subject.predictions.class_names[f], subject.predictions.labels[number, f] == 1
    title = f"{name}: {'missed' if present else 'not there'}"
    text = f"{100 * subject.p[number, f]:.0f} % for {name}"
    image = f"An image {'with' if present else 'without'} {name}"
    return Words(title, text, image, "image", f"Evidence for {name}")


# Of each task: the template of the sections that only its reports have, and their values.
_SECTIONS: Mapping[str, tuple[str, Callable[[Subject, Audit | None], dict[str, Any]]]]
_SECTIONS = {
    OneOf.kind: ("classes.html", _class_values),
    Findings.kind: ("findings.html", _findings_values),
}
