"""Texts for classes: a bank is a JSON of class name -> list of texts; templates fill in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    """Read and check a JSON of class name -> list of texts."""
    try:
        bank = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}. Check the path.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON ({error}). Mend it and run again.") from error
    if not isinstance(bank, dict):
        raise ConfigError(f'{path} must be an object like {{"class name": ["text", ...]}}.')
    for name, texts in bank.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"{path}: the texts of '{name}' must be a list of strings.")
        if not [text for text in texts if text.strip()]:
            raise ConfigError(f"{path}: class '{name}' has no prompts. Write at least one.")
    return bank


def bank_for(
    class_names: Sequence[str], bank: Mapping[str, Sequence[str]] | None
) -> list[list[str]]:
    """Texts of each class, in label order; without a bank, templates."""
    if bank is None:
        return template_bank(class_names)
    folded = {name.replace("_", " ").casefold(): texts for name, texts in bank.items()}
    missing = [name for name in class_names if name.casefold() not in folded]
    if missing:
        raise ConfigError(
            f"The prompt bank has no prompts for: {', '.join(missing)}. It knows: "
            f"{', '.join(bank)}. Add the missing classes, or leave --prompts out to use templates."
        )
    return [[text for text in folded[name.casefold()] if text.strip()] for name in class_names]
