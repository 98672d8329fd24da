"""A project is a folder; images stay where they are.

`labels.jsonl` is a log with one line per click, on the disk before the click is acknowledged;
`labels.csv` is the same as a plain table, which `ogkd fit` reads; `project.json` has the classes,
their texts and the settings. Addresses of images count from the project's folder.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from ogkd.backbones.catalog import find_record, local_folder
from ogkd.data.case import Case, Dataset
from ogkd.data.names import read_class_names
from ogkd.data.tables import csv_text, relative_to, table_text
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError, DataError, OgkdError
from ogkd.files import holds_files, is_text, read_bytes, storage_errors, write_json, write_text
from ogkd.images import ImageRef, SliceRule
from ogkd.images.ref import kind_of
from ogkd.records import first_problem, read_record

SETTINGS, LOG, TABLE = "project.json", "labels.jsonl", "labels.csv"
VOLUMES = "volumes.csv"  # the labels of slices as labels of their volumes
UPLOADS, MODEL = "images", "model"  # folders inside it
SCHEMA = 1
State = Literal["label", "unsure", "skip", "unusable", "clear"]
_MAX_LOG = 1 << 30  # bytes


class ClassInfo(BaseModel):
    """A class; without texts, templates describe it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=200)
    texts: tuple[Annotated[str, Field(max_length=2000)], ...] = Field(default=(), max_length=1000)
    normal: bool = False  # it means "nothing found"

    @field_validator("texts")
    @classmethod
    def _clean(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(clean for text in value if (clean := " ".join(text.split()))))


class Facts(BaseModel):
    """`project.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    folders: tuple[str, ...] = ()  # of images, as seen from the project's folder
    backbone: str = "auto"
    slice: str | None = None  # of volumes that name none
    patient: str | None = None  # regular expression; its first group is the patient
    classes: tuple[ClassInfo, ...] = Field(default=(), max_length=100)

    @field_validator("patient", "slice", "classes")
    @classmethod
    def _checked(cls, value: Any, info: ValidationInfo) -> Any:
        try:
            return None if value is None else _CHECKS[str(info.field_name)](value)
        except (re.error, OgkdError) as error:
            raise ValueError(str(error)) from error


def _with_clean_names(classes: Sequence[ClassInfo]) -> tuple[ClassInfo, ...]:
    names = read_class_names([info.name for info in classes])
    pairs = zip(classes, names, strict=True)
    return tuple(info.model_copy(update={"name": name}) for info, name in pairs)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "patient": lambda pattern: re.compile(pattern).pattern,
    "slice": lambda rule: str(SliceRule.parse(rule)),
    "classes": _with_clean_names,
}


@dataclass(frozen=True)
class Mark:
    """What was last said of an image; `number` counts the lines of the log from 1."""

    number: int
    image: str
    state: State
    label: str | None = None  # the class, for the state "label"
    by: str = ""  # which browser
    time: float = 0.0


_LINE: TypeAdapter[Mark] = TypeAdapter(Mark)


class Conflict(ConfigError):
    """Somebody else has said something of this image meanwhile; `mark` is what."""

    def __init__(self, mark: Mark) -> None:
        state = mark.label or mark.state
        super().__init__(f"Another window has marked this image as '{state}' meanwhile.")
        self.mark = mark


class Project:
    """An open project; every method that changes it returns when the disk has it."""

    def __init__(self, folder: Path, facts: Facts) -> None:
        self.folder, self.facts = folder, facts
        self.history: list[Mark] = []
        self.marks: dict[str, Mark] = {}
        self._clicks: dict[str, list[tuple[str, Mark | None]]] = defaultdict(list)
        self._lock = threading.RLock()

    @classmethod
    def open(cls, folder: str | Path) -> Project:
        """Open a project, or begin one in a new or empty folder."""
        path = Path(os.path.abspath(folder))  # noqa: PTH100 - links stay as they are
        if not (path / SETTINGS).exists():
            if path.exists() and (not path.is_dir() or holds_files(path)):
                raise ConfigError(
                    f"{folder} exists and is not a studio project. Choose a new folder.",
                    argument="out",
                )
            with storage_errors(path):
                path.mkdir(parents=True, exist_ok=True)
            write_json(path / SETTINGS, Facts().model_dump(mode="json"), ours=True)
        try:
            facts = read_record(path / SETTINGS, Facts, oldest=SCHEMA, newest=SCHEMA)
        except (OSError, ValueError) as error:
            raise DataError(f"{path / SETTINGS} is damaged ({error}).") from error
        project = cls(path, facts)
        project._read_log()
        return project

    def _read_log(self) -> None:
        """Read the log; a last line that a kill has cut was never acknowledged and goes."""
        path = self.folder / LOG
        try:
            content = read_bytes(path, most=_MAX_LOG)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DataError(f"Cannot read {path}: {error.strerror}.") from error
        *whole, torn = content.split(b"\n")
        if torn:
            with storage_errors(path), path.open("r+b") as file:
                file.truncate(len(content) - len(torn))
        lines: list[Mark] = []
        for number, line in enumerate(whole, 1):
            try:
                lines.append(_LINE.validate_json(line))
            except ValidationError as error:
                reason = first_problem(error)
                raise DataError(f"{path}, line {number} is damaged ({reason}).") from error
        self._apply(lines)
        # A kill may have come between the labels of a renamed class and its new name.
        used = dict.fromkeys(self.labels.values())
        if more := [ClassInfo(name=name) for name in used if name not in self.class_names]:
            self.set_facts(classes=[*self.facts.classes, *more])

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(info.name for info in self.facts.classes)

    @property
    def labels(self) -> dict[str, str]:
        """The class of each labelled image, in the order of labelling."""
        pairs = ((m.image, m.label) for m in self.marks.values() if m.state == "label")
        return {image: label for image, label in pairs if label is not None}

    @property
    def last(self) -> int:
        """The number of the last line of the log."""
        return self.history[-1].number if self.history else 0

    def patients(self, addresses: Sequence[str]) -> list[str | None]:
        """The patient of each image, by the project's pattern of paths; None if it has none."""
        if not self.facts.patient:
            return [None] * len(addresses)
        matches = [re.search(self.facts.patient, address) for address in addresses]
        return [match and match[1 if match.re.groups else 0] for match in matches]

    def address(self, image: ImageRef) -> str:
        return relative_to(self.folder)(image)

    def ref(self, address: str) -> ImageRef:
        image = ImageRef.of(self.folder / address)
        return replace(image, file=Path(os.path.normpath(image.file)))

    def mark(
        self,
        image: str,
        state: State,
        label: str | None = None,
        *,
        by: str = "",
        seen: int | None = None,
    ) -> Mark:
        """Say something of an image; it is on the disk when this returns.

        `seen` is the number of the last mark of the image that the caller knows (0: none). If
        there is a newer one that says something else, this is a `Conflict`.
        """
        if state == "label" and label not in self.class_names:
            known = ", ".join(self.class_names) or "none yet"
            raise ConfigError(f"There is no class '{label}'. The classes are: {known}.")
        with self._lock:
            old = self.marks.get(image)
            if seen is not None and old is not None and old.number > seen:
                if (old.state, old.label) == (state, label):
                    return old
                raise Conflict(old)
            self._clicks[by].append((image, old))
            return self._append(image, state, label if state == "label" else None, by)

    def undo(self, by: str) -> Mark | None:
        """Take back the last click of this window; None if there is none left to take back.

        What was taken back stays in the log: an undo is a line of its own.
        """
        with self._lock:
            if not (clicks := self._clicks.get(by)):
                return None
            image, before = clicks.pop()
            now = self.marks[image]
            if now.by not in (by, f"undo {by}"):
                raise Conflict(now)
            state, label = ("clear", None) if before is None else (before.state, before.label)
            if label is not None and label not in self.class_names:
                state, label = "clear", None
            return self._append(image, state, label, f"undo {by}")

    def set_facts(self, **changes: Any) -> None:
        """Change settings or classes; a class with labels cannot be removed."""
        with self._lock:
            facts = self._changed(changes, self.labels.values())
            write_json(self.folder / SETTINGS, facts.model_dump(mode="json"), ours=True)
            self.facts = facts

    def set_classes(self, classes: Sequence[ClassInfo], renames: Mapping[str, str]) -> None:
        """Rename classes (old name to new) and set them all: everything, or nothing at all."""
        with self._lock:
            names = {old: read_class_names([new])[0] for old, new in renames.items()}
            kept = set(self.class_names) - names.keys()
            for old, new in names.items():
                if old not in self.class_names or new in kept:
                    raise ConfigError(f"'{old}' cannot be renamed to '{new}'. Check both names.")
            labels = {image: names.get(label, label) for image, label in self.labels.items()}
            self._changed({"classes": classes}, labels.values())
            old_labels, first = self.labels, self.last + 1
            moved = [pair for pair in labels.items() if old_labels[pair[0]] != pair[1]]
            now = time.time()
            self._write(
                [
                    Mark(number, image, "label", label, "rename", now)
                    for number, (image, label) in enumerate(moved, first)
                ]
            )
            self._clicks.clear()
            self.set_facts(classes=classes)

    def _changed(self, changes: Mapping[str, Any], used: Iterable[str]) -> Facts:
        """The settings after a change, where `used` are the classes that images are labelled."""
        try:
            facts = Facts.model_validate({**dict(self.facts), **changes})
        except ValidationError as error:
            raise ConfigError(first_problem(error)) from None
        except UnicodeEncodeError:
            raise ConfigError("A setting has half a character (a lone surrogate).") from None
        if lost := sorted(set(used) - {info.name for info in facts.classes}):
            raise ConfigError(
                f"Images are labelled '{lost[0]}': label them differently before you remove the "
                "class, or rename it."
            )
        return facts

    def add_folder(self, folder: Path) -> None:
        """Add a folder of images; they stay there."""
        address = self.address(ImageRef(folder.resolve()))
        self.set_facts(folders=tuple(dict.fromkeys((*self.facts.folders, address))))

    def use_backbone(self, name: str) -> None:
        """Keep which backbone encodes; a folder as seen from the project's."""
        folder = local_folder(name)
        self.set_facts(backbone=self.address(ImageRef(folder)) if folder else name)

    @property
    def backbone(self) -> str:
        """What loads the backbone: a name, or a folder on this machine."""
        name = self.facts.backbone
        return name if find_record(name) else str(local_folder(str(self.folder / name)) or name)

    @property
    def task(self) -> OneOf:
        classes = self.facts.classes
        return OneOf(self.class_names, tuple(n for n, info in enumerate(classes) if info.normal))

    def dataset(self) -> Dataset:
        """The labelled images as a dataset."""
        names, labels = self.class_names, self.labels
        cases = [
            Case.single(self.ref(image), names.index(label), group=patient)
            for (image, label), patient in zip(
                labels.items(), self.patients(list(labels)), strict=True
            )
        ]
        return Dataset(tuple(cases), self.task)

    def write_table(self) -> Path:
        """Write `labels.csv` from the log, and `volumes.csv` if slices of volumes are labelled."""
        path = self.folder / TABLE
        dataset = self.dataset()
        text = table_text(dataset, self.folder) if dataset.cases else csv_text([["path", "label"]])
        write_text(path, text, ours=True)
        whole = {
            case.image.file: replace(case, images=(ImageRef(case.image.file),))
            for case in dataset.cases
            if kind_of(case.image.file) == "nifti"
        }
        if whole:
            text = table_text(dataset.with_cases(whole.values()), self.folder)
            write_text(self.folder / VOLUMES, text, ours=True)
        return path

    def _append(self, image: str, state: State, label: str | None, by: str) -> Mark:
        mark = Mark(self.last + 1, image, state, label, by, time.time())
        self._write([mark])
        return mark

    def _write(self, lines: Sequence[Mark]) -> None:
        """Append to the log; on the disk when this returns."""
        text = "".join(json.dumps(asdict(line), ensure_ascii=False) + "\n" for line in lines)
        if not is_text(text):
            raise DataError("A file name has half a character (a lone surrogate). Rename the file.")
        path = self.folder / LOG
        with storage_errors(path), path.open("ab") as file:
            start = file.tell()
            try:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), start)  # no half line before the next one
                raise
        self._apply(lines)

    def _apply(self, lines: Iterable[Mark]) -> None:
        for mark in lines:
            self.history.append(mark)
            self.marks.pop(mark.image, None)  # the last said comes last
            self.marks[mark.image] = mark
