"""Import prompts from other formats: JSON, CSV/TSV, Python dictionaries, text files.

Files are read, never run: a Python file is parsed, and only literal dictionaries are used.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ogkd.errors import ConfigError, DataError
from ogkd.files import read_text
from ogkd.prompts.bank import fold
from ogkd.prompts.released import python_literals

_CLASS = ("class", "classname", "class_name", "class name", "label", "name")
_TEXT = ("text", "prompt", "prompts", "description", "descriptions", "caption", "sentence", "texts")


def import_bank(path: Path) -> dict[str, list[str]]:
    """Read texts by class from a file or folder; white space is normalised.

    Texts keep their order and their repetitions: a text that is there twice counts twice in a
    prototype.

    - JSON: class -> list of texts (as CuPL's); class -> {question: texts}; one such object
      per dataset under its name; or a list of {"class": ..., "text": ...} records.
    - CSV or TSV with a class and a text column, one text per row.
    - Python source with a dictionary of class -> list of texts (as BiomedCoOp's).
    - A folder of .txt files: the file name is the class, each line a text.
    """
    if path.is_dir():
        files = sorted(file for file in path.glob("*.txt") if not file.name.startswith("."))
        pairs = [(file.stem, line) for file in files for line in _read(file).splitlines()]
    else:
        readers: dict[str, Callable[[Path, str], list[tuple[str, str]]]] = {
            ".json": _from_json,
            ".csv": _from_table,
            ".tsv": _from_table,
            ".py": _from_python,
        }
        reader = readers.get(path.suffix.lower())
        if reader is None:
            raise DataError(
                f"{path}: prompts are imported from {', '.join(readers)} files, or from a folder "
                "of .txt files named by class. Convert it to one of these."
            )
        pairs = reader(path, _read(path))
    bank = _collect(pairs)
    if not bank:
        raise DataError(
            f"{path} has no texts by class. Give a JSON or Python file of class name -> texts, a "
            "table with the columns class and text, or a folder with one .txt file per class."
        )
    return bank


def keep_classes(bank: Mapping[str, list[str]], names: Sequence[str]) -> dict[str, list[str]]:
    """Keep only the named classes, in this order and spelling."""
    folded = {fold(name): texts for name, texts in bank.items()}
    if missing := [name for name in names if fold(name) not in folded]:
        raise ConfigError(
            f"There are no texts for: {', '.join(missing)}, only for: {', '.join(bank)}."
        )
    return {name: folded[fold(name)] for name in names}


def _collect(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
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
    try:
        return read_text(path, encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text. Save it as UTF-8.") from error


def _from_json(path: Path, text: str) -> list[tuple[str, str]]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}). Fix the file.") from error
    pairs = _from_records(content) if isinstance(content, list) else _from_object(content)
    if pairs is None:
        raise DataError(
            f'{path} does not have the form {{"class": ["text", ...]}} or '
            '[{"class": "...", "text": "..."}, ...].'
        )
    return pairs


def _from_object(content: Any) -> list[tuple[str, str]] | None:
    if not isinstance(content, dict):
        return None
    pairs: list[tuple[str, str]] = []
    for name, value in content.items():
        if isinstance(value, str):
            pairs.append((name, value))
        elif isinstance(value, list) and all(isinstance(text, str) for text in value):
            pairs += [(name, text) for text in value]
        elif isinstance(value, dict):
            if (inner := _from_object(value)) is None:
                return None
            # Questions end in "?" or have a slot; class names do not.
            questions = any(key.rstrip().endswith(("?", ":")) or "{" in key for key in value)
            pairs += [(name if questions else key, text) for key, text in inner]
        else:
            return None
    return pairs


def _from_records(records: list[Any]) -> list[tuple[str, str]] | None:
    pairs: list[tuple[str, str]] = []
    for record in records:
        if not isinstance(record, dict):
            return None
        cells = {str(key).strip().casefold(): value for key, value in record.items()}
        name = next((cells[key] for key in _CLASS if key in cells), None)
        texts = next((cells[key] for key in _TEXT if key in cells), None)
        of_record = _from_object({name: texts})
        if not isinstance(name, str) or isinstance(texts, dict) or of_record is None:
            return None
        pairs += of_record
    return pairs


def _from_table(path: Path, text: str) -> list[tuple[str, str]]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.DictReader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise DataError(f"{path} is not a table ({error}). Save it as CSV.") from error
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():  # more or fewer cells than the header
            raise DataError(
                f"{path}, row {line}: not as many cells as the header has. Put quotes around a "
                "text that contains the separator."
            )
    pairs = _from_records(rows)
    header = [name.strip().casefold() for name in reader.fieldnames or ()]
    if pairs is None or not {*_CLASS} & {*header} or not {*_TEXT} & {*header}:
        raise DataError(
            f"{path} needs the columns class and text, but has: {', '.join(header) or 'none'}."
        )
    return pairs


def _from_python(path: Path, content: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for _, literal in python_literals(path, content):
        if isinstance(literal, dict) and all(isinstance(key, str) for key in literal):
            lists = {key: value for key, value in literal.items() if isinstance(value, list)}
            pairs += _from_object(lists) or []
    return pairs
