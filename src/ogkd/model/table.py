"""Tables of predictions: one format for every command, page and export that writes them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TextIO

from ogkd.cells import escape_formula, escape_path
from ogkd.data.tables import Row, Sheet, row_appender
from ogkd.data.task import Answer, Task
from ogkd.errors import DataError
from ogkd.files import read_bytes
from ogkd.model.decide import Decision, SeenImage

Format = Literal["csv", "jsonl"]
_YES_OR_NO = {None: "", True: "yes", False: "no"}
_MOST = 1 << 29  # bytes of a table that grows


def row_writer(
    file: TextIO | Sheet | list[Row],
    task: Task,
    format: Format,
    *,
    joined: bool,
    header: bool = True,
    model: str | None = None,
) -> Callable[[Decision], None]:
    """Write the header of a table, if it is one; returns what writes a decision.

    `joined` adds the columns of cases of several images. JSON lines name the digest of the `model`.
    """
    append = row_appender(file)
    if format == "csv" and header:
        append(_header(task, joined))
    source = {"model": model, "ogkd": version("ogkd")}

    def write(decision: Decision) -> None:
        entry = decision_json(task, decision, joined=joined)
        if isinstance(file, Sheet | list) or format == "csv":
            append(_cells(task, entry, decision.answer, joined))
        else:  # ASCII with escapes: valid JSON even if a file name is not valid text
            if joined:
                entry["weights"] = _weights(decision.images)
            file.write(json.dumps(entry | source) + "\n")

    return write


def read_predictions(
    path: Path, task: Task, format: Format, *, joined: bool, model: str
) -> tuple[str, set[str]]:
    """The text of a table that more rows are added to, and the paths in it.

    A table of another model is refused: JSON lines name theirs, a CSV has its columns.
    """
    if not path.exists():
        return "", set()
    text = read_bytes(path, most=_MOST).decode("utf-8", "surrogateescape")
    whole = text if text.endswith("\n") or not text else f"{text}\n"
    rows: list[Any]
    try:
        if format == "csv":
            head, *rows = (
                csv.reader(io.StringIO(text, newline="")) if text else [_header(task, joined)]
            )
            same_model, paths = head == _header(task, joined), {row[0] for row in rows if row}
        else:
            rows = [json.loads(line) for line in text.splitlines()]
            same_model = all(row["model"] == model for row in rows)
            paths = {row["path"] for row in rows}
    except (ValueError, TypeError, LookupError, RecursionError, csv.Error) as error:
        raise DataError(f"{path} is not a table of predictions ({error!r}).") from error
    if not same_model:
        raise DataError(f"{path} has the predictions of another model, not of {model}.")
    return whole, paths


def _header(task: Task, joined: bool) -> list[str]:
    return [escape_formula(column) for column in _columns(task, joined)]


def _columns(task: Task, joined: bool) -> list[str]:
    names, first = [name for name, _ in task.columns(None)], task.first_columns
    cases = ["case", "images", "decided_by"] if joined else []
    return ["path", *names[:first], "unfamiliar", "error", *cases, *names[first:]]


def _cells(task: Task, entry: dict[str, Any], answer: Answer | None, joined: bool) -> Row:
    """Cells of a row; no cell can act as a spreadsheet formula."""
    columns = task.columns(answer)
    first = dict(columns[: task.first_columns])
    if "abstain" in first:
        first["abstain"] = _YES_OR_NO[entry["abstain"]]
    row: list[object] = [escape_path(entry["path"]), *map(_cell, first.values())]
    row += [_YES_OR_NO[entry["unfamiliar"]], escape_formula(entry["error"] or "")]
    if joined:
        deciding = " | ".join(f"{d['path']} ({d['weight']:.3f})" for d in entry["decided_by"])
        row += [escape_formula(entry["case"]), _cell(entry["images"]), escape_formula(deciding)]
    return [*row, *(_cell(value) for _, value in columns[task.first_columns :])]


def _cell(value: object) -> object:
    """Numbers, and nothing, as they are."""
    if isinstance(value, float):
        return round(value, 6)
    return value if value is None or isinstance(value, int) else escape_formula(str(value))


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
        "probabilities": None
        if answer is None
        else {name: round(p, 6) for name, p in zip(task.names, answer.probabilities, strict=True)},
    }
    if answer is not None and answer.verdicts is not None:
        entry["answers"] = dict(zip(task.names, answer.verdicts, strict=True))
    if joined:
        entry |= {"case": decision.case.name, "images": decision.read}
        entry |= {"decided_by": _weights(decision.deciding)}
    return entry


def _weights(images: Sequence[SeenImage]) -> list[dict[str, Any]]:
    """The readable ones of some images of a case, each with its weight in the answer."""
    return [
        {"path": str(seen.image), "weight": round(seen.weight, 6)}
        for seen in images
        if seen.error is None
    ]
