"""Unpack zip archives without trusting them: every entry is checked before the first is written.

Refused: absolute paths, `..`, links, devices, drive letters, backslashes, encryption, entries
that collide or overlap, and archives with too many, too large or too densely packed entries.
"""

from __future__ import annotations

import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ogkd.download import check_space
from ogkd.errors import DataError, OgkdError
from ogkd.progress import progress_bar

_CHUNK = 1 << 20
_DRIVE = re.compile("^[A-Za-z]:")
_MACOS = "__MACOSX"  # shadow files that the Finder adds
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    IndexError,
    RuntimeError,
    ValueError,
)
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class Limits:
    total: int = 64 * 1024**3  # bytes
    members: int = 400_000
    ratio: float = 200.0  # unpacked / packed; images stay near 1, text below 50
    free: int = 1 << 20  # a member of up to this size may be packed at any ratio


_Member = tuple[str, zipfile.ZipInfo]  # a path, normalised, with slashes; and what is there


def extract_into(archive: Path, folder: Path, *, limits: Limits | None = None) -> None:
    """Unpack a zip into `folder`, which must be empty or new."""
    if not archive.is_file():
        raise DataError(f"There is no archive {archive}. Check the path.")
    with _damage(archive), zipfile.ZipFile(archive) as opened:
        members = _members(archive, opened, limits or Limits())
        _check_collisions(archive, members)
        total = sum(info.file_size for _, info in members)
        remedy = "choose another folder (OGKD_DATA sets the one for all benchmarks)"
        check_space({folder: total}, what=f"{archive.name}, unpacked,", remedy=remedy)
        folder.mkdir(parents=True, exist_ok=True)
        with progress_bar(f"Unpacking {archive.name}", len(members)) as bar:
            for name, info in members:
                if name.split("/")[0] != _MACOS:
                    _write(archive, opened, info, folder / name)
                bar.advance()


def _write(archive: Path, opened: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
    if info.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    # "x": never overwrite anything, least of all through a link.
    with opened.open(info) as source, path.open("xb") as file:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            if written > info.file_size:
                raise _refused(archive, info.filename, "is larger than the archive says")
            file.write(chunk)
    if written != info.file_size:
        raise _broken(archive, f"{info.filename} is incomplete")


def _members(archive: Path, opened: zipfile.ZipFile, limits: Limits) -> list[_Member]:
    infos = opened.infolist()
    if len(infos) > (most := limits.members):
        raise _refused(archive, infos[most].filename, f"is one of more than {most:,}")
    total = 0
    members = []
    for info in infos:
        name = _safe_name(archive, info.orig_filename, is_folder=info.is_dir())
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise _refused(archive, name, "is a link or a device")
        if info.header_offset < 0:
            raise _broken(archive, f"{name} lies outside of it")
        if info.flag_bits & 0x1:
            raise _refused(archive, name, "is encrypted")
        if info.compress_type not in _PLAIN:
            raise _refused(archive, name, "is compressed in a way that is not supported")
        total += info.file_size
        if info.file_size < 0 or total > limits.total:
            raise _refused(archive, name, f"makes it larger than {limits.total / 1e9:,.1f} GB")
        if info.file_size > limits.free and info.file_size > limits.ratio * info.compress_size:
            raise _refused(archive, name, "is packed too densely, as in a zip bomb")
        members.append((name, info))
    _check_overlaps(archive, infos, opened.start_dir)
    return members


def _check_overlaps(archive: Path, infos: Sequence[zipfile.ZipInfo], end: int) -> None:
    """Refuse entries that share bytes: they let a small archive grow without bounds."""
    ordered = sorted(infos, key=lambda info: info.header_offset)
    starts = [info.header_offset for info in ordered[1:]] + [end]
    for info, next_start in zip(ordered, starts, strict=True):
        # 30 bytes are the fixed part of an entry's header.
        if info.header_offset + 30 + info.compress_size > next_start:
            raise _refused(archive, info.filename, "shares its bytes with another entry")


def _safe_name(archive: Path, raw: str, *, is_folder: bool) -> str:
    """Normalise an entry's path; raise if it could lead out of the folder."""
    shown = raw.encode("unicode_escape").decode()[:200]
    if raw.startswith("/") or "\\" in raw or any(ord(letter) < 32 for letter in raw):
        raise _refused(archive, shown, "has a path that is not plain and relative")
    parts = [unicodedata.normalize("NFC", part) for part in raw.split("/")]
    parts = [part for part in parts if part not in ("", ".")]
    if ".." in parts or any(_DRIVE.match(part) for part in parts):
        raise _refused(archive, shown, "has a path that leads out of the folder")
    try:
        too_long = any(len(part.encode()) > 255 for part in parts)
    except UnicodeEncodeError as error:
        raise _refused(archive, shown, "has a name that is not text") from error
    if too_long or len(raw) > 2000:
        raise _refused(archive, shown, "has a name that is too long")
    if not parts and not is_folder:
        raise _refused(archive, shown, "has no name")
    return "/".join(parts)


def _check_collisions(archive: Path, members: Sequence[_Member]) -> None:
    """Refuse entries that would be the same file, or a file and a folder, on any file system."""
    known: dict[str, tuple[str, bool]] = {}  # folded path -> (path, whether it is a file)
    for name, info in members:
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            is_file = depth == len(parts) and not info.is_dir()
            seen = known.get(path.casefold())
            # Many entries may share a folder, if they spell it alike; a file has one entry.
            if seen is not None and (is_file or seen != (path, False)):
                raise _refused(archive, path, f"collides with '{seen[0]}'")
            known[path.casefold()] = (path, is_file)


@contextmanager
def _damage(archive: Path) -> Iterator[None]:
    """Turn what the zip reader raises for a damaged file into one message."""
    try:
        yield
    except OgkdError:
        raise
    except _DAMAGED as error:
        raise _broken(archive, str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno is not None:  # a problem of the disk
            raise
        raise _broken(archive, str(error)) from error


def _broken(archive: Path, reason: str) -> DataError:
    return DataError(
        f"{archive} is damaged or incomplete ({reason}). Nothing was unpacked. Download it again."
    )


def _refused(archive: Path, name: str, why: str) -> DataError:
    return DataError(
        f"{archive} was refused: its entry '{name}' {why}. Nothing was unpacked. "
        "Get the archive from its publisher's own page."
    )
