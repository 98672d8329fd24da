"""Archives unpacked without trust: every entry is judged before the first one is written.

Refused: absolute paths, `..`, links, devices, drive letters, backslashes, encryption, entries
that collide or overlap, and archives that are too large, too many or too well compressed.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ogkd.download import check_space
from ogkd.errors import DataError, OgkdError
from ogkd.files import folder_atomically
from ogkd.progress import progress_bar

__all__ = ["Limits", "extract", "extract_into"]

_CHUNK = 1 << 20
_DRIVE = re.compile("^[A-Za-z]:")
_MACOS = "__MACOSX"  # shadows of files that the Finder adds
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MOST_PADDING = 64 << 20  # bytes behind the last member of a tar
_LONGEST_HEADER = 1 << 20  # bytes of one tar header: more is an attack on memory


@dataclass(frozen=True)
class Limits:
    """What an archive may ask of this machine."""

    total: int = 64 * 1024**3  # bytes
    members: int = 400_000
    ratio: float = 200.0  # unpacked / packed; images stay near 1, text below 50
    free: int = 1 << 20  # a member this small may be as dense as it likes


@dataclass(frozen=True)
class _Member:
    name: str  # normalised, with slashes
    size: int
    open: Callable[[], IO[bytes]] | None  # None: a folder


def extract(archive: Path, target: Path, *, limits: Limits | None = None) -> Path:
    """Unpack a zip or tar as the folder `target`, which appears by one rename at the end."""
    with folder_atomically(target) as aside:
        extract_into(archive, aside, limits=limits)
    return target


def extract_into(archive: Path, folder: Path, *, limits: Limits | None = None) -> None:
    """Unpack a zip or tar into `folder`, which must be empty or new."""
    limits = limits or Limits()
    with _damage(archive), _opened(archive, limits) as members:
        _check_collisions(archive, members)
        total = sum(member.size for member in members)
        remedy = "choose another place (--folder, or OGKD_DATA for all benchmarks)"
        check_space({folder: total}, what=f"{archive.name}, unpacked,", remedy=remedy)
        folder.mkdir(parents=True, exist_ok=True)
        with progress_bar(f"Unpacking {archive.name}", len(members)) as bar:
            for member in members:
                if member.name.split("/")[0] != _MACOS:
                    _write(archive, member, folder)
                bar.advance()


def _write(archive: Path, member: _Member, folder: Path) -> None:
    path = folder / member.name
    if member.open is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    # "x": nothing in a fresh folder may stand in the way, least of all a link.
    with member.open() as source, path.open("xb") as file:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            if written > member.size:
                raise _refused(archive, member.name, "is larger than the archive says")
            file.write(chunk)
    if written != member.size:
        raise _broken(archive, f"{member.name} is cut short")


@contextmanager
def _opened(archive: Path, limits: Limits) -> Iterator[list[_Member]]:
    """The members of an archive, each one judged, while it is open for reading."""
    if not archive.is_file():
        raise DataError(f"There is no archive {archive}. Check the path.")
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            yield _zip_members(archive, opened, limits)
        return
    with _tar_stream(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        yield _tar_members(archive, tar, limits)


def _zip_members(archive: Path, opened: zipfile.ZipFile, limits: Limits) -> list[_Member]:
    infos = opened.infolist()
    budget = _Budget(archive, limits)
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
            raise _refused(archive, name, "is compressed in a way that is not read")
        if info.is_dir():
            budget.spend(name, 0)
            members.append(_Member(name, 0, None))
            continue
        budget.spend(name, info.file_size)
        budget.check_ratio(name, info.file_size, info.compress_size)
        members.append(_Member(name, info.file_size, _zip_opener(opened, info)))
    _check_overlaps(archive, infos, opened.start_dir)
    return members


def _zip_opener(opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], IO[bytes]]:
    return lambda: opened.open(info)


def _check_overlaps(archive: Path, infos: Sequence[zipfile.ZipInfo], end: int) -> None:
    """Entries that share bytes make a small archive grow without bounds."""
    ordered = sorted(infos, key=lambda info: info.header_offset)
    starts = [info.header_offset for info in ordered[1:]] + [end]
    for info, next_start in zip(ordered, starts, strict=True):
        # 30 bytes are the fixed part of an entry's own header.
        if info.header_offset + 30 + info.compress_size > next_start:
            raise _refused(archive, info.filename, "shares its bytes with another entry")


def _tar_members(archive: Path, tar: tarfile.TarFile, limits: Limits) -> list[_Member]:
    budget = _Budget(archive, limits)
    packed = archive.stat().st_size
    members = []
    for info in tar:  # one header at a time: a bomb is refused before it is read through
        name = _safe_name(archive, info.name, is_folder=info.isdir())
        if not (info.isreg() or info.isdir()) or info.issparse():
            raise _refused(archive, name, "is a link, a device or a sparse file")
        size = info.size if info.isreg() else 0
        budget.spend(name, size)
        budget.check_ratio(name, budget.total, packed)
        members.append(_Member(name, size, _tar_opener(tar, info) if info.isreg() else None))
    _check_end(archive, tar)
    return members


def _check_end(archive: Path, tar: tarfile.TarFile) -> None:
    """A tar that was cut between two members reads as a shorter one: its end must be there."""
    stream: Any = tar.fileobj
    stream.seek(tar.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise _broken(archive, "its end is missing")
    for _ in range(_MOST_PADDING // _CHUNK):  # to the last byte, where the checksum is
        if not stream.read(_CHUNK):
            return
    raise _refused(archive, "the end", "is far too long")


def _tar_opener(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], IO[bytes]]:
    def open_member() -> IO[bytes]:
        file = tar.extractfile(info)
        assert file is not None  # it is a regular file
        return file

    return open_member


class _Stream:
    """A decompressed tar that refuses to be read in one huge piece, as a false header asks."""

    def __init__(self, file: IO[bytes], archive: Path) -> None:
        self._file = file
        self._archive = archive

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= max(_LONGEST_HEADER, _CHUNK):
            raise _refused(self._archive, "a header", "is far too long")
        return self._file.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()


@contextmanager
def _tar_stream(archive: Path) -> Iterator[Any]:
    with archive.open("rb") as raw:
        start = raw.read(6)
    openers: dict[bytes, Callable[[Path], Any]] = {
        b"\x1f\x8b": gzip.open,
        b"BZh": bz2.open,
        b"\xfd7zXZ": lzma.open,
    }
    opener = next((found for magic, found in openers.items() if start.startswith(magic)), None)
    with opener(archive) if opener else archive.open("rb") as file:
        yield _Stream(file, archive)


class _Budget:
    """Counts members and bytes as the archive announces them."""

    def __init__(self, archive: Path, limits: Limits) -> None:
        self.total = 0
        self._archive = archive
        self._limits = limits
        self._members = 0

    def spend(self, name: str, size: int) -> None:
        self._members += 1
        self.total += size
        if self._members > self._limits.members:
            raise _refused(self._archive, name, f"is one of more than {self._limits.members:,}")
        if size < 0 or self.total > self._limits.total:
            most = self._limits.total / 1e9
            raise _refused(self._archive, name, f"makes it larger than {most:,.1f} GB")

    def check_ratio(self, name: str, size: int, packed: int) -> None:
        if size > self._limits.free and size > self._limits.ratio * packed:
            raise _refused(self._archive, name, "is packed too densely, as in a bomb")


def _safe_name(archive: Path, raw: str, *, is_folder: bool) -> str:
    """The entry's path, normalised; an error if it could lead out of the folder."""
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
    """No two entries may fall on one file, on any file system, nor a file on a folder."""
    known: dict[str, tuple[str, bool]] = {}  # folded path -> (path, whether it is a file)
    for member in members:
        parts = member.name.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            is_file = depth == len(parts) and member.open is not None
            seen = known.get(path.casefold())
            # Many entries may be in one folder, spelled in one way; a file has one entry.
            if seen is not None and (is_file or seen != (path, False)):
                raise _refused(archive, path, f"collides with '{seen[0]}'")
            known[path.casefold()] = (path, is_file)


@contextmanager
def _damage(archive: Path) -> Iterator[None]:
    """What the readers of zip and tar say of a damaged file, as one message."""
    try:
        yield
    except OgkdError:
        raise
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        lzma.LZMAError,
        gzip.BadGzipFile,
        EOFError,
        NotImplementedError,
        RuntimeError,
        struct.error,
        ValueError,
    ) as error:
        raise _broken(archive, str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno is not None:  # the disk's own trouble
            raise
        raise _broken(archive, str(error)) from error


def _broken(archive: Path, reason: str) -> DataError:
    return DataError(
        f"{archive} is damaged or incomplete ({reason}). Nothing of it was kept. Download it again."
    )


def _refused(archive: Path, name: str, why: str) -> DataError:
    return DataError(
        f"{archive} was refused: its entry '{name}' {why}. Nothing of it was kept. "
        "Get the archive from its publisher's own page."
    )
