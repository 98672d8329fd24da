"""Where things are kept and how they are written: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ogkd.errors import StorageError

_MANY = 200  # files in a folder from which on the disk is asked once for all of them


def cache_dir() -> Path:
    """The folder for converted weights and cached features (`OGKD_CACHE` moves it)."""
    if own := os.environ.get("OGKD_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ogkd"


def sha256_file(path: Path) -> str:
    """The hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals around `path` into one clear message."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"No space left while writing {path}. Free some space, or choose another place "
                "(for the cache: set OGKD_CACHE to a folder on a larger disk).",
                argument="out",
            ) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise StorageError(
                f"No permission to write {path}. Choose a folder that you own (for the cache: set "
                "OGKD_CACHE).",
                argument="out",
            ) from error
        if isinstance(error, NotADirectoryError | FileExistsError | IsADirectoryError):
            raise StorageError(
                f"Cannot write {path}: a file is where a folder is needed, or the reverse. "
                "Choose another place.",
                argument="out",
            ) from error
        raise


@contextlib.contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a path aside to write to; it takes `path`'s place, synced, only if all went well."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        aside = Path(name)
        try:
            yield aside
            _sync(aside)
            # mkstemp makes private files; a result is as readable as any other new file.
            aside.chmod(0o666 & ~_umask())
            aside.replace(path)
            _sync(path.parent)
        finally:
            aside.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """Yield a folder aside to fill; it appears as `path` by one rename if all went well."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
        try:
            yield aside
            inside = list(aside.rglob("*"))
            mode = 0o666 & ~_umask()
            for path_inside in inside:
                if path_inside.is_file():
                    # safetensors makes private files too; a link may belong to someone else.
                    with contextlib.suppress(PermissionError):
                        path_inside.chmod(mode)
            _sync_all([*inside, aside])
            aside.chmod(0o777 & ~_umask())
            _replace_folder(aside, path)
            _sync(path.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """Let one process at a time make the folder `target`; remove what a killed one has left."""
    from filelock import FileLock

    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):
            for left in target.parent.glob(f".{target.name}.*.part"):
                shutil.rmtree(left, ignore_errors=True)
            yield


def _replace_folder(aside: Path, path: Path) -> None:
    if not path.is_dir():
        aside.rename(path)
        return
    # A rename cannot replace a folder with content: the old one steps aside first.
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
    path.rename(old / path.name)
    try:
        aside.rename(path)
    except OSError:
        (old / path.name).rename(path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text in one step."""
    with write_atomically(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _sync_all(paths: Sequence[Path]) -> None:
    if len(paths) > _MANY and hasattr(os, "sync"):
        os.sync()  # one by one, a dataset of 100,000 images would take twenty minutes
        return
    for path in paths:
        _sync(path)


def _sync(path: Path) -> None:
    """Ask the disk to keep it now; some file systems cannot, which is not an error."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
