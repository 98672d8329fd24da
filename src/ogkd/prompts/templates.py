"""Templates by modality (`templates.toml`): a first bank for classes without texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ogkd.errors import ConfigError, did_you_mean
from ogkd.files import read_toml
from ogkd.prompts.bank import fold

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
