"""The report about a model of several findings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.evaluation.show import answer_rows, finding_rows, limit_rows
from ogkd.model.answers import Answers
from ogkd.model.engine_note import engine_note
from ogkd.model.policy import Policy
from ogkd.report.sections import TOO_NARROW
from ogkd.report.subject import Subject, Words

_MOST = 12  # mistakes shown: keeps the page small


def findings_values(subject: Subject) -> dict[str, Any]:
    """What only the report about a model of findings has."""
    classifier, result = subject.classifier, subject.result
    contents = {"findings": "Findings", "answers": "Answers", "mistakes": "Mistakes"}
    contents |= {"data": "Data", "making": "Settings", "caution": "Caution"}
    chosen = worst(subject.predictions.labels, subject.p)
    mistakes = subject.cards(chosen, partial(_words, subject))
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


def _words(subject: Subject, number: int, f: int) -> Words:
    """What a card says about an image on which a finding is missed or wrongly seen."""
    name, present = subject.predictions.class_names[f], subject.predictions.labels[number, f] == 1
    title = f"{name}: {'missed' if present else 'not there'}"
    text = f"{100 * subject.p[number, f]:.0f} % for {name}"
    image = f"An image {'with' if present else 'without'} {name}"
    return Words(title, text, image, "image", f"Evidence for {name}")
