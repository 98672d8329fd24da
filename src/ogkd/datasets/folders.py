"""Class folders (`benign/*.png`) and split folders (`train/benign/*.png`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ogkd.datasets.manifest import (
    SPLITS,
    Item,
    Manifest,
    match_class_list,
    read_class_names,
    split_name,
)
from ogkd.errors import DataError
from ogkd.images import ImageRef
from ogkd.images.decode import EXTENSIONS, images_below


def read_folders(root: Path, *, class_names: Sequence[str] | None = None) -> Manifest:
    """One class per folder; with train, val or test folders at the top, the same in each."""
    inside = _folders(root)
    parts = [(split_name(path.name), path) for path in inside if split_name(path.name) in SPLITS]
    return _read_parts(
        root, sorted(parts, key=lambda part: SPLITS.index(part[0])) or [("", root)], class_names
    )


def _read_parts(
    root: Path, parts: Sequence[tuple[str, Path]], class_names: Sequence[str] | None
) -> Manifest:
    place = parts[0][1]
    folders = sorted({folder.name for _, part in parts for folder in _folders(part)})
    if len(folders) < 2:
        raise DataError(_too_few_classes(place, folders))
    if class_names is None:
        names = read_class_names(folders)
        labels = {folder: label for label, folder in enumerate(folders)}
    else:
        read_class_names(folders)  # two folders must not mean one class
        names, labels = match_class_list(root, folders, class_names)
    items = [
        Item(ImageRef(file), labels[folder], split)
        for split, part in parts
        for folder in folders
        for file in _images(part / folder)
    ]
    filled = {item.label for item in items}
    empty = [folder for folder in folders if labels[folder] not in filled]
    if empty:
        raise DataError(
            f"No images in the class folder(s) {', '.join(empty)} below {place}. Known endings: "
            f"{', '.join(sorted(EXTENSIONS))}. Put images there, or remove the folder(s)."
        )
    return Manifest(tuple(items), names)


def _too_few_classes(place: Path, folders: Sequence[str]) -> str:
    message = (
        f"{place} contains {len(folders)} class folder(s); at least 2 are needed. Put the images "
        f"of each class in a folder with its name: {place}/benign/..., {place}/malignant/..."
    )
    # An unpacked archive often has one folder around everything.
    if len(folders) == 1 and len(_folders(place / folders[0])) > 1:
        message += f" Or did you mean {place / folders[0]}?"
    return message


def _folders(root: Path) -> list[Path]:
    try:
        inside = [path for path in root.iterdir() if path.is_dir() and path.name[0] != "."]
    except PermissionError as error:
        raise DataError(f"No permission to read {root}. Change its permissions.") from error
    return sorted(inside, key=lambda path: path.name)


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():  # a class may be absent from a split
        return []
    return images_below(folder)
