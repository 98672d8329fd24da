"""Uploaded files: recognised by their first bytes, decoded within limits, grouped into cases."""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ogkd.data.case import Case, images_of
from ogkd.data.grouping import Grouping
from ogkd.errors import DataError, OgkdError
from ogkd.images import ImageRef, SliceRule
from ogkd.images.dicom import Series, frame_count, read_dicom
from ogkd.images.nifti import declared_bytes, read_nifti
from ogkd.images.plain import TIFF_MARKS, read_plain
from ogkd.images.ref import kind_of
from ogkd.images.slices import AXIAL, SlicesRule
from ogkd.images.slide import is_slide, overview

if TYPE_CHECKING:
    from starlette.requests import Request

FORMATS = "PNG, JPEG, TIFF, BMP, WebP, DICOM or NIfTI"
_SIGNATURES = (  # bytes, their offset, and the suffix by which the file is then read
    (b"DICM", 128, ".dcm"),
    (b"\x89PNG\r\n\x1a\n", 0, ".png"),
    (b"\xff\xd8\xff", 0, ".jpg"),
    *((mark, 0, ".tif") for mark in TIFF_MARKS),
    (b"BM", 0, ".bmp"),
    (b"WEBP", 8, ".webp"),
    (b"n+1\0", 344, ".nii"),
    (b"n+2\0", 4, ".nii"),
)
MIDDLE = SliceRule.parse("index=middle")
_NOT_AN_IMAGE = f"The file is not a {FORMATS} image. Choose another."
_DAMAGED = "The file is damaged or incomplete. Save it again, or choose another."
_NAME = 60  # characters of a file name that are shown
_START = 30  # of these, how many from the start
_MAX_FILES = 2000  # of one upload
_MAX_UNPACKED = 2_000_000_000  # bytes of a volume
_NAMED = 3  # files that could not be read
_HEADER = 348  # bytes of a file by which it is recognised


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
        model's cases. Where each file was a case, a volume, clip or slide is one by itself. Other
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


async def receive_files(request: Request, folder: Path) -> dict[Path, str]:
    """Write the body, or the files of a form, into a folder; with the user's names for them."""
    from starlette.datastructures import UploadFile

    kind = request.headers.get("content-type", "").lower()
    if not kind.startswith("multipart/form-data"):
        file = folder / "0"
        name = display_name(request.query_params.get("name", ""))
        return {file: name} if await receive_file(request, file) else {}
    files: dict[Path, str] = {}
    async with request.form(max_files=_MAX_FILES) as form:
        parts = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
        for number, part in enumerate(parts):
            file = folder / str(number)
            with file.open("wb") as target:
                shutil.copyfileobj(part.file, target)
            files[file] = display_name(part.filename or "")
    return files


async def receive_file(request: Request, file: Path) -> int:
    """Write the body of a request to a file; how many bytes it had."""
    with file.open("wb") as target:
        async for chunk in request.stream():
            target.write(chunk)
        return target.tell()


@dataclass(frozen=True)
class UploadReader:
    """Decodes uploads; `frame` is used for a file with several frames or slices."""

    max_pixels: int
    frame: SliceRule = MIDDLE

    def read(self, files: Mapping[Path, str], *, whole: bool = False) -> Upload:
        """Decode an upload; with `whole`, its files may be volumes or slides to take whole.

        What cannot be read is named in the note, unless it is all of the files.
        """
        names: dict[Path, str] = {}
        images: list[ImageRef] = []
        first: NDArray[np.uint8] | None = None
        unread: list[str] = []
        notes: list[str] = []
        for received, name in files.items():
            try:
                file, suffix = _with_suffix(received)
                image, note = self._part(file, suffix)
                pixels = self._pixels(image, suffix, whole=whole)
            except OgkdError as error:
                unread.append(f"{name}: {error}" if len(files) > 1 else str(error))
                continue
            names[file] = name
            images.append(image)
            first = pixels if first is None else first
            if note and not whole:
                notes.append(f"{name}: {note}" if len(files) > 1 else note)
        if first is None:
            raise DataError(unread[0])
        if unread:
            notes.append(f"Not used ({len(unread)}): {'; '.join(unread[:_NAMED])}")
        return Upload(names, images, first, " ".join(notes))

    def _part(self, file: Path, suffix: str) -> tuple[ImageRef, str]:
        """The image of a file to show, and of several the words that say which."""
        if suffix == ".dcm" and (frames := frame_count(file)) > 1:
            part = self.frame.frame
            return ImageRef(file, part), f"The file has {frames} frames; the frame {part} is used."
        if suffix.startswith(".nii"):
            axis = AXIAL if self.frame.axis is None else self.frame.axis
            part = str(SliceRule(axis, self.frame.index))
            return ImageRef(file, part), f"The file is a volume; the slice {part} is used."
        return ImageRef(file), ""

    def _pixels(self, image: ImageRef, suffix: str, *, whole: bool) -> NDArray[np.uint8]:
        file, limit = image.file, self.max_pixels
        try:
            if suffix == ".dcm":
                return read_dicom(file, image.part, max_pixels=limit)
            if suffix.startswith(".nii"):
                if (size := declared_bytes(file)) > _MAX_UNPACKED:
                    most = f"the limit of {_MAX_UNPACKED / 1e9:g} GB"
                    raise DataError(f"The file unpacks to {size / 1e9:.1f} GB, more than {most}.")
                return read_nifti(file, image.part, max_pixels=limit)
            if whole and is_slide(file):
                return overview(file)
            return read_plain(file, max_pixels=limit)
        except OgkdError as error:
            raise type(error)(str(error).replace(str(file), "The file")) from None
        except UnidentifiedImageError:
            raise DataError(_NOT_AN_IMAGE) from None
        except Image.DecompressionBombError:
            most = f"the limit of {limit:,}. Scale it down first."
            raise DataError(f"The file declares far more pixels than {most}") from None
        except Exception as error:  # decoders raise all kinds of errors on malformed files
            raise DataError(_DAMAGED) from error


def display_name(name: str) -> str:
    """A file name without folders and odd characters, and not too long to show."""
    clean = re.sub(r"[^\w. ()+-]", "_", Path(name).name).strip(" .") or "image"
    if len(clean) > _NAME:  # keep both ends and show that something is missing
        clean = f"{clean[:_START]}...{clean[_START + 3 - _NAME :]}"
    return clean


def _with_suffix(received: Path) -> tuple[Path, str]:
    """The file with the suffix of its content, by which it is read."""
    with received.open("rb") as stream:
        start, packed = stream.read(_HEADER), ""
    if start.startswith(b"\x1f\x8b"):
        with contextlib.suppress(OSError, EOFError, zlib.error), gzip.open(received) as stream:
            start, packed = stream.read(_HEADER), ".gz"
    for signature, offset, suffix in _SIGNATURES:
        matches = start[offset : offset + len(signature)] == signature
        if matches and (suffix == ".nii" or not packed):
            return received.rename(received.with_name(f"{received.name}{suffix}{packed}")), (
                suffix + packed
            )
    raise DataError(_NOT_AN_IMAGE)


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
    several = kind in ("nifti", "slide") or is_slide(file)
    if by is None and (several or (kind == "dicom" and frame_count(file) > 1)):
        return "", str(file)
    if kind != "dicom":
        return "", ""
    try:
        series = Series.of(file)
    except DataError:  # reading the image will say why
        return "", ""
    name, uid = series.study_name, series.study
    if by in (None, "series"):
        name, uid = series.series_name, series.series
    return (name, uid) if uid else ("", "")
