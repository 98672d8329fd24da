"""A dataset is a manifest: a table of path, label, split and group. One reader per layout."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ogkd.errors import DataError
from ogkd.images.decode import EXTENSIONS, find_images

__all__ = ["Item", "Manifest", "read_manifest", "require_files"]

SPLITS = ("train", "val", "test")
# What people call them: without this, Training/ and Testing/ would be taken for two classes.
_SPLIT_NAMES = {
    **{name: name for name in SPLITS},
    "training": "train",
    "valid": "val",
    "validation": "val",
    "testing": "test",
}
_SHOWN = 20  # lines of a message before "and N more"


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

    @property
    def has_splits(self) -> bool:
        """Whether the images are divided into train, val and test."""
        return any(item.split for item in self.items)

    def part(self, split: str) -> list[Item]:
        """The items of a split; all of them where the dataset has no splits."""
        if not self.has_splits:
            return list(self.items)
        wanted = _split_name(split)
        found = [item for item in self.items if item.split == wanted]
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
    parts = [
        (_split_name(folder.name), folder)
        for folder in _folders(path)
        if _split_name(folder.name) in SPLITS
    ]
    return _read_folders(sorted(parts, key=lambda part: SPLITS.index(part[0])) or [("", path)])


def require_files(items: Sequence[Item]) -> None:
    """Refuse items whose files are not there, naming them all at once."""
    missing = [item.path for item in items if not item.path.is_file()]
    if missing:
        listed = "\n".join(f"  {path}" for path in missing[:_SHOWN])
        more = f"\n  ... and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise DataError(
            f"{len(missing)} file(s) of the data are not there:\n{listed}{more}\n"
            "Check the paths; in a table they count from the table's own folder."
        )


def _split_name(name: str) -> str:
    lower = name.strip().lower()
    return _SPLIT_NAMES.get(lower, lower)


def _folders(root: Path) -> list[Path]:
    inside = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return sorted(inside, key=lambda path: path.name)


def _read_folders(parts: Sequence[tuple[str, Path]]) -> Manifest:
    place = parts[0][1]
    folders = sorted({folder.name for _, root in parts for folder in _folders(root)})
    if len(folders) < 2:
        raise DataError(
            f"{place} holds {len(folders)} class folder(s); at least 2 are needed. Put the images "
            f"of each class in a folder with its name: {place}/benign/..., {place}/malignant/..."
        )
    names = _class_names(folders)
    items = [
        Item(file, label, split)
        for split, root in parts
        for label, folder in enumerate(folders)
        for file in _images(root / folder)
    ]
    filled = {item.label for item in items}
    empty = [folder for label, folder in enumerate(folders) if label not in filled]
    if empty:
        raise DataError(
            f"No images in the class folder(s) {', '.join(empty)} below {place}. Known endings: "
            f"{', '.join(sorted(EXTENSIONS))}. Put images there, or remove what is not a class."
        )
    return Manifest(tuple(items), names)


def _images(folder: Path) -> list[Path]:
    try:
        return find_images([folder])
    except DataError:  # none in this folder, or no such folder in this split
        return []


def _class_names(raw: Iterable[str]) -> tuple[str, ...]:
    names = tuple(name.replace("_", " ").strip() for name in raw)
    if "" in names:
        raise DataError("A class has no name but underscores. Give each class a name.")
    folded = [name.casefold() for name in names]
    twice = sorted({name for name in names if folded.count(name.casefold()) > 1})
    if twice:
        raise DataError(
            f"Class names that differ only in case, spaces or underscores: {', '.join(twice)}. "
            "Rename them so that each class has one name."
        )
    return names


def _read_table(path: Path) -> Manifest:
    rows = _rows(path)
    raw = sorted({row["label"] for _, row in rows})
    if len(raw) < 2:
        raise DataError(f"{path} names {len(raw)} class(es); at least 2 are needed.")
    names = _class_names(raw)
    without = [line for line, row in rows if not row.get("split")]
    if 0 < len(without) < len(rows):
        raise DataError(f"{path}, line {without[0]}: split is empty, but other lines have one.")
    items = [
        Item(
            path.parent / row["path"],
            raw.index(row["label"]),
            _split_name(row.get("split", "")),
            row.get("patient") or None,
        )
        for _, row in rows
    ]
    return Manifest(tuple(items), names)


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Line number and cells of each row that is not blank; path and label are filled."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter)
            header = [cell.strip().lower() for cell in next(reader, [])]
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Check the file.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a UTF-8 table ({error}). Save it as UTF-8 CSV.") from error
    if not {"path", "label"} <= set(header):
        raise DataError(
            f"{path} needs the columns path and label (and, if you like, split and patient), "
            f"but has: {', '.join(header) or 'none'}."
        )
    rows = []
    for line, cells in lines:
        if not any(cells):
            continue
        if len(cells) > len(header):
            raise DataError(
                f"{path}, line {line}: {len(cells)} cells, but the header has {len(header)}. "
                "Put quotes around a value that holds a comma."
            )
        cells += [""] * (len(header) - len(cells))
        row = dict(zip(header, cells, strict=True))
        for column in ("path", "label"):
            if not row[column]:
                raise DataError(f"{path}, line {line}: {column} is empty. Fill it in.")
        rows.append((line, row))
    if not rows:
        raise DataError(f"{path} has no rows below its header.")
    return rows
