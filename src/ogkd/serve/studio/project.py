"""A project is a folder; images stay where they are.

`labels.jsonl` is a log with one line per click, on the disk before the click is acknowledged;
`labels.csv` is the same as a plain table, which `ogkd fit` reads; `project.json` has the classes,
their texts and the settings. Addresses of images count from the project's folder.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from ogkd.data.case import Case, Dataset
from ogkd.data.names import read_class_names
from ogkd.data.tables import csv_text, relative_to, table_text
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError, DataError
from ogkd.files import (
    holds_files,
    is_text,
    storage_errors,
    write_json,
    write_text,
)
from ogkd.images import ImageRef
from ogkd.images.ref import kind_of
from ogkd.serve.studio.facts import (
    ClassInfo,
    Facts,
    Mark,
    State,
    checked_classes,
    read_facts,
    read_log,
)

SETTINGS, LOG, TABLE = "project.json", "labels.jsonl", "labels.csv"
VOLUMES = "volumes.csv"  # the labels of slices as labels of their volumes
UPLOADS, MODEL = "images", "model"  # folders inside it


class Conflict(ConfigError):
    """Somebody else has said something of this image meanwhile; `mark` is what."""

    def __init__(self, mark: Mark) -> None:
        state = mark.label or mark.state
        super().__init__(f"Another window has marked this image as '{state}' meanwhile.")
        self.mark = mark


class Project:
    """An open project; every method that changes it returns when the disk has it."""

    def __init__(self, folder: Path, facts: Facts, marks: Iterable[Mark] = ()) -> None:
        self.folder, self.facts = folder, facts
        self.history: list[Mark] = list(marks)
        self.marks: dict[str, Mark] = {mark.image: mark for mark in self.history}
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
        facts = read_facts(path / SETTINGS)
        marks, renamed = read_log(path / LOG)
        project = cls(path, facts, marks)
        project._repair(renamed)
        return project

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(info.name for info in self.facts.classes)

    @property
    def labels(self) -> dict[str, str]:
        """The class of each labelled image, in the order of labelling."""
        pairs = ((m.image, m.label) for m in self.marks.values() if m.state == "label")
        return {image: label for image, label in pairs if label is not None}

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
        patient: str | None = None,
    ) -> Mark:
        """Say something of an image; it is on the disk when this returns.

        `seen` is the number of the last mark of the image that the caller knows (0: none). If
        there is a newer one that says something else, this is a `Conflict`.
        """
        if state not in get_args(State):
            raise ConfigError(f"A mark is one of {', '.join(get_args(State))}, not '{state}'.")
        if state == "label" and label not in self.class_names:
            known = ", ".join(self.class_names) or "none yet"
            raise ConfigError(f"There is no class '{label}'. The classes are: {known}.")
        with self._lock:
            old = self.marks.get(image)
            if seen is not None and old is not None and old.number > seen:
                if (old.state, old.label) == (state, label):
                    return old
                raise Conflict(old)
            whose = patient if patient is not None or old is None else old.patient
            return self._append(image, state, label if state == "label" else None, by, whose)

    def undo(self, by: str) -> Mark | None:
        """Take back the last click of this browser; None if there is none left to take back.

        What was taken back stays in the log: an undo is a line of its own.
        """
        with self._lock:
            passed = 0
            for index in range(len(self.history) - 1, -1, -1):
                last = self.history[index]
                if last.by == f"undo {by}":
                    passed += 1
                elif last.by == by and passed:
                    passed -= 1
                elif last.by == by:
                    break
            else:
                return None
            now = self.marks[last.image]
            if now.number != last.number and now.by not in (by, f"undo {by}"):
                raise Conflict(now)
            before = [m for m in self.history[:index] if m.image == last.image]
            state, label = (before[-1].state, before[-1].label) if before else ("clear", None)
            if label is not None and label not in self.class_names:
                state, label = "clear", None
            return self._append(last.image, state, label, f"undo {by}", last.patient)

    def label_many(
        self, labels: Iterable[tuple[str, str, str | None]], *, by: str = "import"
    ) -> int:
        """Label images that have no label yet: (address, class, patient); how many were new."""
        with self._lock:
            rows = list(labels)
            strange = {label for _, label, _ in rows} - set(self.class_names)
            if strange:
                more = [ClassInfo(name=name) for name in sorted(strange)]
                self.set_facts(classes=(*self.facts.classes, *more))
            new = [row for row in rows if row[0] not in self.labels]
            lines: list[Mark] = []
            for image, label, patient in new:
                mark = Mark(
                    self._number + len(lines), image, "label", label, by, time.time(), patient
                )
                lines.append(mark)
            self._write(lines)
            return len(new)

    def set_facts(self, **changes: Any) -> None:
        """Change settings or classes; a class with labels cannot be removed."""
        with self._lock:
            facts = self._checked(changes)
            write_json(self.folder / SETTINGS, facts.model_dump(mode="json"), ours=True)
            self.facts = facts

    def set_classes(self, classes: Sequence[ClassInfo], renames: Mapping[str, str]) -> None:
        """Rename classes (old name to new), then set them all: everything, or nothing at all."""
        with self._lock:
            names, steps = list(self.class_names), {}
            for old, new in renames.items():
                (clean,) = read_class_names([new])
                if old not in names or clean in names:
                    raise ConfigError(f"'{old}' cannot be renamed to '{clean}'. Check both names.")
                names[names.index(old)] = steps[old] = clean
            self._checked({"classes": classes}, steps)
            for old, clean in steps.items():
                self._rename(old, clean)
            self.set_facts(classes=classes)

    def _checked(
        self, changes: Mapping[str, Any], renames: Mapping[str, str] | None = None
    ) -> Facts:
        """The settings after a change, once classes have other names; nothing is written yet."""
        try:
            facts = Facts.model_validate({**self.facts.model_dump(), **_plain(changes)})
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"]))
            raise ConfigError(f"{field}: {problem['msg']}.") from None
        except UnicodeEncodeError:
            raise ConfigError("A setting has half a character (a lone surrogate).") from None
        facts = facts.model_copy(update={"classes": checked_classes(facts.classes)})
        used = set(self.labels.values())
        for old, new in (renames or {}).items():
            used = {new if name == old else name for name in used}
        if lost := sorted(used - {info.name for info in facts.classes}):
            raise ConfigError(
                f"Images are labelled '{lost[0]}': label them differently before you remove the "
                "class, or rename it."
            )
        return facts

    def add_folder(self, folder: Path) -> None:
        """Add a folder of images; they stay there."""
        address = self.address(ImageRef(folder.resolve()))
        self.set_facts(folders=tuple(dict.fromkeys((*self.facts.folders, address))))

    @property
    def task(self) -> OneOf:
        classes = self.facts.classes
        return OneOf(self.class_names, tuple(n for n, info in enumerate(classes) if info.normal))

    def dataset(self) -> Dataset:
        """The labelled images as a dataset."""
        names = self.class_names
        cases = [
            Case.single(self.ref(image), names.index(label), group=self.marks[image].patient)
            for image, label in self.labels.items()
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

    @property
    def _number(self) -> int:
        return self.history[-1].number + 1 if self.history else 1

    def _append(
        self, image: str, state: State, label: str | None, by: str, patient: str | None
    ) -> Mark:
        mark = Mark(self._number, image, state, label, by, time.time(), patient)
        self._write([mark])
        return mark

    def _write(self, marks: Sequence[Mark]) -> None:
        self._write_lines([asdict(mark) for mark in marks])
        self.history += marks
        for mark in marks:
            self.marks.pop(mark.image, None)  # the last said comes last
            self.marks[mark.image] = mark

    def _write_lines(self, lines: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
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

    def _rename(self, old: str, new: str) -> None:
        self._write_lines([{"rename": [old, new]}])
        self._apply_rename(old, new)
        classes = [
            info.model_copy(update={"name": new}) if info.name == old else info
            for info in self.facts.classes
        ]
        facts = self.facts.model_copy(update={"classes": tuple(classes)})
        write_json(self.folder / SETTINGS, facts.model_dump(mode="json"), ours=True)
        self.facts = facts

    def _apply_rename(self, old: str, new: str) -> None:
        self.history = [replace(m, label=new) if m.label == old else m for m in self.history]
        self.marks = {
            image: replace(m, label=new) if m.label == old else m for image, m in self.marks.items()
        }

    def _repair(self, renamed: Sequence[tuple[str, str]]) -> None:
        """Finish what a kill between the log and the settings has left undone."""
        names = list(self.class_names)
        for old, new in renamed:
            if old in names and new not in names:
                names[names.index(old)] = new
        missing = [label for label in dict.fromkeys(self.labels.values()) if label not in names]
        classes = [
            info.model_copy(update={"name": name})
            for info, name in zip(self.facts.classes, names, strict=True)
        ]
        classes += [ClassInfo(name=name) for name in missing]
        if tuple(classes) != self.facts.classes:
            self.set_facts(classes=tuple(classes))


def _plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [item.model_dump() if isinstance(item, ClassInfo) else item for item in value]
        if name == "classes"
        else value
        for name, value in changes.items()
    }
