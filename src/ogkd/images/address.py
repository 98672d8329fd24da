"""Where an image is: a file, and for volumes and arrays which slice, frame or row of it.

`scan.nii.gz#axis=2,index=40`, `cine.dcm#index=middle`, `pneumoniamnist.npz#test/12`. A plain
image has no such ending.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ogkd.errors import ConfigError, DataError
from ogkd.files import sha256_file

__all__ = [
    "Kind",
    "SliceRule",
    "content_key",
    "file_of",
    "fragment_of",
    "kind_of",
    "parse_rule",
    "with_slice",
]

Kind = Literal["plain", "dicom", "nifti", "npz"]

PLAIN = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
DICOM = (".dcm", ".dicom")
NIFTI = (".nii", ".nii.gz")
_WORDS = ("first", "middle", "last")
_FRAGMENT = re.compile(r"#((?:axis|index)=[^#/]*|(?:train|val|test)/\d+)$")
_FORMS = "axis=0|1|2,index=N or index=N, where N counts from 0 or is first, middle or last"


@dataclass(frozen=True)
class SliceRule:
    """Which slice of a volume: along which axis, at which place."""

    axis: int | None
    index: int | str  # a number from 0 on, or first, middle, last

    def __str__(self) -> str:
        return self.place if self.axis is None else f"axis={self.axis},{self.place}"

    @property
    def place(self) -> str:
        """The rule without its axis, for frames."""
        return f"index={self.index}"

    def position(self, count: int) -> int:
        """The place among `count` slices; ValueError where there is none."""
        if isinstance(self.index, str):
            return {"first": 0, "middle": count // 2, "last": count - 1}[self.index]
        if self.index >= count:
            raise ValueError(f"index={self.index}, but there are only {count} (0 to {count - 1})")
        return self.index


def parse_rule(text: str) -> SliceRule:
    """Read "axis=2,index=middle" or "index=40"; ConfigError for anything else."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key in found or key not in ("axis", "index"):
            raise ConfigError(f"'{text}' does not say which slice. Write {_FORMS}.")
        found[key] = value
    axis, index = found.get("axis"), found.get("index", "")
    number = re.fullmatch(r"[0-9]{1,9}", index)
    if axis not in (None, "0", "1", "2") or not (number or index in _WORDS):
        raise ConfigError(f"'{text}' does not say which slice. Write {_FORMS}.")
    return SliceRule(None if axis is None else int(axis), int(index) if number else index)


def split_address(path: Path) -> tuple[Path, str]:
    """The file and the text after '#'; a file that really has '#' in its name is that file."""
    text = str(path)
    if "#" not in text or os.path.lexists(text):
        return path, ""
    for place in reversed([match.start() for match in re.finditer("#", text)]):
        if os.path.isfile(text[:place]):  # noqa: PTH113 - pathlib raises where this says no
            return Path(text[:place]), text[place + 1 :]
    if match := _FRAGMENT.search(text):
        return Path(text[: match.start()]), match.group(1)
    return path, ""


def file_of(path: str | Path) -> Path:
    """The file itself."""
    return split_address(Path(path))[0]


def fragment_of(path: str | Path) -> str:
    """What follows the '#', or nothing."""
    return split_address(Path(path))[1]


def kind_of(file: Path) -> Kind:
    """The family of a file, by its ending; files without a known ending are looked into."""
    name = file.name.lower()
    if name.endswith(PLAIN):
        return "plain"
    if name.endswith(DICOM):
        return "dicom"
    if name.endswith(NIFTI):
        return "nifti"
    if name.endswith(".npz"):
        return "npz"
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


def with_slice(path: str | Path, rule: str | SliceRule) -> Path:
    """Add the rule to a volume that has none; anything else stays as it is.

    A volume is a NIfTI file, or a DICOM file with several frames (frames have no axis, so
    only the index is added there).
    """
    path = Path(path)
    chosen = parse_rule(rule) if isinstance(rule, str) else rule
    file, fragment = split_address(path)
    if fragment:
        return path
    kind = kind_of(file)
    if kind == "nifti":
        return Path(f"{path}#{chosen}")
    if kind == "dicom":
        from ogkd.images.dicom import frame_count

        if frame_count(file) > 1:
            return Path(f"{path}#{chosen.place}")
    return path


def content_key(path: str | Path) -> str:
    """64 hex digits that say what is at an address: the file's bytes, and which part of it."""
    file, fragment = split_address(Path(path))
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would never end
            raise DataError(f"{file} is not a regular file. Give image files or folders of them.")
        if not fragment:
            return sha256_file(file)
        digest = _digest_once(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"Cannot read {file}: {reason}. Check the path.") from error
    return hashlib.sha256(os.fsencode(f"{digest}#{fragment}")).hexdigest()


_digests: dict[tuple[str, int, int, int], str] = {}
_digests_lock = threading.Lock()


def _digest_once(file: Path) -> str:
    """The digest of a file that many addresses share, computed once while it stays the same."""
    facts = file.stat()
    key = (str(file.absolute()), facts.st_ino, facts.st_size, facts.st_mtime_ns)
    with _digests_lock:
        if key not in _digests:
            if len(_digests) > 10_000:
                _digests.clear()
            _digests[key] = sha256_file(file)
        return _digests[key]
