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
from ogkd.images.plain import read_plain

_MARKS = ((b"\x89PNG\r\n\x1a\n", 0, ".png"), (b"\xff\xd8\xff", 0, ".jpg"), (b"DICM", 128, ".dcm"))
_NOT_AN_IMAGE = "The file is not a PNG, JPEG or DICOM image. Choose another."
_DAMAGED = "The file is damaged or incomplete. Save it again, or choose another."
_ABANDONED = 3600.0  # seconds after which an upload that was never used is removed
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

    def __init__(self, folder: Path, *, max_pixels: int, frame: str = "index=middle") -> None:
        self.folder = folder.resolve()
        self.max_pixels = max_pixels
        self.frame = SliceRule.parse(frame)  # used for a file with several frames

    def place(self, name: str) -> Path:
        """Where to write a new upload with this name."""
        self.sweep()
        # Keep only what is harmless in a path and in a page; the extension is not used.
        clean = re.sub(r"[^\w. ()+-]", "_", Path(name).name).strip(" .") or "image"
        if len(clean) > _NAME:  # keep both ends and show that something is missing
            clean = f"{clean[:_START]}...{clean[_START + 3 - _NAME :]}"
        own = self.folder / uuid.uuid4().hex
        own.mkdir(mode=0o700)
        return own / clean

    def find(self, path: str) -> Path:
        """The upload at a path from a request; any other path is a DataError."""
        asked = Path(path)
        inside = asked.is_absolute() and asked.parent.parent == self.folder
        if not (inside and re.fullmatch(r"[0-9a-f]{32}", asked.parent.name)):
            raise DataError("This is not an uploaded file. Upload the image first.")
        if asked.is_symlink() or not asked.is_file():
            raise DataError("This upload is gone: each is used once. Upload the image again.")
        return asked

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
