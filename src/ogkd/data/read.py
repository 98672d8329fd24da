"""Read a dataset in any layout: class folders, tables, split files, MedMNIST archives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ogkd.data.case import Case, Dataset
from ogkd.data.coop_json import read_coop_json
from ogkd.data.medmnist import read_medmnist
from ogkd.data.names import (
    SPLITS,
    class_labels,
    misspelt_split,
    read_class_names,
    split_name,
)
from ogkd.data.tables import read_table
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError, DataError
from ogkd.images import ImageRef
from ogkd.images.decode import EXTENSIONS, images_below

# Pictures and videos that people keep beside images, and that would be missed silently.
_UNREAD = {".avi", ".avif", ".gif", ".heic", ".heif", ".j2k", ".jp2", ".mha", ".mhd", ".mov"}
_UNREAD |= {".mp4", ".nrrd", ".pdf", ".svg"}


def read_dataset(
    source: str | Path,
    *,
    root: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    findings: Sequence[str] | None = None,
    empty_classes: bool = False,
) -> Dataset:
    """Read a dataset in any layout: what is at `source` decides which.

    Class folders, {train,val,test}/class folders, a CSV/TSV of path and label, a CoOp split
    (.json) or a MedMNIST file (.npz). `root` is where the paths of a table or split file count
    from, if not from its own folder. `class_names` gives the classes in label order; a label
    outside them is refused. Each image is a case; `ogkd.data.grouping` joins them.
    `findings` are columns of a table that say 1, 0 or nothing (unknown) about an image each;
    without it, they are found if the table has no column label. With `empty_classes`, a class
    folder without images is a class without images; else it is refused.
    """
    path = Path(source)
    base = None if root is None else Path(root)
    ending = path.suffix.lower()
    if findings is not None and (path.is_dir() or ending in (".json", ".npz")):
        raise ConfigError(
            f"Findings are columns of a table, but {path} is not a table.", argument="findings"
        )
    if base is not None and (path.is_dir() or ending == ".npz"):
        raise ConfigError(
            f"A root is only for tables and split files, but {path} contains its images.",
            argument="root",
        )
    if base is not None and not base.is_dir():
        raise DataError(f"There is no folder {base}, given as root.", argument="root")
    if path.is_dir():
        return _read_folders(path, class_names, empty_classes)
    if not path.is_file():
        raise DataError(f"There is no folder or table {path}.", argument="data")
    if ending == ".json":
        return read_coop_json(path, root=base, class_names=class_names)
    if ending == ".npz":
        return read_medmnist(path, class_names=class_names)
    return read_table(path, root=base, class_names=class_names, findings=findings)


def _read_folders(root: Path, class_names: Sequence[str] | None, empty_classes: bool) -> Dataset:
    """One class per folder; with train, val or test folders at the top, the same in each."""
    parts = _split_folders(root) or [("", root)]
    top = parts[0][1]
    folders = sorted({folder.name for _, part in parts for folder in _folders(part)})
    if len(folders) < 2:
        raise DataError(_too_few_classes(top, folders))
    read_class_names(folders)  # two folders must not mean one class
    names, labels = class_labels(root, folders, class_names)
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
    """The splits at the top of a folder, in their usual order."""
    named = [(split_name(path.name), path) for path in _folders(root)]
    parts = [part for part in named if part[0] in SPLITS]
    if parts:
        _refuse_lost_splits(root, parts, [path for name, path in named if name not in SPLITS])
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


def _refuse_lost_splits(
    root: Path, parts: Sequence[tuple[str, Path]], others: Sequence[Path]
) -> None:
    """Refuse a folder that would be left out although it is meant as a split."""
    classes = {folder.name for _, part in parts for folder in _folders(part)}
    for other in others:
        near = misspelt_split(other.name)
        if near or classes & {folder.name for folder in _folders(other)}:
            guess = f" Is it '{near}'?" if near else ""
            raise DataError(
                f"{root} contains {', '.join(part.name for _, part in parts)} and '{other.name}', "
                f"which is not the name of a split.{guess}"
            )


def _too_few_classes(root: Path, folders: Sequence[str]) -> str:
    message = (
        f"{root} contains {len(folders)} class folder(s); at least 2 are needed. Put the images "
        f"of each class in a folder with its name: {root}/benign/..., {root}/malignant/..."
    )
    # An unpacked archive often has one folder around everything.
    if len(folders) == 1 and len(_folders(root / folders[0])) > 1:
        message += f" Or did you mean {root / folders[0]}?"
    return message


def _folders(root: Path) -> list[Path]:
    try:
        inside = [path for path in root.iterdir() if path.is_dir() and path.name[0] != "."]
    except PermissionError as error:
        raise DataError(f"No permission to read {root}.") from error
    return sorted(inside, key=lambda path: path.name)
