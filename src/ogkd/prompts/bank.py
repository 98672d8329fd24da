"""Texts for classes: a bank is a JSON of class name -> list of texts; templates fill in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ogkd.errors import ConfigError

__all__ = ["SINGLE", "TEMPLATES", "bank_for", "read_bank", "template_bank"]

SINGLE = "a photo of a {}."

# Wording varies so that their mean is about the class and not about one phrase.
TEMPLATES = (
    "a photo of a {}.",
    "a medical image showing {}.",
    "an image of {}.",
    "a scan with findings of {}.",
    "this picture shows {}.",
    "a clinical example of {}.",
    "the appearance is consistent with {}.",
    "a typical case of {}.",
    "features of {} are seen here.",
    "an imaging study demonstrating {}.",
    "a close view of {}.",
    "a patient with {}.",
)


def template_bank(class_names: Sequence[str]) -> list[list[str]]:
    """The templates filled with each class name."""
    return [[template.format(name) for template in TEMPLATES] for name in class_names]


def read_bank(path: Path) -> dict[str, list[str]]:
    """Read and check a JSON of class name -> list of texts; a bare name is a shipped bank's."""
    shipped = Path(__file__).parent / "banks" / f"{path}.json"
    if not path.exists() and path.name == str(path) and shipped.is_file():
        path = shipped
    try:
        bank = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}. Check the path.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}). Mend it and run again.") from error
    if not isinstance(bank, dict):
        raise ConfigError(f'{path} must be an object like {{"class name": ["text", ...]}}.')
    _check(bank, str(path))
    return bank


def bank_for(
    class_names: Sequence[str], bank: Mapping[str, Sequence[str]] | None
) -> list[list[str]]:
    """Texts of each class, in label order; without a bank, templates."""
    if bank is None:
        return template_bank(class_names)
    _check(bank, "The prompt bank")
    folded = {_fold(name): texts for name, texts in bank.items()}
    missing = [name for name in class_names if _fold(name) not in folded]
    if missing:
        raise ConfigError(
            f"The prompt bank has no prompts for: {', '.join(missing)}. It knows: "
            f"{', '.join(bank)}. Add the missing classes, or leave --prompts out to use templates."
        )
    return [[text for text in folded[_fold(name)] if text.strip()] for name in class_names]


def _fold(name: str) -> str:
    return name.replace("_", " ").strip().casefold()


def _check(bank: Mapping[str, Any], where: str) -> None:
    seen: dict[str, str] = {}
    for name, texts in bank.items():
        # A string is a sequence too, but of letters.
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"{where}: the texts of '{name}' must be a list of strings.")
        if not any(text.strip() for text in texts):
            raise ConfigError(f"{where}: class '{name}' has no prompts. Write at least one.")
        other = seen.setdefault(_fold(name), name)
        if other != name:
            raise ConfigError(f"{where}: '{other}' and '{name}' are one class. Keep one of them.")
