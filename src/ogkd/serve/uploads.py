"""Uploaded files: recognised by their first bytes, read as `predict` reads them, and grouped."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ogkd.data.case import Case, images_of
from ogkd.data.grouping import Grouping
from ogkd.errors import DataError, OgkdError
from ogkd.images import ImageRef, SliceRule, read_image
from ogkd.images.dicom import Series, frame_count
from ogkd.images.ref import SlicesRule, kind_of

FORMATS = "PNG, JPEG, TIFF, BMP, WebP, DICOM or NIfTI"
_SUFFIXES = (  # of the kinds that are not read by their content alone: offset, bytes, suffix
    (0, b"\x1f\x8b", ".nii.gz"),
    (344, b"n+1\0", ".nii"),
    (4, b"n+2\0", ".nii"),
)
MIDDLE = SliceRule.parse("axis=2,index=middle")
_NAMED = 3  # files that could not be read


@dataclass(frozen=True)
class Upload:
    """Files that were sent together; `pixels` are of the first, which is shown."""

    files: Mapping[Path, str]  # with the user's names for them
    images: Sequence[ImageRef]  # of each file the image that stands for it
    pixels: NDArray[np.uint8]  # [H, W, 3]
    note: str = ""  # which part of a file was used, and which files were not

    @property
    def name(self) -> str:
        return listed(list(self.files.values()))

    def in_user_words(self, text: str) -> str:
        """A message with the user's names for the files, not ours."""
        for file, name in self.files.items():
            text = text.replace(str(file), name)
        return text

    def cases(self, grouping: Grouping) -> list[Case]:
        """What a model answers: by its grouping, under names that the user knows.

        DICOM files are told apart by series or study: by study where a table or folders made the
        model's cases. Where each file was a case, a volume or clip is one by itself. Other
        files do not say what they belong to: they are one case.
        """
        if not grouping.joins_images:
            return [Case(self.files[image.file], (image,)) for image in self.images]
        groups: dict[tuple[str, str], list[Path]] = {}
        for file in self.files:
            groups.setdefault(_case_key(file, grouping.by), []).append(file)
        # A table or a folder may put an image without a study beside those of a study.
        loose = set() if grouping.by in (None, "series", "study") else {("", "")}
        if len(groups.keys() - loose) < 2:
            groups = {("", ""): list(self.files)}
        repeated = Counter(title for title, _ in groups)
        cases: dict[str, Case] = {}
        for number, ((title, key), files) in enumerate(groups.items(), 1):
            name = listed([self.files[file] for file in files])
            if title:
                name = f"{title} {key}: {name}" if repeated[title] > 1 else f"{title}: {name}"
            name = f"{number}. {name}" if name in cases else name
            cases[name] = Case(name, _in_order(files))
        return Grouping(slices=grouping.slices or SlicesRule()).expand(list(cases.values()))


def read_upload(
    files: Mapping[Path, str], *, frame: SliceRule = MIDDLE, whole: bool = False
) -> Upload:
    """Decode files, of several frames or slices that of `frame`.

    With `whole`, volumes may be taken whole. What cannot be read is named in the note,
    unless it is all of the files.
    """
    names: dict[Path, str] = {}
    images: list[ImageRef] = []
    shown: list[NDArray[np.uint8]] = []
    unread: list[str] = []
    notes: list[str] = []
    for received, name in files.items():
        prefix = f"{name}: " if len(files) > 1 else ""
        file = _with_suffix(received)
        try:
            image = ImageRef(file).sliced(frame)
            pixels = read_image(image)
        except OgkdError as error:
            unread.append(prefix + str(error).replace(str(file), "The file"))
            continue
        names[file] = name
        images.append(image)
        shown = shown or [pixels]
        if image.part and not whole:
            notes.append(f"{prefix}Of the file, {image.part} is used.")
    if not shown:
        raise DataError(unread[0])
    if unread:
        notes.append(f"Not used ({len(unread)}): {'; '.join(unread[:_NAMED])}")
    return Upload(names, images, shown[0], " ".join(notes))


def display_name(name: str) -> str:
    """A file name without folders and odd characters."""
    return re.sub(r"[^\w. ()+-]", "_", Path(name).name)[-255:].strip(" .") or "image"


def _with_suffix(received: Path) -> Path:
    """The file with the suffix that its content is read by, if it needs one."""
    with received.open("rb") as stream:
        start = stream.read(352)
    for offset, mark, suffix in _SUFFIXES:
        if start[offset:].startswith(mark):
            return received.rename(received.with_suffix(suffix))
    return received


def listed(names: Sequence[str]) -> str:
    """The first name, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _in_order(files: Sequence[Path]) -> tuple[ImageRef, ...]:
    """The files of a case, slices of a DICOM series in their order in it."""
    members = [Case.single(ImageRef(file)) for file in files]
    with contextlib.suppress(DataError):  # other files, or without a series: as they were sent
        members = Grouping("series").merge(members)
    return tuple(images_of(members))


def _case_key(file: Path, by: str | None) -> tuple[str, str]:
    """What the file's case is called, and what identifies it; "" if nothing does."""
    kind = kind_of(file)
    if by is None and (kind == "nifti" or (kind == "dicom" and frame_count(file) > 1)):
        return "", str(file)
    if kind == "dicom":
        with contextlib.suppress(DataError):  # reading the image will say why
            series = Series.of(file)
            title, key = series.study_name, series.study
            if by in (None, "series"):
                title, key = series.series_name, series.series
            return (title, key) if key else ("", "")
    return "", ""
