"""Uploaded files: used once, identified by their first bytes, decoded within limits, deleted."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ogkd.errors import DataError, OgkdError
from ogkd.images import ImageRef, SliceRule
from ogkd.images.dicom import frame_count, read_dicom
from ogkd.images.plain import TIFF_MARKS, read_plain

FORMATS = "PNG, JPEG, TIFF, BMP, WebP or DICOM"
_MARKS = (  # bytes, where they are, and the ending by which the file is then read
    (b"DICM", 128, ".dcm"),
    (b"\x89PNG\r\n\x1a\n", 0, ".png"),
    (b"\xff\xd8\xff", 0, ".jpg"),
    *((mark, 0, ".tif") for mark in TIFF_MARKS),
    (b"BM", 0, ".bmp"),
    (b"WEBP", 8, ".webp"),
)
_NOT_AN_IMAGE = f"The file is not a {FORMATS} image. Choose another."
_DAMAGED = "The file is damaged or incomplete. Save it again, or choose another."
_ABANDONED = 600.0  # seconds after which an upload that was never used is removed
_NAME = 60  # characters of a file name that are kept; at 4 bytes each they still fit
_START = 30  # of these, how many from the start


@dataclass(frozen=True)
class Upload:
    name: str  # the user's name for it
    image: ImageRef
    pixels: NDArray[np.uint8]  # [H, W, 3]
    note: str = ""


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
        files, size = 0, 0
        for own in self.folder.iterdir():
            with contextlib.suppress(OSError):  # answered and deleted meanwhile
                sizes = [file.stat().st_size for file in own.iterdir()]
                files, size = files + len(sizes), size + sum(sizes)
        if files >= self.most or size >= self.most_bytes:
            raise DataError("Too many uploads are waiting. Try again in a minute.")
        # Keep only what is harmless in a path and in a page; the extension is not used.
        clean = re.sub(r"[^\w. ()+-]", "_", Path(name).name).strip(" .") or "image"
        if len(clean) > _NAME:  # keep both ends and show that something is missing
            clean = f"{clean[:_START]}...{clean[_START + 3 - _NAME :]}"
        own = self.folder / uuid.uuid4().hex
        own.mkdir(mode=0o700)
        return own / clean

    @contextlib.contextmanager
    def take(self, upload: Path) -> Iterator[Upload]:
        """Decode an upload; it is deleted at the end, whatever happens."""
        try:
            yield self._read(upload)
        finally:
            shutil.rmtree(upload.parent, ignore_errors=True)

    def sweep(self) -> None:
        for own in self.folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - own.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(own, ignore_errors=True)

    def _read(self, upload: Path) -> Upload:
        ending = _ending(upload)
        # Rename it: an extension or # in the user's name must have no effect.
        file = upload.rename(upload.with_name(f"image{ending}"))
        fragment = note = ""
        try:
            if ending == ".dcm":
                if (frames := frame_count(file)) > 1:
                    fragment = self.frame.frame
                    note = f"The file has {frames} frames; the frame {fragment} is used."
                pixels = read_dicom(file, fragment, max_pixels=self.max_pixels)
            else:
                pixels = read_plain(file, max_pixels=self.max_pixels)
        except OgkdError as error:
            raise type(error)(str(error).replace(str(file), "The file")) from None
        except UnidentifiedImageError:
            raise DataError(_NOT_AN_IMAGE) from None
        except Image.DecompressionBombError:
            limit = f"the limit of {self.max_pixels:,}. Scale it down first."
            raise DataError(f"The file declares far more pixels than {limit}") from None
        except Exception as error:  # decoders raise all kinds of errors on malformed files
            raise DataError(_DAMAGED) from error
        return Upload(upload.name, ImageRef(file, fragment), pixels, note)


def _ending(upload: Path) -> str:
    with upload.open("rb") as stream:
        start = stream.read(132)
    for mark, place, ending in _MARKS:
        if start[place : place + len(mark)] == mark:
            return ending
    raise DataError(_NOT_AN_IMAGE)
