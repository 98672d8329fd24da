"""Import prompts from other formats: JSON, CSV/TSV, Python dictionaries, text files.

Files are read, never run: a Python file is parsed, and only literal dictionaries are used.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ogkd.errors import ConfigError, DataError
from ogkd.files import read_text
from ogkd.prompts.bank import fold
from ogkd.prompts.released import python_literals


def import_bank(path: Path) -> dict[str, list[str]]:
    """Read texts by class from a file or folder; white space is normalised.

    Texts keep their order and their repetitions: a text that is there twice counts twice in a
    prototype.

    - JSON: class -> list of texts (as CuPL's); class -> {question: texts}; one such object
      per dataset under its name.
    - CSV or TSV with the columns class and text, one text per row.
    - Python source with a dictionary of class -> list of texts (as BiomedCoOp's).
    - A folder of .txt files: the file name is the class, each line a text.
    """
    try:
        bank = _collect(_pairs(path))
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.", argument="source") from error
    except (ValueError, RecursionError, csv.Error) as error:
        raise DataError(f"Cannot read {path}: {error}.", argument="source") from error
    if not bank:
        raise DataError(f"{path} has no texts by class.", argument="source")
    return bank


def keep_classes(bank: Mapping[str, list[str]], names: Sequence[str]) -> dict[str, list[str]]:
    """Keep only the named classes, in this order and spelling."""
    folded = {fold(name): texts for name, texts in bank.items()}
    if missing := [name for name in names if fold(name) not in folded]:
        raise ConfigError(
            f"There are no texts for {', '.join(missing)}, only for {', '.join(bank)}.",
            argument="classes",
        )
    return {name: folded[fold(name)] for name in names}


def _pairs(path: Path) -> Iterable[tuple[str, str]]:
    """Class names and texts; a ValueError if the file has another form."""
    if path.is_dir():
        files = sorted(file for file in path.glob("*.txt") if not file.name.startswith("."))
        return [(file.stem, line) for file in files for line in _read(file).splitlines()]
    suffix = path.suffix.lower()
    if suffix == ".json":
        return _from_object(json.loads(_read(path)))
    if suffix in (".csv", ".tsv"):
        delimiter = "\t" if suffix == ".tsv" else ","
        lines = _read(path).splitlines(keepends=True)
        rows = list(csv.DictReader(lines, delimiter=delimiter, strict=True))
        if any(None in row or None in row.values() for row in rows):
            raise ValueError("a row does not have as many cells as the header")
        if not rows or not {"class", "text"} <= rows[0].keys():
            raise ValueError("it needs the columns class and text")
        return [(row["class"], row["text"]) for row in rows]
    if suffix == ".py":
        tables = [value for _, value in python_literals(path, _read(path))]
        tables = [table for table in tables if isinstance(table, dict)]
        lists = [(name, texts) for table in tables for name, texts in table.items()]
        return _from_object({name: texts for name, texts in lists if isinstance(texts, list)})
    raise ValueError("it is not .json, .csv, .tsv or .py, nor a folder of .txt files")


def _collect(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    bank: dict[str, list[str]] = {}
    spelling: dict[str, str] = {}
    for name, text in pairs:
        clean_name = " ".join(name.replace("_", " ").split())
        clean = " ".join(text.split())
        if clean_name and clean:
            key = spelling.setdefault(fold(clean_name), clean_name)
            bank.setdefault(key, []).append(clean)
    return bank


def _read(path: Path) -> str:
    return read_text(path, encoding="utf-8-sig")


def _from_object(content: Any) -> list[tuple[str, str]]:
    if not isinstance(content, dict):
        raise ValueError("it is not an object of class name -> texts")
    pairs: list[tuple[str, str]] = []
    for name, value in content.items():
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, dict):
            # Questions end in "?" or have a slot; class names do not.
            questions = any(key.rstrip().endswith(("?", ":")) or "{" in key for key in texts)
            pairs += [(name if questions else key, text) for key, text in _from_object(texts)]
        elif isinstance(texts, list) and all(isinstance(text, str) for text in [name, *texts]):
            pairs += [(name, text) for text in texts]
        else:
            raise ValueError(f"the texts of {name} are not a list of strings")
    return pairs
