"""A dataset is a manifest: a table of path, label, split and group. One reader per layout."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ogkd.errors import DataError
from ogkd.images.decode import EXTENSIONS, find_images

__all__ = ["Item", "Manifest", "read_manifest"]

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Item:
    """One labelled image; `split` is empty where the dataset has no splits."""

    path: Path
    label: int
    split: str = ""
    group: str | None = None


@dataclass(frozen=True)
class Manifest:
    """Labelled images and the class names their labels count through."""

    items: tuple[Item, ...]
    class_names: tuple[str, ...]

    def part(self, split: str) -> list[Item]:
        """The items of a split; all of them where the dataset has no splits."""
        if not any(item.split for item in self.items):
            return list(self.items)
        found = [item for item in self.items if item.split == split]
        if not found:
            known = sorted({item.split for item in self.items})
            raise DataError(f"There is no split '{split}'. This dataset has: {', '.join(known)}.")
        return found


def read_manifest(source: str | Path) -> Manifest:
    """Read class folders, {train,val,test}/class folders, or a CSV/TSV of path and label."""
    path = Path(source)
    if path.is_file():
        return _read_table(path)
    if not path.is_dir():
        raise DataError(f"There is no folder or table {path}. Check the path.")
    splits = [split for split in SPLITS if (path / split).is_dir()]
    if splits:
        return _read_folders([(split, path / split) for split in splits])
    return _read_folders([("", path)])


def _read_folders(parts: Sequence[tuple[str, Path]]) -> Manifest:
    folders = {
        folder.name
        for _, root in parts
        for folder in root.iterdir()
        if folder.is_dir() and not folder.name.startswith(".")
    }
    if len(folders) < 2:
        place = parts[0][1]
        raise DataError(
            f"{place} holds {len(folders)} class folder(s); at least 2 are needed. Put the images "
            f"of each class in a folder with its name: {place}/benign/..., {place}/malignant/..."
        )
    names = _class_names(sorted(folders))
    labels = {folder: label for label, folder in enumerate(sorted(folders))}
    items = []
    for split, root in parts:
        for folder in sorted(folders):
            if (root / folder).is_dir() and _any_image(root / folder):
                found = find_images([root / folder])
                items += [Item(file, labels[folder], split) for file in found]
    if not items:
        raise DataError(
            f"No images found below {parts[0][1]}. Known endings: {', '.join(sorted(EXTENSIONS))}."
        )
    return Manifest(tuple(items), names)


def _any_image(folder: Path) -> bool:
    return any(file.suffix.lower() in EXTENSIONS for file in folder.rglob("*"))


def _class_names(raw: Iterable[str]) -> tuple[str, ...]:
    names = tuple(name.replace("_", " ").strip() for name in raw)
    folded = [name.casefold() for name in names]
    twice = sorted({name for name in names if folded.count(name.casefold()) > 1})
    if twice:
        raise DataError(f"Class names that differ only in case or underscores: {', '.join(twice)}.")
    return names


def _read_table(path: Path) -> Manifest:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, delimiter=delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a UTF-8 table ({error}). Save it as UTF-8 CSV.") from error
    if not rows or not {"path", "label"} <= set(rows[0]):
        columns = ", ".join(map(str, rows[0])) if rows else "none"
        raise DataError(
            f"{path} needs the columns path and label (and, if you like, split and patient), "
            f"but has: {columns}."
        )
    raw = sorted({row["label"] for row in rows if row["label"]})
    if len(raw) < 2:
        raise DataError(f"{path} names {len(raw)} class(es); at least 2 are needed.")
    names = _class_names(raw)
    items = []
    for number, row in enumerate(rows, start=2):
        if not row["path"] or not row["label"]:
            raise DataError(f"{path}, line {number}: path or label is empty.")
        file = Path(row["path"])
        file = file if file.is_absolute() else path.parent / file
        items.append(
            Item(file, raw.index(row["label"]), row.get("split") or "", row.get("patient") or None)
        )
    return Manifest(tuple(items), names)
