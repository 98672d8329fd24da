"""What a dataset is: cases, each of which gets one answer, and the task that asks for it.

A single image is a case of one image. `ogkd.data.grouping` makes cases of several.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ogkd.data.names import SPLITS as SPLITS
from ogkd.data.names import first_lines, split_name
from ogkd.data.task import Target, Task
from ogkd.errors import DataError
from ogkd.images import ImageRef
from ogkd.images.memory import InMemory

_FEW = 8  # images of a case that stand for it where all would be too many


@dataclass(frozen=True)
class Case:
    """Images that share one answer.

    `group` is the patient or lesion, whose cases are never both learned from and evaluated on;
    `image_targets` are the labels of the images themselves, where those are known.
    """

    name: str
    images: tuple[ImageRef, ...]
    target: Target = -1  # what the task understands; -1: not labelled
    split: str = ""
    group: str | None = None
    image_targets: tuple[Target, ...] | None = None
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)  # the rest of its row

    @classmethod
    def single(cls, image: ImageRef, target: Target = -1, **others: object) -> Case:
        """A case of one image, which gives it its name."""
        return cls(str(image), (image,), target, **others)  # type: ignore[arg-type]

    @property
    def image(self) -> ImageRef:
        """The image that represents the case where only one is shown or named."""
        return self.images[0]

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that recognise the case by the contents of its images."""
        marks = sorted(image.fingerprint for image in self.images)
        if len(marks) == 1:
            return marks[0]
        return hashlib.sha256(" ".join(marks).encode()).hexdigest()[:16]

    @property
    def few(self) -> tuple[ImageRef, ...]:
        """At most 8 of its images, evenly spaced."""
        return tuple(self.images[n] for n in evenly(len(self.images)))

    def without(self, images: Collection[ImageRef], *, empty: bool = False) -> Case | None:
        """The case without these images; if none is left, itself, or None with `empty`."""
        kept = [n for n, image in enumerate(self.images) if image not in images]
        if len(kept) == len(self.images):
            return self
        if not kept:
            return None if empty else self
        targets = self.image_targets
        return replace(
            self,
            images=tuple(self.images[n] for n in kept),
            image_targets=None if targets is None else tuple(targets[n] for n in kept),
        )

    def is_among(self, seen: Collection[str]) -> bool:
        """Whether an image is among `seen` by content, or one of a few of them by its pixels."""
        if not seen:
            return False
        if any(image.fingerprint in seen for image in self.images):
            return True
        return any(image.pixel_fingerprint in seen for image in self.few)

    @property
    def marks(self) -> tuple[str, ...]:
        """What recognises its images again: all contents, and the pixels of a few."""
        pixels = [image.pixel_fingerprint for image in self.few]
        return (*(image.fingerprint for image in self.images), *pixels)


@dataclass(frozen=True)
class Dataset:
    """Cases and what is asked of them.

    `ignored` says what was at the source but is not in the dataset, and what to do about it.
    """

    cases: tuple[Case, ...]
    task: Task
    ignored: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    unit: str = "image"  # what a case is called, in the singular

    def __repr__(self) -> str:
        counts = Counter(case.split for case in self.cases if case.split)
        parts = ", ".join(f"{split} {count}" for split, count in counts.items())
        size = f"{len(self.cases)} {self.unit}s{parts and f' ({parts})'}"
        return f"<Dataset: {size}, {self.task.describe()}>"

    @property
    def names(self) -> tuple[str, ...]:
        return self.task.names

    @property
    def splits(self) -> list[str]:
        return list(dict.fromkeys(case.split for case in self.cases))

    @property
    def has_splits(self) -> bool:
        return any(case.split for case in self.cases)

    @property
    def images(self) -> list[ImageRef]:
        """Every image, case by case."""
        return images_of(self.cases)

    @property
    def sha256(self) -> str:
        """A digest of the table, not of the pixels: class names, paths, labels, splits, groups.

        Paths count from the folder that contains all of the images, so that a dataset may be
        moved; the order of the cases does not matter.
        """
        entries = [(image, case) for case in self.cases for image in case.images]
        paths = [Path(os.path.normpath(Path(str(image)).absolute())) for image, _ in entries]
        try:
            root = os.path.commonpath([path.parent for path in paths])
        except ValueError as error:  # none, or several drives
            raise DataError("The dataset has no images, or they are not on one drive.") from error
        rows = sorted(
            [path.relative_to(root).as_posix(), case.target, case.split, case.group or ""]
            for (_, case), path in zip(entries, paths, strict=True)
        )
        text = json.dumps([self.names, rows], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def part(self, split: str) -> list[Case]:
        """The cases of a split; all of them if the dataset has no splits."""
        if not self.has_splits:
            return list(self.cases)
        wanted = split_name(split)
        cases = [case for case in self.cases if case.split == wanted]
        if not cases:
            known = ", ".join(sorted(filter(None, self.splits)))
            raise DataError(
                f"There is no split '{split}'. This dataset has: {known}.", argument="split"
            )
        return cases

    def with_cases(self, cases: Iterable[Case]) -> Dataset:
        return replace(self, cases=tuple(cases))

    def map(self, change: Callable[[Case], Case]) -> Dataset:
        return self.with_cases(map(change, self.cases))

    def by_image(self) -> Dataset:
        """A case for each image, with the name and the target of the case that it is from."""
        cases = [
            replace(case, images=(image,), image_targets=None if own is None else (own[n],))
            for case in self.cases
            for own in (case.image_targets,)
            for n, image in enumerate(case.images)
        ]
        return replace(self, cases=tuple(cases), unit="image")

    def restrict(self, numbers: Sequence[int]) -> Dataset:
        """The dataset about some classes or findings, numbered from 0 in their old order."""
        kept = sorted(set(numbers))
        if not kept or len(kept) < len(numbers) or kept[0] < 0 or kept[-1] >= len(self.names):
            raise DataError(
                f"Classes to keep must be distinct numbers from 0 to {len(self.names) - 1}, but "
                f"are {list(numbers)}."
            )
        task, new = self.task.restrict(kept)
        cases = []
        for case in self.cases:
            if (target := new(case.target)) is None:
                continue
            targets = case.image_targets
            if targets is not None:
                targets = tuple(-1 if (t := new(label)) is None else t for label in targets)
            cases.append(replace(case, target=target, image_targets=targets))
        return replace(self, cases=tuple(cases), task=task, ignored=())

    def with_normal(self, normal: Sequence[int]) -> Dataset:
        return replace(self, task=replace(self.task, normal=tuple(normal)))

    def targets(self, cases: Sequence[Case] | None = None) -> list[Target]:
        return [case.target for case in (self.cases if cases is None else cases)]


def unlabelled_cases(images: Iterable[ImageRef]) -> list[Case]:
    return [Case.single(image) for image in images]


def images_of(cases: Iterable[Case]) -> list[ImageRef]:
    """Every image of the cases, case by case."""
    return [image for case in cases for image in case.images]


def case_numbers(cases: Iterable[Case]) -> NDArray[np.int64]:
    """For every image, the number of its case: [N]."""
    sizes = [len(case.images) for case in cases]
    return np.repeat(np.arange(len(sizes)), sizes)


def image_targets(cases: Sequence[Case]) -> list[Target] | None:
    """The targets of all images; None if only cases of several images are labelled."""
    targets: list[Target] = []
    for case in cases:
        if case.image_targets is not None:
            targets += case.image_targets
        elif len(case.images) == 1:
            targets.append(case.target)
        else:
            return None
    return targets


def evenly(count: int, most: int = _FEW) -> list[int]:
    """At most `most` of the numbers below `count`, evenly spaced."""
    kept = min(count, most)
    return [(2 * k + 1) * count // (2 * kept) for k in range(kept)]


def require_files(cases: Sequence[Case]) -> None:
    """Refuse cases whose files do not exist, naming them all at once."""
    images = images_of(cases)
    files = dict.fromkeys(image.file for image in images if not isinstance(image, InMemory))
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} file(s) of the data are missing:\n{first_lines(missing)}\n"
            "Check the paths; in a table or split file they are relative to its folder or `root`."
        )


def refuse_twice(source: Path, rows: Sequence[tuple[str, Case]]) -> None:
    """Refuse an image that is listed twice; `rows` says where each case was read."""
    seen: dict[str, tuple[str, Case]] = {}
    twice = []
    for where, case in rows:
        first, other = seen.setdefault(os.path.normpath(str(case.image)), (where, case))
        if other is not case:
            what = "the same label" if other.target == case.target else "another label"
            twice.append(f"{case.image}: {first} and {where}, with {what}")
    if twice:
        raise DataError(
            f"{source} lists {len(twice)} file(s) twice:\n{first_lines(twice)}\n"
            "Keep one line for each image."
        )
