"""Where things are kept and how they are written: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import platform
import secrets
import shutil
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ogkd.errors import ConfigError, StorageError

_Hook = Callable[[list[tuple[str, Any]]], Any]

_SMALL = 1 << 26  # bytes that a text file may have
# What commands write as results, by suffix: only such a file is replaced by a new result.
RESULTS = (
    *(".csv", ".tsv", ".xlsx", ".json", ".jsonl", ".html", ".md", ".tex", ".txt"),
    *(".onnx", ".safetensors"),
)
# Only a fit and a calibration write these, with `ours`.
_MODEL_FILES = ("model.json", "weights.safetensors", "support.safetensors", "calibration.json")
_MANY = 200  # files in a folder from which on one sync serves all of them


def cache_dir() -> Path:
    """The folder for converted weights and cached features (`OGKD_CACHE` moves it)."""
    if folder := os.environ.get("OGKD_CACHE"):
        return home(folder)
    return home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "ogkd"


def home(path: str | Path) -> Path:
    """A path whose ~ or ~name is replaced by that home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: there is no such home folder.") from error


def resolved(path: str | Path) -> Path:
    """The path with links and dots resolved; unchanged if the links form a loop."""
    return Path(os.path.realpath(path))  # Path.resolve fails on a loop


def read_bytes(path: Path, *, most: int = _SMALL) -> bytes:
    """The content of a regular file; an OSError for a pipe, a device, or more than `most` bytes."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    if path.is_symlink() and not path.exists():  # nobody meant it to be absent
        raise OSError(errno.EINVAL, "it is a link to a file that is not there", str(path))
    if path.stat().st_size > most:
        raise OSError(errno.EFBIG, f"it is larger than {most / 1e6:.0f} MB", str(path))
    return path.read_bytes()


def read_text(path: Path, *, encoding: str = "utf-8") -> str:
    """The text of a small file, with plain line breaks."""
    return read_bytes(path).decode(encoding).replace("\r\n", "\n")


def is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8: half a character (a lone surrogate) cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json(path: Path, *, encoding: str = "utf-8", hook: _Hook | None = None) -> Any:
    """The value in a small JSON file; whatever is wrong with it is a ValueError."""
    try:
        value = json.loads(read_text(path, encoding=encoding), object_pairs_hook=hook)
        written = json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not is_text(written):
        raise ValueError("it contains half a character (a lone surrogate)")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a small TOML file; whatever is wrong with it is a TOMLDecodeError."""
    try:
        return tomllib.loads(read_text(path))
    except (RecursionError, ValueError) as error:  # also: nested too deeply, a number too long
        raise tomllib.TOMLDecodeError(str(error)) from error


def blob_id(content: bytes) -> str:
    """The name under which git stores a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def sha256_file(path: Path) -> str:
    """The hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals around `path` into a StorageError."""
    try:
        yield
    except (FileNotFoundError, BrokenPipeError):
        raise  # of something else than what is written
    except OSError as error:
        if error.errno in (None, errno.ENOMEM):
            raise
        raise StorageError(
            f"Cannot write {path}: {os.strerror(error.errno)}. Choose another place.",
            argument="out",
        ) from error


def check_replaceable(path: Path, suffixes: Sequence[str] = RESULTS) -> None:
    """Raise a StorageError if `path` is a file that a result with these suffixes must not replace.

    An existing file is replaced only if it has one of the suffixes and is not part of a model.
    """
    if path.is_dir() or not path.exists():
        return
    if not path.is_file():
        reason = "is a pipe or a device, not a file"
    elif path.name in _MODEL_FILES and (path.parent / _MODEL_FILES[0]).is_file():
        reason = "belongs to a model"
    elif path.suffix.lower() not in suffixes and path.stat().st_size:
        reason = f"does not end in {' or '.join(suffixes)}"
    else:
        return
    raise StorageError(f"{path} {reason}, so it is not overwritten.", argument="out")


@contextlib.contextmanager
def write_atomically(
    path: Path, *, ours: bool = False, suffixes: Sequence[str] = RESULTS
) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path`, synced, only if all went well.

    What may be replaced is up to `check_replaceable`, so that no images or models of the user are
    overwritten. `ours` marks a path that only ogkd writes to: anything there may be replaced.
    """
    with storage_errors(path):
        if not ours:
            check_replaceable(path, suffixes)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = _temporary(path)
        try:
            aside.touch()
            yield aside
            _sync(aside)
            aside.replace(path)
            _sync(path.parent)
        finally:
            aside.unlink(missing_ok=True)


def holds_files(folder: Path) -> bool:
    """Whether a folder contains anything other than the leftovers of a killed write."""
    return any(not (path.name[0] == "." and path.suffix == ".part") for path in folder.iterdir())


@contextlib.contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; it becomes `path` by one rename if all went well."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path)
        aside = _temporary(path)
        aside.mkdir()
        try:
            yield aside
            files = [file for file in aside.rglob("*") if file.is_file()]
            os.umask(mask := os.umask(0))
            readable = 0o666 & ~mask
            for file in files:
                with contextlib.suppress(PermissionError):  # a link may belong to someone else
                    file.chmod(readable)  # safetensors makes private files
            if len(files) > _MANY and hasattr(os, "sync"):
                os.sync()  # one by one, 100,000 images would take twenty minutes
            else:
                for file in (*files, aside):
                    _sync(file)
            _replace_folder(aside, path)
            _sync(path.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _replace_folder(aside: Path, path: Path) -> None:
    """Put `aside` where `path` is. A rename cannot replace a folder: the old one steps aside."""
    old = _old(path)
    if path.is_dir():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    try:
        aside.rename(path)
    finally:
        recover(path)
    shutil.rmtree(old, ignore_errors=True)


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def recover(path: Path) -> None:
    """Bring back a folder whose replacement was killed between two renames."""
    if not path.exists() and _old(path).is_dir():
        with contextlib.suppress(OSError):
            _old(path).rename(path)


@contextlib.contextmanager
def exclusive_lock(target: Path, *, timeout: float = -1) -> Iterator[None]:
    """Let one process at a time work on the folder `target`; the others wait so many seconds."""
    from filelock import FileLock, Timeout

    file = target.with_name(f".{target.name}.lock")
    lock = FileLock(file)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=timeout)
        except Timeout as error:
            raise StorageError(
                f"Another process is writing {target} now.", argument="out"
            ) from error
    try:
        yield
    finally:
        if timeout == 0:  # nobody waits for it
            with contextlib.suppress(OSError):  # Windows keeps a file that is open
                file.unlink()
        lock.release()


def fail_if_locked(target: Path) -> contextlib.AbstractContextManager[None]:
    """Refuse to work on the folder `target` while another process does; none waits."""
    return exclusive_lock(target, timeout=0)


def _temporary(path: Path) -> Path:
    """A new name next to `path`; what killed processes of this machine left there is removed."""
    from psutil import pid_exists  # slow to import

    machine = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
    start = f".{path.name[:100]}.{machine}-"
    for left in path.parent.glob(f"{glob.escape(start)}*.part"):
        owner = left.name.removeprefix(start).split(".")[0]
        if owner.isdecimal() and not pid_exists(int(owner)):
            with contextlib.suppress(OSError):
                shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f"{start}{os.getpid()}.{secrets.token_hex(4)}.part")


def write_text(
    path: Path, text: str, *, ours: bool = False, suffixes: Sequence[str] = RESULTS
) -> None:
    """Write UTF-8 text in one step; the options are those of `write_atomically`."""
    if not is_text(text):
        raise ConfigError(f"{path} cannot be written: it has half a character (a lone surrogate).")
    with write_atomically(path, ours=ours, suffixes=suffixes) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, *, ours: bool = False) -> None:
    """Write indented JSON in one step; `ours` as in `write_atomically`."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_text(path, text, ours=ours, suffixes=(".json",))


def write_new(path: Path, text: str) -> None:
    """Write text to a new file; a file that exists is only accepted if it has the same text."""
    if not path.exists():
        write_text(path, text)
        return
    with storage_errors(path):
        if read_bytes(path) != text.encode():
            raise StorageError(f"{path} exists and has other content.", argument="out")


def _sync(path: Path) -> None:
    """Ask the disk to keep it now; some file systems cannot, which is not an error."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
