"""Read a dataset in any layout: class folders, tables, split files, MedMNIST archives."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PureWindowsPath
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from ogkd.data.case import Case, Dataset, refuse_twice
from ogkd.data.names import (
    SPLITS,
    class_labels,
    misspelt_split,
    read_class_names,
    split_name,
)
from ogkd.data.tables import Columns, read_table
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError, DataError
from ogkd.files import read_bytes
from ogkd.images import ImageRef
from ogkd.images.decode import EXTENSIONS, images_below
from ogkd.images.npz import npy_header

# Pictures and videos that people keep beside images, and that would be missed silently.
_UNREAD = {".avi", ".avif", ".gif", ".heic", ".heif", ".j2k", ".jp2", ".mha", ".mhd", ".mov"}
_UNREAD |= {".mp4", ".nrrd", ".pdf", ".svg"}


def read_dataset(
    source: str | Path,
    *,
    root: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    findings: Sequence[str] | None = None,
    columns: Columns | None = None,
    empty_classes: bool = False,
) -> Dataset:
    """Read a dataset in any layout: what is at `source` decides which.

    Class folders, {train,val,test}/class folders, a table of path and label, a CoOp split
    (.json) or a MedMNIST file (.npz). `root` is where the paths of a table or split file count
    from, if not from its own folder. `class_names` gives the classes in label order; a label
    outside them is refused. Each image is a case; `ogkd.data.grouping` joins them.
    `findings` are columns of a table that say 1, 0 or nothing (unknown) about an image each;
    without it, they are found if the table has no column label. `columns` are headings that differ
    from the names path, label, split, group and labels. With `empty_classes`, a class folder
    without images is a class without images; else it is refused.
    """
    path = Path(source)
    folder = path.parent if root is None else Path(root)
    ending = "folder" if path.is_dir() else path.suffix.lower()
    for argument, value, endings in (
        ("findings", findings, ("folder", ".json", ".npz")),
        ("columns", columns, ("folder", ".json", ".npz")),
        ("root", root, ("folder", ".npz")),
    ):
        if value is not None and ending in endings:
            raise ConfigError(f"{argument} is not for {path}.", argument=argument)
    if not folder.is_dir() and root is not None:
        raise DataError(f"There is no folder {folder}, given as root.", argument="root")
    if ending == "folder":
        return _read_folders(path, class_names, empty_classes)
    if not path.is_file():
        raise DataError(f"There is no folder or table {path}.", argument="data")
    if ending == ".json":
        return _read_split_file(path, folder, class_names)
    if ending == ".npz":
        return _read_medmnist(path, class_names)
    return read_table(
        path, root=folder, class_names=class_names, findings=findings, columns=columns
    )


# Split files of the CoOp family: {"train": [[path, label, class name], ...], "val": ...}

_Row = tuple[Annotated[str, Field(min_length=1)], Annotated[int, Field(ge=0)], str]
_SPLIT_FILE = TypeAdapter(dict[str, list[_Row]])


def _read_split_file(path: Path, folder: Path, class_names: Sequence[str] | None) -> Dataset:
    """Paths count from `folder` and never leave it; images need not exist.

    The order of the file is kept: the released draw depends on it.
    """
    try:
        content = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
        parts = _SPLIT_FILE.validate_json(content, strict=True)
    except (OSError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"msg": str(error)}
        where = "".join(f"[{key}]" for key in first.get("loc", ()))
        raise DataError(
            f'{path} is not a split file, {{"train": [["folder/image.png", 0, "class name"], '
            f'...], "val": ..., "test": ...}}: {where} {first["msg"]}.'
        ) from error
    names: dict[int, str] = {}
    rows = []
    for split, entries in parts.items():
        for number, (relative, label, name) in enumerate(entries):
            where = f"{split}[{number}]"
            if names.setdefault(label, name) != name:
                raise DataError(
                    f"{path}, {where}: label {label} is '{name}', but '{names[label]}' before."
                )
            inside = PureWindowsPath(relative)  # whose rules include those of other systems
            if inside.drive or inside.root or ".." in inside.parts or "\0" in relative:
                raise DataError(f"{path}, {where}: {relative!r} leaves the data folder.")
            case = Case.single(ImageRef.of(folder / relative), label, split=split_name(split))
            rows.append((where, case))
    splits = [split_name(split) for split in parts]
    if not rows or not set(splits) <= set(SPLITS) or len(set(splits)) < len(splits):
        raise DataError(f"{path} has no images in train, val and test, but {', '.join(parts)}.")
    if max(names) >= len(names):
        raise DataError(
            f"{path} has {len(names)} class(es) with labels up to {max(names)}: labels must count "
            "0, 1, 2, ... without gaps."
        )
    ordered, _ = class_labels(path, [names[label] for label in sorted(names)], None)
    if class_names is not None and class_labels(path, ordered, class_names)[0] != ordered:
        raise DataError(
            f"{path} numbers its classes {', '.join(ordered)}, but the class list is "
            f"{', '.join(class_names)}.",
            argument="class_names",
        )
    refuse_twice(path, rows)
    return Dataset(tuple(case for _, case in rows), OneOf(ordered))


# MedMNIST archives: {train,val,test}_images and _labels in one .npz file. `file.npz#train/0` is the
# first training image, which `ogkd.images` opens when it is needed.

_MOST = 100_000  # classes, far beyond any real archive
# What zipfile and numpy raise on files that are cut short, encrypted or something else.
_DAMAGED = (OSError, ValueError, EOFError, KeyError, MemoryError, SyntaxError, RuntimeError)


def _read_medmnist(path: Path, class_names: Sequence[str] | None) -> Dataset:
    """Labels as stored; classes are `class_names`, else "class 0", "class 1", ..."""
    try:
        with zipfile.ZipFile(path) as archive:
            stored = [split for split in SPLITS if f"{split}_images.npy" in archive.namelist()]
            labels = {split: _labels(path, archive, split) for split in stored}
    except (*_DAMAGED, zipfile.BadZipFile, zlib.error, tokenize.TokenError) as error:
        raise DataError(f"{path} is damaged or not a MedMNIST file ({error!r}).") from error
    largest = max((max(values, default=-1) for values in labels.values()), default=-1)
    default = [f"class {label}" for label in range(largest + 1)]
    names = read_class_names(default if class_names is None else class_names)
    if largest >= len(names) or len(names) < 2:
        raise DataError(
            f"{path} has labels up to {largest}, but there are {len(names)} class(es).",
            argument="class_names",
        )
    cases = tuple(
        Case.single(ImageRef(path, f"{split}/{row}"), label, split=split)
        for split, values in labels.items()
        for row, label in enumerate(values)
    )
    return Dataset(cases, OneOf(names))


def _labels(path: Path, archive: zipfile.ZipFile, split: str) -> list[int]:
    """The labels of a split; of its images, only the header is read."""
    with archive.open(f"{split}_images.npy") as file:
        images, _ = npy_header(file)
    with archive.open(f"{split}_labels.npy") as file:
        labels = np.lib.format.read_array(file, allow_pickle=False)
    flat = len(images) == 3 or (len(images) == 4 and images[3] in (1, 3))
    one_each = labels.shape in (images[:1], (*images[:1], 1))
    numbers: list[int] = (
        labels.ravel().tolist() if np.issubdtype(labels.dtype, np.integer) else [-1]
    )
    if not (flat and one_each and 0 <= min(numbers, default=0) <= max(numbers, default=0) < _MOST):
        raise DataError(
            f"{path}, {split}: images of shape {images} and labels of shape {labels.shape} "
            f"({labels.dtype}) are not flat images with the number of a class each."
        )
    return numbers


def _read_folders(root: Path, class_names: Sequence[str] | None, empty_classes: bool) -> Dataset:
    """One class per folder; with train, val or test folders at the top, the same in each."""
    parts = _split_folders(root) or [("", root)]
    top = parts[0][1]
    folders = sorted({folder.name for _, part in parts for folder in _folders(part)})
    if not folders and any(images_below(root)):
        raise DataError(
            f"{root} has images, but no folder for each class. To label them: ogkd studio {root}",
            argument="data",
        )
    read_class_names(folders)  # two folders must not mean one class
    names, labels = class_labels(top, folders, class_names)
    cases = [
        Case.single(ImageRef(file), labels[folder], split=split)
        for split, part in parts
        for folder in folders
        if (part / folder).is_dir()  # a class may be absent from a split
        for file in images_below(part / folder)
    ]
    filled = {case.target for case in cases}
    empty = [folder for folder in folders if labels[folder] not in filled]
    if empty and (len(filled) < 2 or not empty_classes):
        raise DataError(
            f"No images in the class folder(s) {', '.join(empty)} below {top}. Known endings: "
            f"{', '.join(sorted(EXTENSIONS))}."
        )
    unread = unread_below([part / folder for _, part in parts for folder in folders])
    return Dataset(tuple(cases), OneOf(names), unread)


def _split_folders(root: Path) -> list[tuple[str, Path]]:
    """The splits at the top of a folder, in their usual order; all that are meant as one."""
    named = [(split_name(path.name), path) for path in _folders(root)]
    parts = [part for part in named if part[0] in SPLITS]
    classes = {folder.name for _, part in parts for folder in _folders(part)}
    for name, other in named if parts else ():
        near = misspelt_split(other.name)
        if near or (name not in SPLITS and classes & {path.name for path in _folders(other)}):
            guess = f" Is it '{near}'?" if near else ""
            raise DataError(
                f"{root} contains {', '.join(part.name for _, part in parts)} and '{other.name}', "
                f"which is not the name of a split.{guess}"
            )
    return sorted(parts, key=lambda part: SPLITS.index(part[0]))


def unread_below(folders: Sequence[Path]) -> tuple[tuple[str, str], ...]:
    """How many images and videos are in formats that are not read; nothing if there are none."""
    counts = Counter(
        ending
        for folder in folders
        for file in folder.rglob("*")
        if (ending := file.suffix.lower()) in _UNREAD
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not counts:
        return ()
    each = ", ".join(f"{number} {ending}" for ending, number in sorted(counts.items()))
    return ((f"Files left out, because their format is not read: {each}.", "Convert them to PNG."),)


def _folders(root: Path) -> list[Path]:
    try:
        inside = [path for path in root.iterdir() if path.is_dir() and path.name[0] != "."]
    except PermissionError as error:
        raise DataError(f"No permission to read {root}.") from error
    return sorted(inside, key=lambda path: path.name)
