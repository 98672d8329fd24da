"""Tables of predictions: one format for every command, page and export that writes them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal, TextIO

from ogkd.cells import escape_formula, escape_path
from ogkd.data.task import Answer, Task
from ogkd.model.decide import Decision

Format = Literal["csv", "jsonl"]
_YES_OR_NO = {None: "", True: "yes", False: "no"}


def row_writer(
    file: TextIO, task: Task, format: Format, *, joined: bool, each_image: bool = False
) -> Callable[[Decision], None]:
    """Write the header of a table, if it is one; returns what writes a decision.

    `joined` adds the columns of cases of several images, `each_image` a row for each of these.
    """
    table = csv.writer(file, lineterminator="\n")
    if format == "csv":
        table.writerow([escape_formula(column) for column in _columns(task, joined)])

    def write(decision: Decision) -> None:
        rows = [(decision_json(task, decision, joined=joined), decision.answer)]
        if each_image:
            rows += _image_rows(task, decision, rows[0][0])
        for entry, answer in rows:
            if format == "csv":
                table.writerow(_cells(task, entry, answer, joined))
            else:  # ASCII with escapes: valid JSON even if a file name is not valid text
                file.write(json.dumps(entry) + "\n")

    return write


def _columns(task: Task, joined: bool) -> list[str]:
    names, first = [name for name, _ in task.columns(None)], task.first_columns
    cases = ["case", "images", "weight", "decided_by"] if joined else []
    return ["path", *names[:first], "unfamiliar", "error", *cases, *names[first:]]


def _cells(task: Task, entry: dict[str, Any], answer: Answer | None, joined: bool) -> list[str]:
    """Cells of a row; no cell can act as a spreadsheet formula."""
    columns = task.columns(answer)
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
        "probabilities": None if answer is None else _shares(task, answer),
    }
    if answer is not None and answer.verdicts is not None:
        entry["answers"] = dict(zip(task.names, answer.verdicts, strict=True))
    if joined:
        deciding = [
            {"path": str(seen.image), "weight": round(seen.weight, 6)} for seen in decision.deciding
        ]
        entry |= {"case": decision.case.name, "images": decision.read, "weight": None}
        entry |= {"decided_by": deciding}
    return entry


def _shares(task: Task, answer: Answer) -> dict[str, float]:
    return {
        name: round(value, 6) for name, value in zip(task.names, answer.probabilities, strict=True)
    }


def _image_rows(
    task: Task, decision: Decision, whole: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], Answer | None]]:
    """A row for each image of a case, with what the model says of it alone."""
    for seen in sorted(decision.images, key=lambda seen: seen.error is not None):
        entry = dict.fromkeys(whole) | {"path": str(seen.image), "case": decision.case.name}
        entry |= {"decided_by": [], "error": seen.error}
        if seen.logits is None:
            yield entry, None
            continue
        [answer] = task.answers(task.probabilities(seen.logits[None]), None)
        yield (
            entry
            | {
                "prediction": answer.prediction,
                "probability": answer.probability and round(answer.probability, 6),
                "probabilities": _shares(task, answer),
                "weight": seen.weight,
                "unfamiliar": seen.out_of_domain or seen.unfamiliar,
            },
            answer,
        )
