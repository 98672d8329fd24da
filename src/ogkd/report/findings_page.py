"""The report about a model of several findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.audit import Audit
from ogkd.datasets.manifest import Manifest
from ogkd.evaluation import LabelledPredictions, evaluate_predictions
from ogkd.evaluation.show import answer_rows, finding_rows
from ogkd.model.answers import Answers
from ogkd.model.card import CAUTION
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Policy
from ogkd.model.engine_note import engine_note
from ogkd.model.explain import evidence
from ogkd.model.picture import heat_map
from ogkd.report.html import render
from ogkd.report.model_page import MARKS, OUTLINED, SIDE, about, made_now, small

_MOST = 12  # mistakes shown: keeps the page small


def findings_page(
    classifier: Classifier,
    manifest: Manifest,
    predictions: LabelledPredictions,
    *,
    command: str = "",
    show_names: bool = False,
    audit: Audit | None = None,
    images: bool = True,
    result: Mapping[str, Any] | None = None,
) -> str:
    """The page's text; the arguments are those of `write_report`."""
    card = classifier.card
    if result is None:
        result = evaluate_predictions(predictions, classifier.calibration, card=card)
    p = predictions.probabilities(classifier.calibration)
    contents = {"findings": "Findings", "answers": "Answers", "mistakes": "Mistakes"}
    contents |= {"data": "Data", "making": "Settings", "caution": "Caution"}
    mistakes = _mistakes(classifier, predictions, p, show_names=show_names) if images else []
    limits = [
        [name, *(f"{100 * row[key]:.1f} %" for key in ("no_below", "yes_above"))]
        for name, row in result["per_finding"].items()
    ]
    return render(
        "findings.html",
        title="Model report",
        subtitle=f"{card.method} on {card.backbone.short_name}: {', '.join(card.class_names)}",
        caution=CAUTION,
        made=made_now(),
        contents=[(key, name) for key, name in contents.items() if key != "mistakes" or mistakes],
        alarms=result["warnings"],
        verdict=result["verdict"],
        outcome_mark=MARKS[result["verdict"]["better_than_guessing"]],
        warnings=[*filter(None, [engine_note(classifier)])],
        found=finding_rows(result),
        answered=answer_rows(result),
        limits=(["finding", "no below", "yes above"], limits),
        promise=Answers(classifier, Policy()).notes[0].removeprefix("Note: "),
        interval_words=_interval_words(result),
        mistakes=mistakes,
        side=SIDE,
        **about(classifier, manifest, predictions, audit, command, show_names=show_names),
    )


def _interval_words(result: Mapping[str, Any]) -> str:
    how = result["bootstrap"]
    if not how["resamples"]:
        return "In percent. No intervals were computed."
    by = "patients (groups)" if how["by"] == "group" else "images"
    text = f"In percent; in brackets 95 % intervals by {how['resamples']} resamples of {by}."
    if how["by"] == "image":
        text += (
            " If several images come from one patient and the data does not say so, these "
            "intervals are too narrow."
        )
    return text


def worst(labels: NDArray[np.int64], p: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Images and findings: of each the most probable where absent, the least where present.

    Only those on the wrong side of one half are mistakes.
    """
    found = []
    for f in range(labels.shape[1]):
        for said, sign in ((0, 1), (1, -1)):
            mine = np.flatnonzero((labels[:, f] == said) & (sign * (p[:, f] - 0.5) > 0))
            if len(mine):
                found.append((int(mine[np.argmax(sign * p[mine, f])]), f))
    return found[:_MOST]


def _mistakes(
    classifier: Classifier,
    predictions: LabelledPredictions,
    p: NDArray[np.float32],
    *,
    show_names: bool,
) -> list[dict[str, Any]]:
    chosen = worst(predictions.labels, p)
    rows, columns = classifier.backbone.patch_grid
    drawn = evidence(
        classifier,
        [predictions.images[number] for number, _ in chosen],
        labels=[f for _, f in chosen],
        top=min(OUTLINED, rows * columns),
    )
    cards = []
    for (number, f), found in zip(chosen, drawn, strict=True):
        name, present = predictions.class_names[f], predictions.labels[number, f] == 1
        pictures = (
            (small(found.image), f"An image {'with' if present else 'without'} {name}", "image"),
            (small(heat_map(found)), f"Evidence for {name}", f"evidence for {name}"),
        )
        cards.append(
            {
                "title": f"{name}: {'missed' if present else 'not there'}",
                "words": f"{100 * p[number, f]:.0f} % for {name}",
                "pictures": pictures,
                "file": predictions.images[number].name if show_names else "",
            }
        )
    return cards
