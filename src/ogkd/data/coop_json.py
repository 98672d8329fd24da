"""Split files of the CoOp family: `{"train": [[path, label, class name], ...], "val": ...}`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ogkd.data.case import Case, Dataset
from ogkd.data.names import SPLITS, class_labels, read_class_names, split_name
from ogkd.data.tables import refuse_twice
from ogkd.data.tasks import OneOf
from ogkd.errors import DataError
from ogkd.files import read_json
from ogkd.images import ImageRef

_FORM = (
    'A split file is {"train": [["folder/image.png", 0, "class name"], ...], "val": ..., '
    '"test": ...}.'
)


def read_coop_json(
    path: Path, *, root: Path | None = None, class_names: Sequence[str] | None = None
) -> Dataset:
    """Paths count from `root`, else from the split file's folder, and never leave it.

    The order of the file is kept: the released draw depends on it. Images need not exist.
    """
    folder = path.parent if root is None else root
    names: dict[int, str] = {}
    rows_read = []
    for split, rows in _parts(path):
        for number, row in enumerate(rows):
            where = f"{split}[{number}]"
            relative, label, name = _row(path, where, row)
            if names.setdefault(label, name) != name:
                raise DataError(
                    f"{path}, {where}: label {label} is '{name}', but '{names[label]}' before."
                )
            image = ImageRef.of(folder / relative)
            rows_read.append((where, Case.single(image, label, split=split_name(split))))
    ordered = _in_order(path, names)
    if class_names is not None and class_labels(path, ordered, class_names)[0] != ordered:
        raise DataError(
            f"{path} numbers its classes {', '.join(ordered)}, but the class list is "
            f"{', '.join(class_names)}.",
            argument="class_names",
        )
    refuse_twice(path, rows_read)
    return Dataset(tuple(case for _, case in rows_read), OneOf(ordered))


def _parts(path: Path) -> list[tuple[str, list[Any]]]:
    try:
        content = read_json(path, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path} as JSON in UTF-8: {error}.") from error
    names = [split_name(key) for key in content] if isinstance(content, dict) else []
    if not set(names) <= set(SPLITS) or len(set(names)) < len(names):
        raise DataError(f"{path} has the parts {', '.join(content)}. {_FORM}")
    if not names or not all(isinstance(rows, list) for rows in content.values()):
        raise DataError(f"{path} is not a split file. {_FORM}")
    if not any(content.values()):
        raise DataError(f"{path} has no images. {_FORM}")
    return list(content.items())


def _row(path: Path, where: str, row: Any) -> tuple[str, int, str]:
    cells = row if isinstance(row, list) else []
    if [type(cell) for cell in cells] != [str, int, str] or not cells[0].strip() or cells[1] < 0:
        raise DataError(f"{path}, {where}: not [path, label, class name] but {_short(row)}.")
    relative, label, name = cells
    if _leaves(relative):
        raise DataError(f"{path}, {where}: {_short(relative)} leaves the data folder.")
    return relative, label, name


def _leaves(relative: str) -> bool:
    """Whether a path points outside its root, read as this system or as Windows would."""
    windows = PureWindowsPath(relative)
    return (
        "\0" in relative
        or PurePosixPath(relative).is_absolute()
        or bool(windows.drive or windows.root)
        or ".." in windows.parts
    )


def _in_order(path: Path, names: dict[int, str]) -> tuple[str, ...]:
    if len(names) < 2 or max(names) >= len(names):
        raise DataError(
            f"{path} has {len(names)} class(es) with labels up to {max(names)}: labels must count "
            "0, 1, 2, ... without gaps."
        )
    return read_class_names(names[label] for label in sorted(names))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
