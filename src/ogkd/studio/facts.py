"""`project.json`: classes, texts and settings of a project, with a schema version and migration."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ogkd.datasets.manifest import read_class_names
from ogkd.errors import ConfigError, DataError
from ogkd.files import is_text, read_json, write_json
from ogkd.images import SliceRule

SCHEMA = 1
MOST_CLASSES = 100
# From the schema of the key to the next one; applied one after the other.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


class ClassInfo(BaseModel):
    """A class; without texts, templates describe it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=200)
    texts: tuple[str, ...] = Field(default=(), max_length=1000)
    normal: bool = False  # it means "nothing found"


class Facts(BaseModel):
    """`project.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    folders: tuple[str, ...] = ()  # of images, as seen from the project's folder
    backbone: str = "auto"
    slice: str | None = None  # of volumes that name none
    patient: str | None = None  # regular expression; its first group is the patient
    classes: tuple[ClassInfo, ...] = ()

    @field_validator("patient")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"it is not a regular expression ({error})") from error
        return value

    @field_validator("slice")
    @classmethod
    def _rule(cls, value: str | None) -> str | None:
        try:
            return None if value is None else str(SliceRule.parse(value))
        except ConfigError as error:
            raise ValueError(str(error)) from error


def checked_classes(classes: Sequence[ClassInfo]) -> tuple[ClassInfo, ...]:
    if len(classes) > MOST_CLASSES:
        raise ConfigError(f"There can be at most {MOST_CLASSES} classes.")
    names = read_class_names([info.name for info in classes])
    return tuple(
        info.model_copy(update={"name": name, "texts": _checked_texts(info.texts)})
        for info, name in zip(classes, names, strict=True)
    )


def _checked_texts(texts: Sequence[str]) -> tuple[str, ...]:
    kept = tuple(dict.fromkeys(clean for text in texts if (clean := " ".join(text.split()))))
    if any(len(text) > 2000 or not is_text(text) for text in kept):
        raise ConfigError("A text of a class is too long or not valid text. Shorten it.")
    return kept


def read_facts(path: Path) -> Facts:
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}). Restore it from a backup.") from error
    schema = content.get("schema_version") if isinstance(content, dict) else None
    if not isinstance(schema, int):
        raise DataError(f"{path} is not the file of a studio project. Choose another folder.")
    if schema > SCHEMA:
        raise ConfigError(
            f"{path} was written by a newer ogkd (schema {schema}, this one reads up to {SCHEMA}). "
            "Upgrade with: pip install --upgrade ogkd."
        )
    old = schema
    while schema < SCHEMA:
        content = {**MIGRATIONS[schema](content), "schema_version": schema + 1}
        schema += 1
    try:
        facts = Facts.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])) or "(all)"
        raise DataError(f"{path} is damaged: '{field}' is wrong ({problem['msg']}).") from None
    if schema != old:
        write_json(path, facts.model_dump(mode="json"), ours=True)
    return facts
