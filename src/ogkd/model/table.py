"""Tables of predictions: one format for every command, page and export that writes them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from typing import Any, Literal, TextIO

from ogkd.cells import escape_formula, escape_path
from ogkd.data.task import Task
from ogkd.model.decide import Decision

Format = Literal["csv", "jsonl"]
_YES_OR_NO = {None: "", True: "yes", False: "no"}
_EVERY_TASK = ("unfamiliar", "error")


def row_writer(
    file: TextIO, task: Task, format: Format, *, joined: bool, each_image: bool = False
) -> Callable[[Decision], None]:
    """Write the header of a table, if it is one; returns what writes a decision.

    `joined` adds the columns of cases of several images, `each_image` a row for each of these.
    """
    if format == "jsonl":

        def write_json(decision: Decision) -> None:
            # ASCII with escapes: valid JSON even if a file name is not valid text.
            for entry in _entries(task, decision, joined=joined, each_image=each_image):
                entry.pop("answer", None)
                file.write(json.dumps(entry) + "\n")

        return write_json
    table = csv.writer(file, lineterminator="\n")
    table.writerow([escape_formula(column) for column in _columns(task, joined)])

    def write_row(decision: Decision) -> None:
        for entry in _entries(task, decision, joined=joined, each_image=each_image):
            table.writerow(_cells(task, entry, joined))

    return write_row


def _columns(task: Task, joined: bool) -> list[str]:
    names, first = [name for name, _ in task.columns(None)], task.first_columns
    cases = ["case", "images", "weight", "decided_by"] if joined else []
    return ["path", *names[:first], *_EVERY_TASK, *cases, *names[first:]]


def _cells(task: Task, entry: dict[str, Any], joined: bool) -> list[str]:
    """Cells of a row; no cell can act as a spreadsheet formula."""
    columns = task.columns(entry.get("answer"))
    first = dict(columns[: task.first_columns])
    if "abstain" in first:
        first["abstain"] = _YES_OR_NO[entry["abstain"]]
    row = [escape_path(entry["path"]), *map(_cell, first.values())]
    row += [_YES_OR_NO[entry["unfamiliar"]], escape_formula(entry["error"] or "")]
    if joined:
        deciding = " | ".join(f"{d['path']} ({d['weight']:.3f})" for d in entry["decided_by"])
        row += [escape_formula(entry["case"]), _cell(entry["images"]), _cell(entry["weight"])]
        row.append(escape_formula(deciding))
    return [*row, *(_cell(value) for _, value in columns[task.first_columns :])]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else escape_formula(str(value))


def decision_json(task: Task, decision: Decision, *, joined: bool) -> dict[str, Any]:
    """A decision as a JSON object; names are unchanged, and null means unknown."""
    answer = decision.answer
    entry: dict[str, Any] = {
        "path": decision.case.name,
        "prediction": decision.prediction,
        "probability": None if decision.probability is None else round(decision.probability, 6),
        "abstain": decision.abstain,
        "set": None if decision.set is None else list(decision.set),
        "unfamiliar": decision.unfamiliar,
        "error": decision.error,
        "probabilities": None,
    }
    if answer is not None:
        shares = [round(value, 6) for value in answer.probabilities]
        entry["probabilities"] = dict(zip(task.names, shares, strict=True))
        if answer.verdicts is not None:
            entry["answers"] = dict(zip(task.names, answer.verdicts, strict=True))
    if joined:
        deciding = [
            {"path": str(image.image), "weight": round(image.weight, 6)}
            for image in decision.deciding
        ]
        entry |= {"case": decision.case.name, "images": decision.read, "weight": None}
        entry |= {"decided_by": deciding}
    return entry


def _entries(
    task: Task, decision: Decision, *, joined: bool, each_image: bool
) -> list[dict[str, Any]]:
    whole = decision_json(task, decision, joined=joined)
    entries = [whole]
    if each_image and decision.image_logits is not None and decision.weights is not None:
        unread = {image for image, _ in decision.errors}
        readable = [image for image in decision.case.images if image not in unread]
        answers = task.answers(task.probabilities(decision.image_logits), None)
        unfamiliar = decision.image_unfamiliar
        for image, answer, weight, unlike in zip(
            readable, answers, decision.weights, unfamiliar, strict=True
        ):
            shares = [round(value, 6) for value in answer.probabilities]
            entries.append(
                dict.fromkeys(whole)
                | {
                    "path": str(image),
                    "prediction": answer.prediction,
                    "probability": answer.probability and round(answer.probability, 6),
                    "probabilities": dict(zip(task.names, shares, strict=True)),
                    "case": decision.case.name,
                    "weight": float(weight),
                    "unfamiliar": unlike,
                    "decided_by": [],
                    "answer": answer,
                }
            )
        for image, reason in decision.errors:
            unread_row = {"path": str(image), "error": reason, "case": decision.case.name}
            entries.append(dict.fromkeys(whole) | unread_row | {"decided_by": []})
    whole["answer"] = decision.answer
    return entries
