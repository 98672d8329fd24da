"""Labelled images in memory: pandas DataFrames and Hugging Face datasets, read as tables are.

Neither package is imported: what is used of them is what their objects have.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ogkd.data.case import Dataset
from ogkd.data.tables import Columns, Row, read_table, write_table
from ogkd.errors import DataError, OgkdError, pluralize
from ogkd.images import ImageRef
from ogkd.images.memory import InMemory


def read_in_memory(source: Any, **options: Any) -> Dataset | None:
    """Read a DataFrame, a dataset or a dictionary of datasets; None if it is none of them."""
    if hasattr(source, "notna"):
        return read_frame(source, **options)
    parts = source if isinstance(source, Mapping) else {"": source}
    if parts and all(hasattr(part, "cast_column") for part in parts.values()):
        return read_hugging_face(parts, **options)
    return None


def read_frame(frame: Any, *, root: str | Path | None = None, **options: Any) -> Dataset:
    """Read a pandas DataFrame as `read_table` does a file; paths count from the current folder."""
    return _read(lambda path: frame.to_csv(path, index=False), "The DataFrame", root, options)


def read_hugging_face(
    parts: Mapping[str, Any],
    *,
    root: str | Path | None = None,
    class_names: Sequence[str] | None = None,
    columns: Columns | None = None,
    **options: Any,
) -> Dataset:
    """Read `datasets.Dataset`s by their split ("" for a dataset without).

    The column of type Image has the images, kept as the files they were; that of type ClassLabel,
    or a column called label, their classes. Rows without a label are left out.
    """
    features = next(iter(parts.values())).features
    image = _column(features, "Image", "path", columns)
    label = _column(features, "ClassLabel", "label", columns)
    class_names = class_names or getattr(features[label], "names", None)
    named = ["split"] if any(parts) else []  # else it may have a column
    others = [name for name in features if name not in (image, label, "path", "label", *named)]
    rows: list[Row] = [["path", "label", *named, *others]]
    contents: dict[str, bytes] = {}
    unlabelled = 0
    for split, part in parts.items():
        plain = part.cast_column(image, type(features[image])(decode=False))
        for number, row in enumerate(plain):
            if (name := _class_of(row[label], features[label])) is None:
                unlabelled += 1
                continue
            path = row[image]["path"]
            if row[image]["bytes"] is not None:
                path = f"{split} image {number}".strip()
                contents[path] = row[image]["bytes"]
            splits = [split] if named else []
            rows.append([path, name, *splits, *(row[column] for column in others)])
    given = {name: heading for name, heading in (columns or {}).items() if name in _KEPT}
    options |= {"class_names": class_names, "columns": given or None}
    dataset = _read(lambda path: write_table(path, rows), "The dataset", root, options)
    if unlabelled:
        what = f"{pluralize(unlabelled, 'image')} of the dataset without a label:"
        dataset = replace(dataset, ignored=(*dataset.ignored, (what, "left out.")))
    return _with_contents(dataset, contents, Path(root or ""))


def _class_of(value: Any, feature: Any) -> Any:
    """The name of a label, which may be stored as its number; None if there is none."""
    if isinstance(value, int) and hasattr(feature, "names"):
        return feature.names[value] if value >= 0 else None
    return value


def _with_contents(dataset: Dataset, contents: Mapping[str, bytes], base: Path) -> Dataset:
    """The dataset with the images that it holds itself in place of files."""
    known = {str(ImageRef.of(base / path)): content for path, content in contents.items()}
    cases = []
    for case in dataset.cases:
        if (content := known.get(case.name)) is not None:
            case = replace(case, images=(InMemory(case.image.file, content=content),))
        cases.append(case)
    return dataset.with_cases(cases)


_KEPT = ("split", "group")  # columns of a dataset that may have other names


def _column(features: Mapping[str, Any], kind: str, name: str, columns: Columns | None) -> str:
    """The column that was named, the only one of this kind, or the one of the usual name."""
    typed = [column for column, feature in features.items() if type(feature).__name__ == kind]
    choices = [
        (columns or {}).get(name),
        *(typed if len(typed) == 1 else ()),
        name,
    ]
    for column in choices:
        if column in features:
            return str(column)
    raise DataError(
        f"The dataset has {len(typed)} columns of type {kind} among {', '.join(features)}: name "
        f"one, such as columns={{'{name}': '{(typed or ['...'])[0]}'}}.",
        argument="columns",
    )


def _read(
    write: Callable[[Path], None], called: str, root: str | Path | None, options: dict[str, Any]
) -> Dataset:
    with tempfile.TemporaryDirectory(prefix="ogkd-") as folder:
        path = Path(folder) / "table.csv"
        write(path)
        try:
            return read_table(path, root=Path(root or ""), **options)
        except OgkdError as error:
            message = str(error).replace(str(path), called)
            raise type(error)(message, argument=error.argument) from None
