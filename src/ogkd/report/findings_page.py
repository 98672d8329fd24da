"""The report about a model of several findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.evaluation import LabelledPredictions
from ogkd.evaluation.show import answer_rows, finding_rows, limit_rows
from ogkd.model.answers import Answers
from ogkd.model.classifier import Classifier
from ogkd.model.engine_note import engine_note
from ogkd.model.policy import Policy
from ogkd.report.model_page import evidence_maps
from ogkd.report.sections import TOO_NARROW

_MOST = 12  # mistakes shown: keeps the page small


def findings_values(
    classifier: Classifier,
    predictions: LabelledPredictions,
    p: NDArray[np.float32],
    result: Mapping[str, Any],
    files: Sequence[str],
    *,
    images: bool,
) -> dict[str, Any]:
    """What only the report about a model of findings has."""
    contents = {"findings": "Findings", "answers": "Answers", "mistakes": "Mistakes"}
    contents |= {"data": "Data", "making": "Settings", "caution": "Caution"}
    mistakes = _mistakes(classifier, predictions, p, files) if images else []
    return {
        "contents": [
            (key, name) for key, name in contents.items() if key != "mistakes" or mistakes
        ],
        "warnings": [*filter(None, [engine_note(classifier)])],
        "found": finding_rows(result),
        "answered": answer_rows(result),
        "limits": limit_rows(result),
        "promise": Answers(classifier, Policy()).notes[0].removeprefix("Note: "),
        "interval_words": _interval_words(result),
        "mistakes": mistakes,
    }


def _interval_words(result: Mapping[str, Any]) -> str:
    how = result["bootstrap"]
    if not how["resamples"]:
        return "In percent. No intervals were computed."
    by = "patients (groups)" if how["by"] == "group" else "images"
    text = f"In percent, with 95 % intervals from {how['resamples']} resamples of {by}."
    return text + (TOO_NARROW if how["by"] == "image" else "")


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
    files: Sequence[str],
) -> list[dict[str, Any]]:
    chosen = worst(predictions.labels, p)
    images = [predictions.images[number] for number, _ in chosen]
    maps = evidence_maps(classifier, images, [f for _, f in chosen])
    cards = []
    for (number, f), (image, heat) in zip(chosen, maps, strict=True):
        name, present = predictions.class_names[f], predictions.labels[number, f] == 1
        pictures = (
            (image, f"An image {'with' if present else 'without'} {name}", "image"),
            (heat, f"Evidence for {name}", f"evidence for {name}"),
        )
        cards.append(
            {
                "title": f"{name}: {'missed' if present else 'not there'}",
                "words": f"{100 * p[number, f]:.0f} % for {name}",
                "pictures": pictures,
                "file": files[number],
            }
        )
    return cards
