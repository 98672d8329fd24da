"""Import prompts from other formats: JSON, CSV/TSV, text files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ogkd.errors import ConfigError, DataError
from ogkd.files import read_text
from ogkd.prompts.bank import fold

Pairs = Iterable[tuple[str, str]]  # class name and text


def import_bank(path: Path) -> dict[str, list[str]]:
    """Read texts by class from a file or folder; white space is normalised.

    Texts keep their order and their repetitions: a text that is there twice counts twice in a
    prototype.

    - JSON: class -> list of texts (as CuPL's).
    - CSV or TSV with the columns class and text, one text per row.
    - A folder of .txt files: the file name is the class, each line a text.
    """
    suffix = "folder" if path.is_dir() else path.suffix.lower()
    if suffix not in _READERS:
        raise DataError(
            f"{path} is not .json, .csv or .tsv, nor a folder of .txt files.",
            argument="source",
        )
    try:
        bank = _collect(_READERS[suffix](path))
    except (OSError, ValueError, RecursionError, csv.Error) as error:
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


def _collect(pairs: Pairs) -> dict[str, list[str]]:
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


def _from_folder(folder: Path) -> Pairs:
    for file in sorted(folder.glob("[!.]*.txt")):
        yield from ((file.stem, line) for line in _read(file).splitlines())


def _from_table(path: Path) -> Pairs:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = _read(path).splitlines(keepends=True)
    for row in csv.DictReader(lines, delimiter=delimiter, strict=True):
        if None in row.values() or not {"class", "text"} <= row.keys():
            raise ValueError("it needs the columns class and text in every row")
        yield row["class"], row["text"]


def _from_object(content: Any) -> Pairs:
    if not isinstance(content, dict):
        raise ValueError("it is not an object of class name -> texts")
    for name, value in content.items():
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in [name, *texts]):
            raise ValueError(f"the texts of {name} are not a list of strings")
        yield from ((name, text) for text in texts)


_READERS: dict[str, Callable[[Path], Pairs]] = {
    ".json": lambda path: _from_object(json.loads(_read(path))),
    ".csv": _from_table,
    ".tsv": _from_table,
    "folder": _from_folder,
}
