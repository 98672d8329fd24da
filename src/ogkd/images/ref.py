"""Where a picture is: a file, and for volumes and arrays which slice, frame or row of it.

Its text form is `scan.nii.gz#axis=2,index=40`, `cine.dcm#index=middle` or
`pneumoniamnist.npz#test/12`; a plain image file has no part.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ogkd.errors import ConfigError, DataError, OgkdError
from ogkd.files import sha256_file

Kind = Literal["plain", "dicom", "nifti", "npz"]

ENDINGS: dict[Kind, tuple[str, ...]] = {
    "plain": (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"),
    "dicom": (".dcm", ".dicom"),
    "nifti": (".nii", ".nii.gz"),
    "npz": (".npz",),
}
INSTALL = 'To read DICOM and NIfTI: pip install "ogkd[dicom]".'
WHICH_SLICE = (
    "Choose one with `slice`, such as axis=2,index=middle or index=middle, or set `slices`."
)
_RULE = re.compile(
    r"\s*(?:axis\s*=\s*([012])\s*,)?\s*index\s*=\s*([0-9]{1,9}|first|middle|last)\s*"
)
AXIAL = 2
_SLICES = re.compile(r"(?:axis=([012]),)?(?:all|every=([1-9]\d{0,5})|N=([1-9]\d{0,5}))")
STORED = "stored"  # the part of an image that is not to be turned upright
_PART = re.compile(rf"#((?:axis|index)=[^#/]*|(?:train|val|test)/\d+|{STORED})$")


@dataclass(frozen=True)
class SliceRule:
    """Which slice of a volume: along which axis, at which position."""

    axis: int | None
    index: int | str  # a number from 0 on, or first, middle, last

    @classmethod
    def parse(cls, text: str) -> SliceRule:
        """Read "axis=2,index=middle" or "index=40"; anything else is a ConfigError."""
        match = _RULE.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"'{text}' does not name a slice: it must be axis=0|1|2,index=N or index=N, where "
                "N counts from 0 or is first, middle or last.",
                argument="slice",
            )
        axis, index = match.groups()
        return cls(None if axis is None else int(axis), int(index) if index.isdecimal() else index)

    def __str__(self) -> str:
        return self.frame if self.axis is None else f"axis={self.axis},{self.frame}"

    @property
    def frame(self) -> str:
        """The rule without its axis: frames of a clip have none."""
        return f"index={self.index}"

    def position(self, file: Path, count: int) -> int:
        """The position among the `count` slices of a file."""
        if isinstance(self.index, str):
            return {"first": 0, "middle": count // 2, "last": count - 1}[self.index]
        if self.index >= count:
            raise DataError(
                f"{file}: index={self.index}, but there are only {count}.", argument="slice"
            )
        return self.index


@dataclass(frozen=True)
class SlicesRule:
    """Which slices or frames: every `step`-th, or `count` of them evenly spaced; along which axis.

    Slices with nothing in them are left out before.
    """

    axis: int = AXIAL
    step: int = 1
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> SlicesRule:
        """Read "all", "every=4" or "N=16", perhaps after "axis=1,"; else a ConfigError."""
        match = _SLICES.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"'{text}' does not name slices, such as all, every=4, N=16 or axis=1,all.",
                argument="slices",
            )
        axis, step, count = match.groups()
        return cls(int(axis or AXIAL), int(step or 1), None if count is None else int(count))

    def __str__(self) -> str:
        which = "all" if self.step == 1 else f"every={self.step}"
        which = which if self.count is None else f"N={self.count}"
        return which if self.axis == AXIAL else f"axis={self.axis},{which}"

    @property
    def middle(self) -> SliceRule:
        """The slice to take where only one is wanted."""
        return SliceRule(self.axis, "middle")

    def choose(self, indices: Sequence[int]) -> list[int]:
        """Some of the indices, in their order; the ends are not preferred.

        >>> SlicesRule.parse("N=2").choose(range(10, 20)), SlicesRule.parse("every=4").choose([7])
        ([12, 17], [7])
        """
        if not indices:
            return []
        if self.count is None:
            return list(indices[min(self.step // 2, len(indices) - 1) :: self.step])
        count = min(self.count, len(indices))
        return [indices[(2 * k + 1) * len(indices) // (2 * count)] for k in range(count)]


def slice_in(file: Path, fragment: str, what: str) -> SliceRule:
    """The rule after the # of a file's address."""
    try:
        return SliceRule.parse(fragment)
    except ConfigError as error:
        reason = f"'{fragment}' does not name one of them" if fragment else "none is chosen"
        raise DataError(f"{file} {what}, and {reason}. {WHICH_SLICE}", argument="slice") from error


def needs_extra(file: Path, what: str) -> DataError:
    """An error of this file alone: the others of a folder are read all the same."""
    return DataError(f"{file} is {what}, and the package that reads it is not installed. {INSTALL}")


@contextmanager
def decoding(file: Path) -> Iterator[None]:
    """Whatever a decoder raises on a damaged file, as one DataError that names the file."""
    try:
        yield
    except OgkdError:
        raise
    except Exception as error:  # pydicom, nibabel, gzip and others raise many kinds
        raise damaged(file, error) from error


def damaged(file: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return DataError(f"{file} is damaged or cut short ({reason}).")


@dataclass(frozen=True)
class ImageRef:
    """One picture: a file and, if the file contains several, the part that is meant.

    The same object travels from the reader of a dataset to the end of the command, so a file is
    hashed once, however often its key is asked for.
    """

    file: Path
    part: str = ""

    @classmethod
    def of(cls, image: str | Path | ImageRef) -> ImageRef:
        """Read an address; a file that really has '#' in its name is that file."""
        if isinstance(image, ImageRef):
            return image
        text = str(image)
        if "#" not in text or os.path.lexists(text):
            return cls(Path(image))
        file, mark, part = text.rpartition("#")
        while mark and not os.path.isfile(file):  # noqa: PTH113 - pathlib raises where this says no
            file, mark, more = file.rpartition("#")
            part = f"{more}#{part}"
        if mark:
            return cls(Path(file), part)
        match = _PART.search(text)
        return cls(Path(text[: match.start()]), match[1]) if match else cls(Path(image))

    def __str__(self) -> str:
        return f"{self.file}#{self.part}" if self.part else str(self.file)

    @property
    def name(self) -> str:
        """The address without its folders."""
        return str(ImageRef(Path(self.file.name), self.part))

    def as_posix(self) -> str:
        """The address with forward slashes, the same on every system."""
        return Path(str(self)).as_posix()

    @cached_property
    def key(self) -> str:
        """64 hex digits that identify the content: the file's bytes, and which part of it."""
        try:
            if not stat.S_ISREG(self.file.stat().st_mode):  # a pipe would never end
                raise DataError(f"{self.file} is not a regular file.")
            if not self.part:
                return sha256_file(self.file)
            with _digest_lock:  # a second thread waits for the digest, or would compute it too
                digest = _digest_of(self.file, file_state(self.file))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise DataError(f"Cannot read {self.file}: {reason}. Check the path.") from error
        return hashlib.sha256(os.fsencode(f"{digest}#{self.part}")).hexdigest()

    @property
    def fingerprint(self) -> str:
        """16 hex digits that recognise the image again and reveal nothing else about it."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @cached_property
    def pixel_fingerprint(self) -> str:
        """The same for the pixels, so that a copy in another lossless format is recognised too."""
        from ogkd.images.decode import read_image

        return self.note_pixels(read_image(self))

    def note_pixels(self, pixels: NDArray[np.uint8]) -> str:
        """Remember the fingerprint of decoded pixels, so that nobody decodes them for it."""
        from ogkd.images.decode import pixel_digest

        digest = hashlib.sha256(pixel_digest(pixels)).hexdigest()[:16]
        return str(self.__dict__.setdefault("pixel_fingerprint", digest))

    def sliced(self, rule: SliceRule | None) -> ImageRef:
        """The slice of `rule` if this is a whole volume; any other image as it is.

        A volume is a NIfTI file, or a DICOM file with several frames (frames have no axis, so
        only the index is used there).
        """
        kind = "" if rule is None or self.part else kind_of(self.file)
        if rule is not None and kind == "nifti":
            return replace(self, part=str(rule))
        from ogkd.images.dicom import frame_count

        if rule is not None and kind == "dicom" and frame_count(self.file) > 1:
            return replace(self, part=rule.frame)
        return self


def as_stored(image: ImageRef) -> ImageRef:
    """The picture as stored in its file, without the rotation of its EXIF orientation."""
    from ogkd.images.plain import is_turned

    plain = not image.part and kind_of(image.file) == "plain"
    return replace(image, part=STORED) if plain and is_turned(image.file) else image


@dataclass(frozen=True)
class Broken(ImageRef):
    """A file whose pictures could not be found: reading it says why."""

    reason: str = ""


def kind_of(file: Path) -> Kind:
    """The family of a file, by its ending; files without a known ending are inspected."""
    name = file.name.lower()
    for kind, endings in ENDINGS.items():
        if name.endswith(endings):
            return kind
    return "dicom" if starts_as_dicom(file) else "plain"


def starts_as_dicom(file: Path) -> bool:
    """Whether the file has DICOM's mark: DICM after 128 bytes."""
    try:
        if not file.is_file():  # opening a pipe would wait for a writer
            return False
        with file.open("rb") as stream:
            return stream.read(132)[128:] == b"DICM"
    except (OSError, ValueError):
        return False


def file_state(file: Path) -> tuple[int, ...]:
    """What changes with a file's content: part of the key of everything kept about the file."""
    facts = file.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


_digest_lock = threading.Lock()


@lru_cache(maxsize=10_000)
def _digest_of(file: Path, _state: tuple[int, ...]) -> str:
    """The digest of a file that many parts share, computed once while the file is unchanged."""
    return sha256_file(file)
