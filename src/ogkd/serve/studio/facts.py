"""The files of a project: `project.json` (classes, texts, settings), `labels.jsonl` (clicks)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ogkd.data.names import read_class_names
from ogkd.errors import ConfigError, DataError
from ogkd.files import is_text, parse_json, read_bytes, read_json, storage_errors
from ogkd.images import SliceRule

SCHEMA = 1
MOST_CLASSES = 100
State = Literal["label", "unsure", "skip", "unusable", "clear"]
_MAX_LOG = 1 << 30  # bytes


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
    if schema != SCHEMA:
        raise ConfigError(
            f"{path} was written by another version of ogkd (schema {schema}, this one reads "
            f"{SCHEMA})."
        )
    try:
        return Facts.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])) or "(all)"
        raise DataError(f"{path} is damaged: '{field}' is wrong ({problem['msg']}).") from None


@dataclass(frozen=True)
class Mark:
    """What was last said of an image; `number` counts the lines of the log from 1."""

    number: int
    image: str
    state: State
    label: str | None = None  # the class, for the state "label"
    by: str = ""  # which browser
    time: float = 0.0
    patient: str | None = None


def read_log(path: Path) -> tuple[list[Mark], list[tuple[str, str]]]:
    """The marks and renames; a last line that a kill has cut was never acknowledged and goes."""
    try:
        content = read_bytes(path, most=_MAX_LOG)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Check the file.") from error
    whole, _, torn = content.rpartition(b"\n")
    if torn:
        with storage_errors(path), path.open("r+b") as file:
            file.truncate(len(content) - len(torn))
    marks: list[Mark] = []
    renamed: list[tuple[str, str]] = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        try:
            record = parse_json(line)
            if "rename" in record:
                old, new = map(str, record["rename"])
                renamed.append((old, new))
                marks = [replace(m, label=new) if m.label == old else m for m in marks]
                continue
            mark = Mark(**record)
            if mark.state not in get_args(State) or not isinstance(mark.image, str):
                raise ValueError(f"state {mark.state!r}")
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{path}, line {number} is damaged ({error}). Remove the line, or restore the file."
            ) from error
        marks.append(mark)
    return marks, renamed
