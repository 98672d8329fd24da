"""Which images make one case: those of an exam, a patient or a folder, the slices of a volume.

Readers give a case for each image; a `Grouping` merges them and expands volumes into slices. A case
has one target. Where its images have labels of their own, it is the one class among them that is
not normal.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ogkd.data.case import Case, Dataset, images_of
from ogkd.data.names import first_lines
from ogkd.data.task import Target, Task
from ogkd.errors import ConfigError, DataError, OgkdWarning
from ogkd.images import ImageRef, SliceRule
from ogkd.images.decode import parts_of
from ogkd.images.dicom import Series
from ogkd.images.ref import Broken, SlicesRule, kind_of
from ogkd.progress import progress_bar

FROM_FILES = ("folder", "study", "series")  # groupings that files themselves define
_PATIENT = "patient"
_WRITTEN = "case"  # the column that this program writes


@dataclass(frozen=True)
class Grouping:
    """What makes a case.

    `by` is a column of the table, `folder` (the folder that a file is in), or `study` or `series`
    (of DICOM files); without it each file is a case. `slices` are the images of a volume or
    clip; `slice` is the single one to take of it.
    """

    by: str | None = None
    slices: SlicesRule | None = None
    slice: SliceRule | None = None

    @classmethod
    def parse(
        cls, by: str | None = None, slices: str | None = None, slice: str | None = None
    ) -> Grouping:
        """Read three options."""
        if by is not None and not by.strip():
            raise ConfigError("cases must name a column, but is empty.", argument="cases")
        if slices is not None and slice is not None:
            raise ConfigError(
                "slice takes one image of a volume and slices several: give one of them.",
                argument="slice",
            )
        return cls(
            by and by.strip().lower(),
            None if slices is None else SlicesRule.parse(slices),
            None if slice is None else SliceRule.parse(slice),
        )

    @property
    def joins_images(self) -> bool:
        """Whether a case may have several images."""
        return self.by is not None or self.slices is not None

    @property
    def unit(self) -> str:
        """What a case is called."""
        column = None if self.by in FROM_FILES else self.by
        return column or ("case" if self.joins_images else "image")

    @property
    def representative(self) -> Grouping:
        """A single slice of each volume, where that stands for the whole."""
        return Grouping(slice=self.slice if self.slices is None else self.slices.middle)

    def as_json(self) -> dict[str, str | None]:
        rules = {"slices": self.slices, "slice": self.slice}
        return {"by": self.by} | {k: None if v is None else str(v) for k, v in rules.items()}

    def apply(self, dataset: Dataset) -> Dataset:
        """The dataset case by case; what contradicts itself is refused.

        Applied again, nothing changes.
        """
        cases = self.expand(self.merge(dataset.cases, dataset.task))
        return replace(dataset, cases=tuple(cases), unit=self.unit)

    def merge(self, cases: Sequence[Case], task: Task | None = None) -> list[Case]:
        """Cases that belong together as one, in the order of their first image.

        Without a task they have no targets.
        """
        if self.slice is not None:
            cases = [_sliced(case, self.slice) for case in cases]
        if self.by is None:
            return list(cases)
        series = self._series(cases)
        groups: dict[str, list[Case]] = defaultdict(list)
        for case in cases:
            groups[self._name(case, series.get(case.image))].append(case)
        _warn_of_irregularities(groups, series)

        def position(case: Case) -> tuple[str, float, int]:
            known = series.get(case.image)
            return (known.series, known.along, known.number or 0) if known else ("", 0.0, 0)

        ordered = {name: sorted(group, key=position) for name, group in groups.items()}
        if task is None:
            return [_joined(name, group, -1) for name, group in ordered.items()]
        return _labelled(ordered, task)

    def expand(self, cases: Sequence[Case]) -> list[Case]:
        """The cases with volumes and clips replaced by their images."""
        rule = self.slices
        if rule is None:
            return list(cases)
        mismatch: list[DataError] = []  # the rule does not fit a file

        def parts(image: ImageRef) -> list[ImageRef]:
            try:
                return parts_of(image, rule)
            except DataError as error:
                mismatch.extend([error] if error.argument else [])
                return [Broken(image.file, image.part, str(error))]

        expanded = []
        with progress_bar("Looking for slices", len(cases)) as bar:
            for case in cases:
                several = [parts(image) for image in case.images]
                targets = case.image_targets
                if targets is not None:
                    pairs = zip(targets, several, strict=True)
                    targets = tuple(target for target, images in pairs for _ in images)
                images = tuple(image for images in several for image in images)
                expanded.append(replace(case, images=images, image_targets=targets))
                bar.advance()
        if mismatch and all(isinstance(image, Broken) for image in images_of(expanded)):
            raise mismatch[-1]  # another rule is needed; of some files, what remains is used
        return expanded

    def _series(self, cases: Sequence[Case]) -> dict[ImageRef, Series]:
        series: dict[ImageRef, Series] = {}
        for image in images_of(cases) if self.by in ("study", "series") else ():
            if kind_of(image.file) != "dicom":
                raise self._nameless(f"{image} is not a DICOM file and has no {self.by}")
            with contextlib.suppress(DataError):  # reading the image will say why
                series[image] = Series.of(image.file)
        return series

    def _name(self, case: Case, series: Series | None) -> str:
        if self.by == "folder":
            return str(case.image.file.parent)
        if self.by in FROM_FILES:
            if series is None:
                return case.name
            if uid := series.study if self.by == "study" else series.series:
                return uid
            raise self._nameless(f"The header of {case.image} has no {self.by}")
        column = str(self.by)
        known = next((name for name in (column, _WRITTEN) if name in case.columns), None)
        if known is not None:
            if name := case.columns[known]:
                return name
            raise self._nameless(f"The column '{known}' is empty for {case.image}")
        if column == _PATIENT and case.group is not None:
            return case.group
        if len(case.images) > 1:  # named by the caller
            return case.name
        raise self._nameless(f"This data has no column '{column}'")

    def _nameless(self, why: str) -> DataError:
        return DataError(
            f"{why}, which should say which images belong together. Fill it in, or group by "
            f"something else: a column of a table, {', '.join(FROM_FILES)}.",
            argument="cases",
        )


def _sliced(case: Case, rule: SliceRule) -> Case:
    images = tuple(image.sliced(rule) for image in case.images)
    name = str(images[0]) if case.name == str(case.image) else case.name
    return replace(case, name=name, images=images)


def _joined(name: str, group: Sequence[Case], target: Target) -> Case:
    """One case of several; columns that differ are left out."""
    first = group[0]
    same = {
        column: cell
        for column, cell in first.columns.items()
        if all(case.columns.get(column) == cell for case in group)
    }
    images = tuple(images_of(group))
    return replace(first, name=name, images=images, target=target, columns=same)


def _labelled(groups: Mapping[str, Sequence[Case]], task: Task) -> list[Case]:
    """Give each case its target, and its images theirs if labels differ within any case."""
    merged: list[Case] = []
    complaints: list[str] = []
    own_labels = False
    for name, group in groups.items():
        labels = [label for case in group for label in _labels(case)]
        target = task.merge(labels)
        patients = {case.group for case in group if case.group is not None}
        for what, values in (
            ("splits", {case.split for case in group}),
            ("patients", patients),
            ("labels", {task.text(label) for label in labels} if target is None else ()),
        ):
            if len(values) > 1:
                complaints.append(f"{name}: {what} {', '.join(sorted(values))}")
        own_labels |= len(set(labels)) > 1 or any(case.image_targets for case in group)
        case = _joined(name, group, labels[0] if target is None else target)
        merged.append(replace(case, group=min(patients, default=None), image_targets=tuple(labels)))
    if complaints:
        raise DataError(
            f"{len(complaints)} case(s) contradict themselves:\n{first_lines(complaints)}\n"
            "A case has one answer, one patient and one split. An image that shows less than its "
            "case needs the label of a normal class.",
            argument="cases",
        )
    if own_labels:
        return merged
    return [replace(case, image_targets=None) for case in merged]


def _labels(case: Case) -> Sequence[Target]:
    return case.image_targets or (case.target,) * len(case.images)


def _warn_of_irregularities(
    groups: Mapping[str, Sequence[Case]], series: Mapping[ImageRef, Series]
) -> None:
    """Warn about irregular series and mixed cases; their images are used all the same."""
    by_series: dict[str, list[Series]] = defaultdict(list)
    for header in series.values():
        by_series[header.series].append(header)
    lines = [
        f"series {uid}: {problem}"
        for uid, headers in by_series.items()
        for problem in _irregularities(headers)
    ]
    for name, group in groups.items():
        images = images_of(group)
        headers = [series[image] for image in images if image in series]
        for what, values in (
            ("kinds of files", {kind_of(image.file) for image in images}),
            ("modalities", {h.modality for h in headers}),
            ("sizes", {"{} x {}".format(*h.size) for h in headers}),
        ):
            if len(values) > 1:
                lines.append(f"{name}: different {what} ({', '.join(sorted(values))})")
    if lines:
        text = f"These series or cases are irregular; all images are used:\n{first_lines(lines)}"
        warnings.warn(text, OgkdWarning, stacklevel=3)


def _irregularities(headers: Sequence[Series]) -> Iterator[str]:
    """What is wrong with the slices of one series."""
    numbers = sorted(h.number for h in headers if h.number is not None)
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        yield "instances are missing or occur more than once"
    if len({h.normal for h in headers if h.normal}) > 1:
        yield "slices of more than one orientation"
