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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:  # reading images needs torch, so it is imported only when something is read
    from ogkd.data.case import Dataset
    from ogkd.download import Downloaded

_DEEPEST = 4  # levels of folders in an archive above the images
_MAX_BYTES, _MAX_MEMBERS = 64 * 1024**3, 400_000  # of an unpacked archive
# What zipfile raises on files that are cut short, encrypted or something else.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, IndexError, RuntimeError)


def data_dir() -> Path:
    """The folder with one folder per benchmark (`OGKD_DATA` moves it)."""
    if folder := os.environ.get("OGKD_DATA"):
        return home(folder)
    return cache_dir() / "datasets"


def locate_benchmark(name: str | Benchmark, *, folder: Path | None = None) -> Path | None:
    """The folder of a benchmark in `folder` (default: `data_dir()`); None if it is not there.

    A folder of the released code (`data/BTMRI`) is recognised as well.
    """
    record = _record(name)
    root = folder or data_dir()
    for path in (root / record.name, root / record.folder):
        if _is_benchmark(record, path):
            return path
    return None


def read_benchmark(name: str | Benchmark) -> Dataset:
    """The images and labels of a benchmark that is on this machine, in its official order."""
    record = _record(name)
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


def resolve_data(
    source: str | Path | Dataset,
    *,
    root: Path | None = None,
    class_names: Sequence[str] | None = None,
    findings: Sequence[str] | None = None,
    empty_classes: bool = False,
) -> Dataset:
    """Read data given as a path in any layout or as the name of a benchmark.

    The options are for layouts that do not specify them, and as for `read_dataset`.
    """
    from ogkd.data.case import Dataset
    from ogkd.data.read import read_dataset

    if isinstance(source, Dataset):
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
    return read_dataset(
        path,
        root=root,
        class_names=class_names,
        findings=findings,
        empty_classes=empty_classes,
    )


def download_benchmark(
    name: str | Benchmark, *, folder: Path | None = None, force: bool = False
) -> Path:
    """Make sure that a benchmark is on this machine, and return its folder.

    After an interruption, even by SIGKILL, the next call resumes. `force` starts from the
    beginning and replaces what is there.
    """
    record = _record(name)
    root = folder or data_dir()
    target = root / record.name
    with exclusive_lock(target):
        if not force and (present := locate_benchmark(record, folder=root)):
            return present
        work = target.with_name(f".{target.name}.download")
        if force:
            shutil.rmtree(work, ignore_errors=True)
        archive = _fetch(record.url, work / record.archive, record.archive_sha256)
        with folder_atomically(target) as aside:
            try:
                unpack(archive.path, aside / ".unpacked")
            except DataError:
                archive.path.unlink(missing_ok=True)  # or else every later attempt would use it
                raise
            _arrange(record, aside, work)
            _check(record, aside)
            source = {
                "schema": 1,
                "name": record.name,
                "url": record.url,
                "revision": archive.commit,
                "archive_sha256": archive.sha256,
                "split_sha256": sha256_file(aside / record.split_file),
                "licence": record.licence,
                "citation": record.citation,
            }
            write_json(aside / "source.json", source)
        shutil.rmtree(work, ignore_errors=True)
    return target


def _fetch(url: str, target: Path, sha256: str | None) -> Downloaded:
    # Imported here, as every fit imports this module and few download.
    from ogkd.download import Downloaded, download, hub_offline, mirrored

    if target.is_file():  # complete: an earlier call was interrupted while unpacking
        digest = sha256_file(target)
        if sha256 in (None, digest):
            return Downloaded(target, digest)
        target.unlink()
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
            if total > _MAX_BYTES or len(members) > _MAX_MEMBERS:
                raise DataError(
                    f"{archive} was refused: unpacked, it has {total / 1e9:,.1f} GB in "
                    f"{len(members):,} files."
                )
            check_space(folder, total, what=f"{archive.name}, unpacked,")
            folder.mkdir(parents=True, exist_ok=True)
            with progress_bar(f"Unpacking {archive.name}", len(members)) as bar:
                for member in members:
                    opened.extract(member, folder)
                    bar.advance()
    except _ZIP_ERRORS as error:
        raise DataError(f"{archive} is damaged or incomplete ({error!r}).") from error


def _arrange(record: Benchmark, aside: Path, work: Path) -> None:
    """Move the split file and the images to where `_is_benchmark` expects them."""
    from ogkd.data.read import read_dataset

    unpacked = aside / ".unpacked"
    # Archives differ: the split file may be at the top, one folder down, or absent.
    candidates = sorted(unpacked.rglob(record.split_file), key=lambda path: len(path.parts))
    split = aside / record.split_file
    if candidates:
        candidates[0].rename(split)
    elif record.split_url:
        fetched = _fetch(record.split_url, work / record.split_file, record.split_sha256)
        shutil.copyfile(fetched.path, split)
    else:
        raise DataError(f"{record.archive} does not contain {record.split_file}.")
    _check_hash(record, split)
    first = read_dataset(split, root=unpacked).cases[0].image.file.relative_to(unpacked)
    images = next((folder for folder in _folders(unpacked) if (folder / first).is_file()), None)
    if images is None:
        raise DataError(
            f"{record.archive} does not contain {first}, the first image of {record.split_file}."
        )
    images.rename(aside / record.folder)
    shutil.rmtree(unpacked, ignore_errors=True)  # already gone if the images were at the top


def _folders(top: Path) -> Iterator[Path]:
    """The folder and those below it, top level first, down to a few levels."""
    level = [top]
    for _ in range(_DEEPEST):
        yield from level
        level = [path for folder in level for path in sorted(folder.iterdir()) if path.is_dir()]


def _is_benchmark(record: Benchmark, folder: Path) -> bool:
    return (folder / record.split_file).is_file() and (folder / record.folder).is_dir()


def _read(record: Benchmark, folder: Path) -> Dataset:
    from ogkd.data.read import read_dataset

    split = folder / record.split_file
    _check_hash(record, split)
    return read_dataset(split, root=folder / record.folder)


def _check_hash(record: Benchmark, split: Path) -> None:
    content = split.read_bytes()
    for kind, expected, actual in (
        ("sha256", record.split_sha256, hashlib.sha256(content).hexdigest()),
        ("git blob", record.split_git_blob, blob_id(content)),
    ):
        if expected not in (None, actual):
            raise DataError(
                f"{split} is not the official split file of '{record.name}': its {kind} is "
                f"{actual}, not {expected}. A split of your own must have another name."
            )


def _check(record: Benchmark, folder: Path) -> None:
    """Compare with the official classes and counts, and check that every image is there."""
    dataset = _read(record, folder)
    if dataset.names != record.class_names:
        raise DataError(
            f"{record.split_file} has the classes {', '.join(dataset.names)}, but "
            f"'{record.name}' has {', '.join(record.class_names)}."
        )
    counts = Counter(case.split for case in dataset.cases)
    for split, expected in record.counts.model_dump().items():
        if counts[split] != expected:
            problem = (
                f"{record.split_file} has {counts[split]:,} {split} images, but '{record.name}' "
                f"officially has {expected:,}."
            )
            if record.split_sha256 is not None:
                raise DataError(problem)
            # The count is not from a file that was seen.
            warnings.warn(f"{problem} The count may be wrong.", OgkdWarning, stacklevel=2)
    missing = [image.file for image in dataset.images if not image.file.is_file()]
    if missing:
        raise DataError(
            f"{record.archive} is missing {len(missing):,} of the {len(dataset.cases):,} images "
            f"of its split, such as {missing[0].relative_to(folder)}."
        )


def _record(name: str | Benchmark) -> Benchmark:
    return name if isinstance(name, Benchmark) else benchmark(name)
