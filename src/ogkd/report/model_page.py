"""The report: everything known about a model on labelled images, as one self-contained page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.audit import Audit, audit_data
from ogkd.datasets.fetch import resolve_data
from ogkd.datasets.manifest import Manifest
from ogkd.errors import counted
from ogkd.evaluation import LabelledPredictions, evaluate_predictions, predict_labelled
from ogkd.files import write_text
from ogkd.images import ImageRef, data_uri
from ogkd.model.card import CAUTION
from ogkd.model.classifier import Classifier
from ogkd.model.engine_note import engine_note
from ogkd.model.explain import evidence
from ogkd.model.picture import heat_map
from ogkd.model.support_sets import SupportSets
from ogkd.progress import progress_bar
from ogkd.report import facts, sections
from ogkd.report.charts import confusion_table, graph_table
from ogkd.report.html import percent, render
from ogkd.report.summary import frequent_confusions, sentences, warnings

_SIDE = 256  # pixels of an image on a card
_MOST = 12  # cards in a gallery: keeps the page below 3 MB
_OUTLINED = 8  # patches; more would hide the image
_MARKS = {  # of a verdict: class in the style sheet, sign
    True: ("good", "\u2713"),
    False: ("error", "\u2717"),
    None: ("warning", "?"),
}
_CONTENTS = {
    "summary": "Summary",
    "metrics": "Metrics",
    "confusion": "Confusions",
    "screening": "Screening",
    "prior": "Frequencies",
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
    data: str | Path | Manifest,
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
    manifest = resolve_data(data)
    found = predict_labelled(classifier, manifest, split=split)
    folders = {str(item.image.file.absolute().parent) for item in manifest.items}
    audit = audit_data(manifest, root=Path(os.path.commonpath(folders))) if check else None
    write_report(
        out, classifier, manifest, found, show_names=show_names, audit=audit, images=images
    )
    return Path(out)


def write_report(
    path: str | Path,
    classifier: Classifier,
    manifest: Manifest,
    predictions: LabelledPredictions,
    *,
    command: str = "",
    show_names: bool = False,
    audit: Audit | None = None,
    images: bool = True,
    result: Mapping[str, Any] | None = None,
) -> None:
    """Write the page about `predictions`, the model's outputs on a part of `manifest`.

    File names are left out unless `show_names`; `images=False` leaves the images out. `result`
    is the value of `evaluate_predictions`, if that was computed already. `command` is the command
    line to show. But for the time, the same input gives the same page.
    """
    card = classifier.card
    if result is None:
        sets = None if predictions.findings else SupportSets.of(classifier)
        result = evaluate_predictions(
            predictions, classifier.calibration, card=card, support_sets=sets
        )
    p = predictions.probabilities(classifier.calibration)
    files = [image.name if show_names else "" for image in predictions.images]
    if predictions.findings:
        from ogkd.report.findings_page import findings_values

        template = "findings.html"
        values = findings_values(classifier, predictions, p, result, files, images=images)
    else:
        template = "report.html"
        values = _class_values(classifier, predictions, p, result, files, audit, images=images)
    columns, rows = facts.part_counts(manifest, card)
    now = datetime.now().astimezone()
    page = render(
        template,
        title="Model report",
        subtitle=f"{card.method} on {card.backbone.short_name}: {', '.join(card.class_names)}",
        caution=CAUTION,
        made=f"Created on {now:%Y-%m-%d} at {now:%H:%M %Z}",
        alarms=result["warnings"],
        verdict=result["verdict"],
        outcome_mark=_MARKS[result["verdict"]["better_than_guessing"]],
        side=_SIDE,
        show_names=show_names,
        count_columns=columns,
        count_rows=rows,
        facts=facts.data_facts(predictions, audit),
        audit=audit,
        model=facts.model_facts(classifier, show_names=show_names),
        settings=facts.settings_rows(card.config),
        versions=facts.version_rows(card),
        hashes=facts.fingerprints(classifier, predictions),
        command=facts.plain_command(command, show_names=show_names),
        **values,
    )
    write_text(Path(path), page)


def _class_values(
    classifier: Classifier,
    predictions: LabelledPredictions,
    p: NDArray[np.float32],
    result: Mapping[str, Any],
    files: Sequence[str],
    audit: Audit | None,
    *,
    images: bool,
) -> dict[str, Any]:
    """What only the report about a model of classes has."""
    wrong = confident_errors(predictions.labels, p)
    right = correct_examples(predictions.labels, p)
    errors, examples = (
        _cards(classifier, predictions, p, chosen, files) if images else []
        for chosen in (wrong, right)
    )
    names = predictions.class_names
    screening = sections.screening(result)
    at_prior = sections.at_prior(result)
    present = {"screening": screening, "prior": at_prior, "examples": examples}
    return {
        "has_pictures": bool(errors or examples),
        "contents": [(key, name) for key, name in _CONTENTS.items() if present.get(key, True)],
        "tiles": sections.tiles(result),
        "sentences": sentences(result),
        "warnings": _warnings(classifier, result, audit),
        "interval_words": sections.interval_words(result),
        "metrics": sections.metrics(result),
        "confusion": confusion_table(np.asarray(result["confusion"]), names),
        "confusions": frequent_confusions(result),
        "screening": screening,
        "at_prior": at_prior,
        "risk": sections.selective(result),
        "calibration": sections.calibration(result),
        "sets": sections.sets(result),
        "result": result,
        "errors": errors,
        "error_rows": [
            (names[predictions.labels[n]], names[p[n].argmax()], float(p[n].max()), files[n])
            for n in wrong
        ],
        "all_errors": int((p.argmax(axis=1) != predictions.labels).sum()),
        "examples": examples,
        "graph": _graph(classifier),
    }


def _warnings(classifier: Classifier, result: Mapping[str, Any], audit: Audit | None) -> list[str]:
    found = [*filter(None, [engine_note(classifier)]), *warnings(result)]
    if audit is not None and (errors := audit.count("error")):
        found.append(f"The data check found {counted(errors, 'error')}: see Data below.")
    return found


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
    found = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        best = members[np.argmax(confidence[members])]
        if confidence[best] >= 0:
            found.append(best)
    return np.asarray(found[:_MOST], np.intp)


def _cards(
    classifier: Classifier,
    predictions: LabelledPredictions,
    probabilities: NDArray[np.floating],
    chosen: NDArray[np.intp],
    files: Sequence[str],
) -> list[dict[str, Any]]:
    """The chosen images as the model saw them, and with the evidence drawn in."""
    numbers = [int(number) for number in chosen]
    if not numbers:
        return []
    names, predicted = predictions.class_names, probabilities.argmax(axis=1)
    made = []
    with progress_bar("Drawing evidence", len(numbers)) as bar:
        pictures = [predictions.images[number] for number in numbers]
        maps = evidence_maps(classifier, pictures, [int(predicted[number]) for number in numbers])
        for number, (image, heat) in zip(numbers, maps, strict=True):
            row, label = probabilities[number], int(predictions.labels[number])
            name, truth = names[predicted[number]], names[label]
            title, words = truth, f"{100 * row.max():.0f} % for {name}"
            if name != truth:
                title = f"{truth}, mistaken for {name}"
                words += f", {100 * row[label]:.0f} % for {truth}"
            if predictions.bags:
                best = predictions.bags[number].decided_by[0]
                part = f" ({best.image.part})" if best.image and best.image.part else ""
                words += f"; the picture that decided{part}, {100 * best.share:.0f} % of the answer"
            outlined = f"The same image; the patches with most evidence for {name} are outlined"
            both = (
                (image, f"An image of the class {truth}", "what it saw"),
                (heat, outlined, f"evidence for {name}"),
            )
            made.append({"title": title, "words": words, "pictures": both, "file": files[number]})
            bar.advance()
    return made


def evidence_maps(
    classifier: Classifier, images: Sequence[ImageRef], labels: Sequence[int]
) -> Iterator[tuple[str, str]]:
    """Each image as the model saw it and with the evidence for its label, for the page."""
    rows, columns = classifier.backbone.patch_grid
    for found in evidence(classifier, images, labels=labels, top=min(_OUTLINED, rows * columns)):
        both = found.image.convert("RGB"), heat_map(found).convert("RGB")
        image, heat = (one.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC) for one in both)
        yield data_uri(image), data_uri(heat)
