"""Download benchmark datasets, unpack and check them, and find them by name.

A benchmark is a folder with its split file, a folder with its images (arranged as in the released
code) and a source.json that says where it came from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ogkd.data.catalog import Benchmark, benchmark, benchmarks, find_benchmark
from ogkd.errors import DataError, OgkdWarning, did_you_mean
from ogkd.files import (
    blob_id,
    cache_dir,
    exclusive_lock,
    folder_atomically,
    home,
    sha256_file,
    write_json,
)
from ogkd.progress import progress_bar

if TYPE_CHECKING:  # imported only when something is read or downloaded
    from ogkd.data.case import Dataset
    from ogkd.download import Downloaded

_MAX_BYTES = 64 * 1024**3  # of an unpacked archive
# What zipfile raises on files that are cut short, encrypted or something else.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, IndexError, RuntimeError)


def data_dir() -> Path:
    """The folder with one folder per benchmark (`OGKD_DATA` moves it)."""
    if folder := os.environ.get("OGKD_DATA"):
        return home(folder)
    return cache_dir() / "datasets"


def locate_benchmark(name: str | Benchmark) -> Path | None:
    """The folder of a benchmark in `data_dir()`; None if it is not there.

    A folder of the released code (`data/BTMRI`) is recognised as well.
    """
    record = benchmark(name)
    paths = (data_dir() / record.name, data_dir() / record.folder)
    return next((path for path in paths if _is_benchmark(record, path)), None)


def read_benchmark(name: str | Benchmark) -> Dataset:
    """The images and labels of a benchmark that is on this machine, in its official order."""
    record = benchmark(name)
    path = locate_benchmark(record)
    if path is None:
        raise DataError(
            f"The benchmark '{record.name}' is not in {data_dir()}. Download it with `ogkd data "
            f"download {record.name}`, or set OGKD_DATA to the folder that contains it."
        )
    return _read(record, path)


def named_benchmark(source: str | Path) -> Benchmark | None:
    """The benchmark of that name; None for a path, or if a file or folder of that name exists."""
    path = Path(source)
    if path.exists() or len(path.parts) != 1:
        return None
    return find_benchmark(path.name)


def resolve_data(source: str | Path | Dataset, **options: Any) -> Dataset:
    """Read a path in any layout, the name of a benchmark, a DataFrame or a Hugging Face dataset.

    The options are for layouts that do not specify them, and those of `read_dataset`.
    """
    from ogkd.data.frames import read_in_memory
    from ogkd.data.read import read_dataset

    if (dataset := read_in_memory(source, **options)) is not None:
        return dataset
    if not isinstance(source, str | Path):
        return source
    if (named := named_benchmark(source)) is not None:
        return read_benchmark(named)
    path = Path(source)
    for record in benchmarks().values():
        if _is_benchmark(record, path):
            return _read(record, path)
    near = did_you_mean(path.name, benchmarks(), cutoff=0.7)
    if near and not path.exists() and len(path.parts) == 1:
        raise DataError(f"There is no folder or table {path}.{near}", argument="data")
    return read_dataset(path, **options)


def download_benchmark(name: str | Benchmark) -> Path:
    """Make sure that a benchmark is on this machine, and return its folder.

    After an interruption, even by SIGKILL, the next call resumes.
    """
    record = benchmark(name)
    target = data_dir() / record.name
    with exclusive_lock(target):
        if present := locate_benchmark(record):
            return present
        work = target.with_name(f".{target.name}.download")
        archive = _fetch(record.url, work / record.archive, record.archive_sha256)
        with folder_atomically(target) as aside:
            try:
                unpack(archive.path, aside / ".unpacked")
            except DataError:
                archive.path.unlink(missing_ok=True)  # or else every later attempt would use it
                raise
            _arrange(record, aside, work)
            _check(record, aside)
            source = record.model_dump(include={"name", "url", "licence", "citation"})
            source |= {
                "schema": 1,
                "revision": archive.commit,
                "archive_sha256": archive.sha256,
                "split_sha256": sha256_file(aside / record.split_file),
            }
            write_json(aside / "source.json", source)
        shutil.rmtree(work, ignore_errors=True)
    return target


def _fetch(url: str, target: Path, sha256: str | None) -> Downloaded:
    # Imported here, as every fit imports this module and few download.
    from ogkd.download import Downloaded, download, hub_offline, mirrored

    if target.is_file():  # complete: an earlier call was interrupted while unpacking
        return Downloaded(target, sha256_file(target))
    if hub_offline():
        raise DataError(
            f"HF_HUB_OFFLINE is set, so {url} is not downloaded. Unset it, or download on another "
            f"machine and copy the benchmark's folder into {data_dir()}."
        )
    return download(mirrored(url), target, sha256=sha256)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip of limited size into a new folder; `zipfile` keeps every entry inside it."""
    from ogkd.download import check_space

    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            total = sum(member.file_size for member in members)
            if total > _MAX_BYTES:
                raise DataError(f"{archive} was refused: unpacked, it has {total / 1e9:,.1f} GB.")
            check_space(folder, total, what=f"{archive.name}, unpacked,")
            folder.mkdir(parents=True, exist_ok=True)
            with progress_bar(f"Unpacking {archive.name}", len(members)) as bar:
                for member in members:
                    opened.extract(member, folder)
                    bar.advance()
    except _ZIP_ERRORS as error:
        raise DataError(f"{archive} is damaged or incomplete ({error!r}).") from error


def _arrange(record: Benchmark, aside: Path, work: Path) -> None:
    """Move the split file and the images to where `_is_benchmark` expects them.

    Archives differ: the split file may be at the top, one folder down, or absent.
    """
    unpacked = aside / ".unpacked"
    split = aside / record.split_file
    if (inside := _shallowest(unpacked, record.split_file)) is not None:
        inside.rename(split)
    elif record.split_url:
        target = work / record.split_file
        shutil.copyfile(_fetch(record.split_url, target, record.split_sha256).path, split)
    else:
        raise DataError(f"{record.archive} does not contain {record.split_file}.")
    (aside / record.folder).mkdir()
    first = _read(record, aside).cases[0].image.file.relative_to(aside / record.folder)
    if (image := _shallowest(unpacked, first.as_posix())) is None:
        raise DataError(
            f"{record.archive} does not contain {first}, the first image of {record.split_file}."
        )
    (aside / record.folder).rmdir()
    image.parents[len(first.parts) - 1].rename(aside / record.folder)
    shutil.rmtree(unpacked, ignore_errors=True)  # already gone if the images were at the top


def _shallowest(top: Path, name: str) -> Path | None:
    return min(top.rglob(name), key=lambda path: len(path.parts), default=None)


def _is_benchmark(record: Benchmark, folder: Path) -> bool:
    return (folder / record.split_file).is_file() and (folder / record.folder).is_dir()


def _read(record: Benchmark, folder: Path) -> Dataset:
    from ogkd.data.read import read_dataset

    split = folder / record.split_file
    content = split.read_bytes()
    for expected, actual in (
        (record.split_sha256, hashlib.sha256(content).hexdigest()),
        (record.split_git_blob, blob_id(content)),
    ):
        if expected not in (None, actual):
            raise DataError(
                f"{split} is not the official split file of '{record.name}': its hash is "
                f"{actual}, not {expected}. A split of your own must have another name."
            )
    return read_dataset(split, root=folder / record.folder)


def _check(record: Benchmark, folder: Path) -> None:
    """Compare with the official classes and counts, and check that every image is there."""
    from ogkd.data.case import require_files

    dataset = _read(record, folder)
    if dataset.names != record.class_names:
        raise DataError(
            f"{record.split_file} has the classes {', '.join(dataset.names)}, but "
            f"'{record.name}' has {', '.join(record.class_names)}."
        )
    counts = Counter(case.split for case in dataset.cases)
    if counts != (expected := record.counts.model_dump()):
        # The split file is the official one: the catalogue has not seen it, or is wrong.
        text = f"{record.split_file} has the images {dict(counts)}, not {expected} as catalogued."
        warnings.warn(text, OgkdWarning, stacklevel=2)
    require_files(dataset.cases)
