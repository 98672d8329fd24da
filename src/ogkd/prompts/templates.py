"""Templates by modality (`templates.toml`): a first bank for classes without texts."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ogkd.errors import ConfigError
from ogkd.prompts.bank import fold

_OPTIONAL = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class Modality:
    """An imaging modality: its names, and sentences with {class} and {organ}."""

    name: str
    title: str
    aliases: tuple[str, ...]
    templates: tuple[str, ...]


@cache
def modalities() -> dict[str, Modality]:
    with (Path(__file__).parent / "templates.toml").open("rb") as file:
        records = tomllib.load(file)
    return {
        name: Modality(name, record["title"], tuple(record["aliases"]), tuple(record["templates"]))
        for name, record in records.items()
    }


def find_modality(name: str) -> Modality:
    """The modality of that name or alias, in any letter case."""
    wanted = fold(name)
    known = {
        fold(alias): modality
        for modality in modalities().values()
        for alias in (modality.name, modality.title, *modality.aliases)
    }
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
    hint = f" Did you mean '{known[near[0]].name}'?" if near else ""
    raise ConfigError(
        f"There are no templates for the modality '{name}'.{hint} Known modalities: "
        f"{', '.join(modalities())}.",
        argument="modality",
    )


def modality_bank(
    class_names: Sequence[str], *, modality: str = "any", organ: str | None = None
) -> dict[str, list[str]]:
    templates = find_modality(modality).templates
    names = require_classes(class_names)
    return {name: [_fill(template, name, organ) for template in templates] for name in names}


def require_classes(class_names: Sequence[str]) -> list[str]:
    """Strip class names; refuse an empty list, blank names and duplicates."""
    names = [name.replace("_", " ").strip() for name in class_names]
    if not names or "" in names:
        raise ConfigError(
            "Give at least one class name that is not blank, such as 'benign tumor'.",
            argument="classes",
        )
    folded = [fold(name) for name in names]
    if twice := sorted({name for name in names if folded.count(fold(name)) > 1}):
        raise ConfigError(
            f"Class named twice: {', '.join(twice)}. Name each class once.", argument="classes"
        )
    if unprintable := [name for name in names if not name.isprintable()]:
        raise ConfigError(
            f"Class name with control characters: {unprintable[0]!r}. Remove them.",
            argument="classes",
        )
    return names


def _fill(template: str, name: str, organ: str | None) -> str:
    organ = (organ or "").strip()
    text = _OPTIONAL.sub(r"\1" if organ else "", template)
    # In one pass, so that braces in a name are not filled.
    return re.sub(r"{(class|organ)}", lambda slot: name if slot[1] == "class" else organ, text)
