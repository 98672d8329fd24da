"""Import prompts from a table, and keep those of some classes."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from ogkd.errors import ConfigError, DataError
from ogkd.files import read_text
from ogkd.prompts.bank import fold


def import_bank(path: Path) -> dict[str, list[str]]:
    """Read texts by class from CSV or TSV with the columns class and text; one text per row.

    White space is normalised. Texts keep their order and their repetitions: a text that is there
    twice counts twice in a prototype.
    """
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    bank: dict[str, list[str]] = {}
    spelling: dict[str, str] = {}
    try:
        lines = read_text(path, encoding="utf-8-sig").splitlines(keepends=True)
        for row in csv.DictReader(lines, delimiter=delimiter, strict=True):
            name, text = (" ".join(row[key].split()) for key in ("class", "text"))
            if name and text:
                bank.setdefault(spelling.setdefault(fold(name), name), []).append(text)
    except (OSError, ValueError, KeyError, AttributeError, csv.Error) as error:
        raise DataError(
            f"{path} is not a table with the columns class and text ({error}).", argument="source"
        ) from error
    if not bank:
        raise DataError(f"{path} has no texts by class.", argument="source")
    return bank


def keep_classes(bank: Mapping[str, list[str]], names: Sequence[str]) -> dict[str, list[str]]:
    """The texts of these classes, in their order and spelling."""
    folded = {fold(name): texts for name, texts in bank.items()}
    if missing := [name for name in names if fold(name) not in folded]:
        raise ConfigError(
            f"There are no texts for {', '.join(missing)}, only for {', '.join(bank)}.",
            argument="classes",
        )
    return {name: folded[fold(name)] for name in names}
