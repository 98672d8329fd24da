"""What `ogkd predict` says of one image, and how it is written: CSV or JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from ogkd.model.decide import Decision

__all__ = ["FORMATS", "CsvWriter", "JsonlWriter", "harmless", "harmless_path"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell that starts so


class CsvWriter:
    """A header, then a line for each row. No cell can act as a spreadsheet formula."""

    def __init__(self, file: TextIO, class_names: Sequence[str]) -> None:
        self._table = csv.writer(file, lineterminator="\n")
        self._classes = len(class_names)
        fixed = ["path", "prediction", "probability", "abstain", "set", "unfamiliar", "error"]
        self._table.writerow([*fixed, *map(harmless, class_names)])

    def write(self, row: Decision) -> None:
        shares = [""] * self._classes
        if row.probabilities is not None:
            shares = [f"{value:.6f}" for value in row.probabilities]
        self._table.writerow(
            [
                harmless_path(row.image),
                harmless(row.prediction or ""),
                "" if row.probability is None else f"{row.probability:.6f}",
                _yes_or_no(row.abstain),
                harmless(_joined(row.set)),
                _yes_or_no(row.unfamiliar),
                harmless(row.error or ""),
                *shares,
            ]
        )


class JsonlWriter:
    """One JSON object a line; names are as they are, and null stands for what is not known."""

    def __init__(self, file: TextIO, class_names: Sequence[str]) -> None:
        self._file = file
        self._names = class_names

    def write(self, row: Decision) -> None:
        shares = None
        if row.probabilities is not None:
            pairs = zip(self._names, row.probabilities, strict=True)
            shares = {name: round(value, 6) for name, value in pairs}
        entry = {
            "path": str(row.image),
            "prediction": row.prediction,
            "probability": None if row.probability is None else round(row.probability, 6),
            "abstain": row.abstain,
            "set": None if row.set is None else list(row.set),
            "unfamiliar": row.unfamiliar,
            "error": row.error,
            "probabilities": shares,
        }
        # ASCII with escapes: valid JSON even where a file name is not valid text.
        self._file.write(json.dumps(entry) + "\n")


FORMATS: dict[str, type[CsvWriter] | type[JsonlWriter]] = {"csv": CsvWriter, "jsonl": JsonlWriter}


def _yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _joined(names: Sequence[str] | None) -> str:
    """The names of a set; one that holds no class is told from one that is not known."""
    return "" if names is None else "|".join(names) or "(none)"


def harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def harmless_path(path: object) -> str:
    """The same file, but never a formula."""
    text = str(path)
    return f"./{text}" if text.startswith(_FORMULA) else text
