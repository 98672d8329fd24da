"""Uploaded files: used once, identified by their first bytes, decoded within limits, deleted."""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ogkd.app.exams import listed
from ogkd.errors import DataError, OgkdError
from ogkd.images import ImageRef, SliceRule
from ogkd.images.dicom import frame_count, read_dicom
from ogkd.images.nifti import declared_bytes, read_nifti
from ogkd.images.plain import TIFF_MARKS, read_plain
from ogkd.images.slices import AXIAL
from ogkd.images.slide import is_slide, overview

FORMATS = "PNG, JPEG, TIFF, BMP, WebP, DICOM or NIfTI"
_MARKS = (  # bytes, where they are, and the ending by which the file is then read
    (b"DICM", 128, ".dcm"),
    (b"\x89PNG\r\n\x1a\n", 0, ".png"),
    (b"\xff\xd8\xff", 0, ".jpg"),
    *((mark, 0, ".tif") for mark in TIFF_MARKS),
    (b"BM", 0, ".bmp"),
    (b"WEBP", 8, ".webp"),
    (b"n+1\0", 344, ".nii"),
    (b"n+2\0", 4, ".nii"),
)
_NOT_AN_IMAGE = f"The file is not a {FORMATS} image. Choose another."
_DAMAGED = "The file is damaged or incomplete. Save it again, or choose another."
_ABANDONED = 600.0  # seconds after which an upload that was never used is removed
_NAME = 60  # characters of a file name that are kept; at 4 bytes each they still fit
_START = 30  # of these, how many from the start
_MOST_FILES = 2000  # of one upload
_HEAD = 348  # bytes of a file by which it is recognised


@dataclass(frozen=True)
class Upload:
    """One image, or the files of an exam, of which `image` is then the one to show."""

    name: str  # the user's name for it
    image: ImageRef
    pixels: NDArray[np.uint8]  # [H, W, 3]
    note: str = ""  # which part of the file was used
    files: Mapping[Path, str] = field(default_factory=dict)  # all, with the user's names for them

    def in_user_words(self, text: str) -> str:
        """A message with the user's names for the files, not ours."""
        for file, name in self.files.items():
            text = text.replace(str(file), name)
        return text


class Uploads:
    """The folder of all uploads; each is in a separate folder whose name cannot be guessed."""

    def __init__(
        self,
        folder: Path,
        *,
        max_pixels: int,
        frame: str = "index=middle",
        most: int = 512,
        most_bytes: int = 2_000_000_000,
    ) -> None:
        self.folder = folder.resolve()
        self.most, self.most_bytes = most, most_bytes  # of waiting uploads, in number and in size
        self.max_pixels = max_pixels
        self.frame = SliceRule.parse(frame)  # used for a file with several frames

    def place(self, name: str) -> Path:
        """Where to write a new upload with this name; a DataError if too much waits already."""
        self.sweep()
        count, size = 0, 0
        for own in self.folder.iterdir():
            count += 1
            with contextlib.suppress(OSError):  # answered and deleted meanwhile
                size += sum(file.stat().st_size for file in own.rglob("*") if file.is_file())
        if count >= self.most or size >= self.most_bytes:
            raise DataError("Too many uploads are waiting. Try again in a minute.")
        own = self.folder / uuid.uuid4().hex
        own.mkdir(mode=0o700)
        return own / _clean(name)

    def place_of_part(self, own: Path, name: str) -> Path:
        """Where to write one of several files of an upload, whose folder is `own`."""
        if (number := sum(1 for _ in own.iterdir())) >= _MOST_FILES:
            raise DataError(f"An exam may have up to {_MOST_FILES:,} files.")
        part = own / str(number)
        part.mkdir()
        return part / _clean(name)

    @contextlib.contextmanager
    def take(self, *files: Path, exam: bool = False) -> Iterator[Upload]:
        """Decode an upload; it is deleted at the end, whatever happens.

        With `exam` its files belong together, and a file may be a volume or a slide.
        """
        try:
            yield self._exam(files) if exam else self._read(files)
        finally:
            for file in files:
                own = self.folder / file.relative_to(self.folder).parts[0]
                shutil.rmtree(own, ignore_errors=True)

    def sweep(self) -> None:
        for own in self.folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - own.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(own, ignore_errors=True)

    def _read(self, files: Sequence[Path]) -> Upload:
        if len(files) > 1:
            raise DataError("This model answers one image at a time. Send one file.")
        file, ending = _renamed(files[0])
        image, note = self._part(file, ending)
        return Upload(files[0].name, image, self._pixels(image, ending), note, {file: "The file"})

    def _exam(self, files: Sequence[Path]) -> Upload:
        """What cannot be read is removed and named in the note, unless it is all of the files."""
        names: dict[Path, str] = {}
        first: Upload | None = None
        lost: list[str] = []
        for upload in files:
            try:
                file, ending = _renamed(upload)
                image, _ = self._part(file, ending)
                pixels = self._pixels(image, ending, exam=True)
            except OgkdError as error:
                lost.append(f"{upload.name}: {error}")
                continue
            names[file] = upload.name
            first = first or Upload(upload.name, image, pixels)
        if first is None:
            raise DataError(lost[0] if len(lost) > 1 else lost[0].partition(": ")[2])
        note = f"Not used ({len(lost)}): {'; '.join(lost[:3])}" if lost else ""
        return replace(first, name=listed(list(names.values())), files=names, note=note)

    def _part(self, file: Path, ending: str) -> tuple[ImageRef, str]:
        """The picture of a file to show, and of several the words that say which."""
        if ending == ".dcm" and (frames := frame_count(file)) > 1:
            part = self.frame.frame
            return ImageRef(file, part), f"The file has {frames} frames; the frame {part} is used."
        if ending.startswith(".nii"):
            axis = AXIAL if self.frame.axis is None else self.frame.axis
            part = str(SliceRule(axis, self.frame.index))
            return ImageRef(file, part), f"The file is a volume; the slice {part} is used."
        return ImageRef(file), ""

    def _pixels(self, image: ImageRef, ending: str, *, exam: bool = False) -> NDArray[np.uint8]:
        file, limit = image.file, self.max_pixels
        try:
            if ending == ".dcm":
                return read_dicom(file, image.part, max_pixels=limit)
            if ending.startswith(".nii"):
                if (size := declared_bytes(file)) > self.most_bytes:
                    most = f"the limit of {self.most_bytes / 1e9:g} GB"
                    raise DataError(f"The file unpacks to {size / 1e9:.1f} GB, more than {most}.")
                return read_nifti(file, image.part, max_pixels=limit)
            if exam and is_slide(file):
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


def _clean(name: str) -> str:
    """Only what is harmless in a path and in a page; the extension is not used."""
    clean = re.sub(r"[^\w. ()+-]", "_", Path(name).name).strip(" .") or "image"
    if len(clean) > _NAME:  # keep both ends and show that something is missing
        clean = f"{clean[:_START]}...{clean[_START + 3 - _NAME :]}"
    return clean


def _renamed(upload: Path) -> tuple[Path, str]:
    """The file under our own name: an extension or # in the user's must have no effect."""
    ending = _ending(upload)
    return upload.rename(upload.with_name(f"image{ending}")), ending


def _ending(upload: Path) -> str:
    with upload.open("rb") as stream:
        start, packed = stream.read(_HEAD), ""
    if start.startswith(b"\x1f\x8b"):
        with contextlib.suppress(OSError, EOFError, zlib.error), gzip.open(upload) as stream:
            start, packed = stream.read(_HEAD), ".gz"
    for mark, place, ending in _MARKS:
        if start[place : place + len(mark)] == mark and (ending == ".nii" or not packed):
            return ending + packed
    raise DataError(_NOT_AN_IMAGE)
