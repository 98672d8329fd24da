"""Texts for classes.

A bank is a JSON object of class name -> list of texts; a class without texts gets templates. Those
of a modality (`templates.toml`) are a first bank to edit.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ogkd.errors import ConfigError, did_you_mean
from ogkd.files import is_text, read_json, read_text, read_toml
from ogkd.prompts.released import RELEASED, require_released

OURS = "ours"  # the shipped bank of a dataset
SINGLE = "a photo of a {}."

_PLAIN = read_toml(Path(__file__).with_name("plain.toml"))
TEMPLATES: tuple[str, ...] = tuple(_PLAIN["present"])


def template_bank(class_names: Sequence[str]) -> list[list[str]]:
    return [[template.format(name) for template in TEMPLATES] for name in class_names]


def shipped_banks() -> dict[str, Path]:
    folder = Path(__file__).parent / "banks"
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def bank_file(prompts: str | Path, dataset: str | None) -> Path:
    """The file of a bank: one by name, the shipped one of a dataset ("ours"), or a folder's.

    A folder of banks has one for each dataset, DATASET.json.
    """
    path = Path(prompts)
    if str(prompts) == OURS:
        banks = shipped_banks()
    elif path.is_dir():
        banks = {file.stem: file for file in path.glob("*.json")}
    else:
        return path
    if dataset not in banks:
        raise ConfigError(
            f"{prompts} has no prompts for {dataset or 'these images'}, only for "
            f"{', '.join(banks) or 'nothing'}.",
            argument="prompts",
        )
    return banks[dataset]


def bank_name(prompts: str | Path) -> str:
    """What a bank is called: "released", "ours", a shipped bank's name, or a file's or folder's."""
    return Path(prompts).resolve().name if Path(prompts).exists() else str(prompts)


def bank_digest(bank: Mapping[str, Sequence[str]] | None) -> str:
    """The SHA-256 of a bank's texts, whatever the order of its classes."""
    texts = json.dumps(bank, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(texts.encode()).hexdigest()


def read_bank(path: str | Path) -> dict[str, list[str]]:
    """Read and check a bank; a bare name means one of the shipped banks, or "released".

    A table (CSV or TSV with the columns class and text) has one text per row; white space is
    normalised. Texts keep their order and repetitions: a text that is there twice counts twice in a
    prototype.
    """
    path = Path(path)
    if not path.exists() and path.name == str(path):
        path = shipped_banks().get(path.name.lower(), path)
        path = require_released() if str(path) == RELEASED else path
    is_table = path.suffix.lower() in (".csv", ".tsv")
    try:
        bank = _read_table(path) if is_table else read_json(path, hook=_unique)
    except OSError as error:
        raise ConfigError(
            f"Cannot read {path}: {error.strerror}. Give a JSON file, '{RELEASED}', or a shipped "
            f"bank's name: {', '.join(shipped_banks())}.",
            argument="prompts",
        ) from error
    except (ValueError, KeyError, AttributeError, csv.Error) as error:
        expected = "a table with the columns class and text" if is_table else "valid JSON"
        raise ConfigError(f"{path} is not {expected} ({error}).", argument="prompts") from error
    if not isinstance(bank, dict) or not bank:
        raise ConfigError(
            f'{path} must be an object like {{"class name": ["text", ...]}}.', argument="prompts"
        )
    _check(bank, str(path))
    return bank


def _read_table(path: Path) -> dict[str, list[str]]:
    bank: dict[str, list[str]] = {}
    spelling: dict[str, str] = {}
    lines = read_text(path, encoding="utf-8-sig").splitlines(keepends=True)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    for row in csv.DictReader(lines, delimiter=delimiter, strict=True):
        name, text = (" ".join(row[key].split()) for key in ("class", "text"))
        if name and text:
            bank.setdefault(spelling.setdefault(fold(name), name), []).append(text)
    return bank


def bank_for(
    class_names: Sequence[str], bank: Mapping[str, Sequence[str]] | None
) -> list[list[str]]:
    """Texts of each class, in label order; templates for a class that the bank does not have.

    A bank that has none of the classes is refused as a mistake. See `fallback_note`.
    """
    if bank is None:
        return template_bank(class_names)
    _check(bank, "The prompt bank")
    missing = _missing(class_names, bank)
    if missing and len(missing) == len(class_names):
        raise ConfigError(
            f"The prompt bank has no prompts for {', '.join(missing)}, only for {', '.join(bank)}.",
            argument="prompts",
        )
    folded = {fold(name): texts for name, texts in bank.items()}
    texts = [folded.get(fold(name)) or template_bank([name])[0] for name in class_names]
    return [[text for text in rows if text.strip()] for rows in texts]


def absent_bank(
    findings: Sequence[str], bank: Mapping[str, Sequence[str]] | None
) -> list[list[str]]:
    """Texts that say that a finding is absent: those of "no NAME" in the bank, or templates."""
    folded = {fold(name): texts for name, texts in (bank or {}).items()}
    return [
        [text for text in folded.get(fold(f"no {name}"), ()) if text.strip()]
        or [template.format(name) for template in _PLAIN["absent"]]
        for name in findings
    ]


def fallback_note(
    class_names: Sequence[str], bank: Mapping[str, Sequence[str]] | None
) -> str | None:
    """A note for the user that some classes get templates; None if all have prompts."""
    missing = _missing(class_names, bank or {})
    if not missing:
        return None
    if bank is not None:
        near = did_you_mean(missing[0], list(bank))
        return f"The prompt bank has no prompts for {', '.join(missing)}: they use templates.{near}"
    note = f"No prompts were given: class texts are made from {len(TEMPLATES)} templates."
    for name, path in shipped_banks().items():
        if not _missing(class_names, read_json(path)):
            return f"{note} There are prompts for these classes: add --prompts {name}."
    return f"{note} Texts that describe what is seen may work better (`ogkd prompts new`)."


def fold(name: str) -> str:
    """Remove from a class name what may differ between two spellings of it."""
    return name.replace("_", " ").strip().casefold()


def _missing(class_names: Sequence[str], bank: Mapping[str, Any]) -> list[str]:
    known = {fold(name) for name in bank}
    return [name for name in class_names if fold(name) not in known]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(table := dict(pairs)) < len(pairs):
        raise ValueError("a class appears twice")
    return table


def _check(bank: Mapping[str, Any], source: str) -> None:
    spelling: dict[str, str] = {}
    for name, texts in bank.items():
        problem = ""
        # A string is a sequence too, of letters.
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            problem = "its texts are not a list of strings"
        elif not all(map(is_text, (name, *texts))):
            problem = "it has half a character (a lone surrogate)"
        elif not any(text.strip() for text in texts):
            problem = "it has no prompts"
        elif (other := spelling.setdefault(fold(name), name)) != name:
            problem = f"it is the same class as '{other}'"
        if problem:
            raise ConfigError(f"{source}, class {name!a}: {problem}.", argument="prompts")


_OPTIONAL = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class Modality:
    """An imaging modality: its names, and sentences with {class} and {organ}."""

    name: str
    title: str
    aliases: Sequence[str]
    templates: Sequence[str]


@cache
def modalities() -> dict[str, Modality]:
    records = read_toml(Path(__file__).with_name("templates.toml"))
    return {name: Modality(name, **record) for name, record in records.items()}


def find_modality(name: str) -> Modality:
    """The modality of that name or alias, in any letter case."""
    for modality in modalities().values():
        if fold(name) in map(fold, (modality.name, modality.title, *modality.aliases)):
            return modality
    raise ConfigError(
        f"There are no templates for '{name}'.{did_you_mean(name, modalities())} Known modalities: "
        f"{', '.join(modalities())}.",
        argument="modality",
    )


def modality_bank(
    class_names: Sequence[str], *, modality: str = "any", organ: str | None = None
) -> dict[str, list[str]]:
    organ = (organ or "").strip()
    bank: dict[str, list[str]] = {}
    for name in require_classes(class_names):
        # In one pass, so that braces in a name are not filled.
        slots = {"{class}": name, "{organ}": organ}
        bank[name] = [
            re.sub(
                r"{class}|{organ}",
                lambda slot, slots=slots: slots[slot[0]],  # type: ignore[misc]
                _OPTIONAL.sub(r"\1" if organ else "", template),
            )
            for template in find_modality(modality).templates
        ]
    return bank


def require_classes(class_names: Sequence[str]) -> list[str]:
    """Strip class names; refuse an empty list, blank, unprintable and equal names."""
    names = [name.replace("_", " ").strip() for name in class_names]
    folded = {fold(name) for name in names}
    if not names or not all(name and name.isprintable() for name in names):
        raise ConfigError("Class names must be printable and not blank.", argument="classes")
    if len(folded) < len(names):
        raise ConfigError(f"A class is named twice in {', '.join(names)}.", argument="classes")
    return names
