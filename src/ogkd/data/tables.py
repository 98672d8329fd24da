"""CSV and TSV tables: `path,label[,split][,patient]`, one image per line; or findings for label."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path, PureWindowsPath

from ogkd.cells import escape_formula, escape_path, unescape_formula
from ogkd.data.case import Case, Dataset, refuse_twice
from ogkd.data.findings import LISTED, read_findings
from ogkd.data.names import class_labels, first_lines, misspelt_split, split_name
from ogkd.data.task import Target, Task
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import DataError
from ogkd.files import is_text, read_bytes, resolved
from ogkd.images import ImageRef
from ogkd.images.ref import kind_of

_MOST = 1 << 29  # bytes of a table
_GROUPS = ("patient", "group", "lesion", "patient_id", "group_id", "lesion_id")
_EMPTY = ("", "nan", "<na>", "#n/a", "null")  # what programs write for an empty cell
_CASE = "case"  # the column that says which images belong together, as this program writes it
_RESERVED = ("path", "label", "split", *_GROUPS, LISTED, _CASE)


# A table as text: lower-case column names with their spelling, and the rows with their line.
Lines = list[tuple[int, dict[str, str]]]
Rows = tuple[dict[str, str], Lines]


def read_table(
    path: Path,
    *,
    root: Path | None = None,
    class_names: Sequence[str] | None = None,
    findings: Sequence[str] | None = None,
) -> Dataset:
    """One case for each row; paths count from `root`, else from the table's own folder.

    A table is the user's own: absolute paths and `..` are taken as they stand. Without a column
    label, or if `findings` names some, each image has findings instead of one class.
    """
    columns, rows = read_rows(path)
    _check_splits(path, rows)
    task: Task
    targets: Sequence[Target]
    ignored: tuple[tuple[str, str], ...] = ()
    if findings is not None or "label" not in columns:
        others = {name: title for name, title in columns.items() if name not in _RESERVED}
        names, targets, unused = read_findings(path, others, rows, findings or class_names)
        task = Findings(names)
        if unused:
            what = f"Columns that are not read, because their cells are not 1 or 0: {unused}."
            ignored = ((what, "If one of them is a finding, write 1 and 0 into it."),)
    else:
        names, targets = _classes(path, rows, class_names)
        task = OneOf(names)
    cases = _cases(path, path.parent if root is None else root, columns, rows, targets)
    refuse_twice(
        path, [(f"line {line}", case) for (line, _), case in zip(rows, cases, strict=True)]
    )
    return Dataset(tuple(cases), task, ignored)


def read_unlabelled_table(path: Path) -> list[Case]:
    """The images of a table whose labels, if any, do not matter."""
    columns, rows = read_rows(path)
    return _cases(path, path.parent, columns, rows, [-1] * len(rows))


def _check_splits(path: Path, rows: Lines) -> None:
    for line, row in rows:
        if near := misspelt_split(row.get("split", "")):
            raise DataError(f"{path}, line {line}: the split is '{row['split']}'. Is it '{near}'?")
    without = [line for line, row in rows if not row.get("split")]
    if 0 < len(without) < len(rows):
        raise DataError(f"{path}, line {without[0]}: split is empty, but other lines have one.")


def _cases(
    path: Path,
    folder: Path,
    columns: Mapping[str, str],
    rows: Lines,
    targets: Sequence[Target],
) -> list[Case]:
    groups = [name for name in columns if name in _GROUPS]
    if len(groups) > 1:
        raise DataError(
            f"{path} has {len(groups)} columns that may be the group: {', '.join(groups)}."
        )
    cases = []
    for (_, row), target in zip(rows, targets, strict=True):
        image = _image(path, folder, row["path"])
        group = row[groups[0]] if groups else ""
        if not group and image.part and kind_of(image.file) in ("nifti", "dicom"):
            # Slices of one volume belong together even if no patient is known.
            group = row["path"].removesuffix(f"#{image.part}")
        others = {name: cell for name, cell in row.items() if name not in _RESERVED[:3]}
        split = split_name(row.get("split", ""))
        cases.append(Case.single(image, target, split=split, group=group or None, columns=others))
    return cases


def _classes(
    path: Path, rows: Lines, class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], list[int]]:
    """The classes of the column label, and the class of each row."""
    labels = sorted({row["label"] for _, row in rows})
    if empty := [label for label in labels if label.casefold() in _EMPTY]:
        line = next(line for line, row in rows if row["label"] in empty)
        raise DataError(f"{path}, line {line}: label is empty ('{empty[0]}').")
    names, number = class_labels(path, labels, class_names)
    return names, [number[row["label"]] for _, row in rows]


def table_text(dataset: Dataset, folder: Path) -> str:
    """The dataset as a table that `read_table` reads in `folder`; never a formula."""
    task = dataset.task
    if bad := [ascii(str(image)) for image in dataset.images if not writable(image)]:
        raise DataError(
            f"{len(bad)} file name(s) cannot be listed in a UTF-8 table:\n{first_lines(bad)}\n"
            "Rename these files."
        )
    columns = [name for name, _ in task.cells(dataset.cases[0].target)]
    if reserved := {name.lower() for name in columns} & set(_RESERVED) - {"label"}:
        raise DataError(
            f"A finding cannot be called '{min(reserved)}', a column with another meaning."
        )
    last: dict[str, Callable[[Case], str]] = {}
    if any(case.group is not None for case in dataset.cases):
        last["patient"] = lambda case: case.group or ""
    if any(case.name != str(case.image) for case in dataset.cases):
        last[_CASE] = lambda case: case.name
    rows = [["path", *map(escape_formula, columns), "split", *last]]
    address = relative_to(folder)
    for case in dataset.cases:
        targets = case.image_targets or (case.target,) * len(case.images)
        ends = [escape_formula(cell(case)) for cell in last.values()]
        for image, target in zip(case.images, targets, strict=True):
            cells = [escape_formula(cell) for _, cell in task.cells(target)]
            rows.append([address(image), *cells, case.split, *ends])
    return csv_text(rows)


def csv_text(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def writable(image: ImageRef) -> bool:
    """Whether a table can list the image: its address is text that does not end in a space."""
    return is_text(str(image)) and str(image) == str(image).rstrip()


def relative_to(folder: Path) -> Callable[[ImageRef], str]:
    """A function that writes the address of an image for a table in `folder`."""
    here, real = resolved(folder), cache(resolved)

    def address(image: ImageRef) -> str:
        file = real(image.file.parent) / image.file.name
        with contextlib.suppress(ValueError):  # on another drive it stays absolute
            file = Path(os.path.relpath(file, here))
        text = escape_path(ImageRef(file, image.part).as_posix())
        return text if text == text.lstrip() else f"./{text}"

    return address


def _image(table: Path, folder: Path, cell: str) -> ImageRef:
    """The image that a cell names; tables from Windows have backslashes between folders."""
    image = ImageRef.of(folder / cell)
    foreign = PureWindowsPath(cell).is_absolute() and not Path(cell).is_absolute()
    if not (foreign or "\\" in cell) or image.file.is_file():
        return image
    if foreign:
        raise DataError(
            f"{table}: {cell} is a path of a Windows computer. Write paths that are relative "
            f"to {folder}, or to another root."
        )
    other = ImageRef.of(folder / cell.replace("\\", "/"))
    return other if other.file.is_file() else image


def read_rows(path: Path) -> Rows:
    """Read a CSV or TSV file, without its blank rows."""
    text = _text(path)
    try:
        # Spreadsheets of many countries write semicolons into their CSV, because 0,5 is a number.
        signs = [sign for sign in ",;\t" if "path" in map(str.lower, _cells(text, sign, 1)[0][1])]
        (_, titles), *lines = _cells(text, signs[0] if signs else ",")
    except (csv.Error, IndexError) as error:
        raise DataError(f"{path} is empty or not a UTF-8 table ({error}).") from error
    header = [name.lower() for name in titles]
    if "path" not in header:
        raise DataError(
            f"{path} needs the columns path and label (and optionally split and patient), "
            f"but has: {', '.join(titles)}."
        )
    # Without a label, any other column may be a finding.
    once = _RESERVED if "label" in header else [name for name in header if name]
    if twice := sorted({name for name in once if header.count(name) > 1}):
        raise DataError(f"{path} has the column {twice[0]} twice.")
    rows = []
    for line, cells in lines:
        if not any(cells):
            continue
        if len(cells) > len(header):
            raise DataError(
                f"{path}, line {line}: {len(cells)} cells, but the header has {len(header)}."
            )
        row = dict(zip(header, cells + [""] * (len(header) - len(cells)), strict=True))
        if not row["path"] or "\0" in row["path"]:
            raise DataError(f"{path}, line {line}: the path is empty or has a zero byte in it.")
        rows.append((line, row))
    if not rows:
        raise DataError(f"{path} has no rows below its header.")
    return dict(zip(header, titles, strict=True)), rows


def _text(path: Path) -> str:
    try:
        content = read_bytes(path, most=_MOST)
        if content.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
            raise ValueError("it is a spreadsheet or an archive")
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(
            f"Cannot read {path} as a table ({error}). Save the table as 'CSV UTF-8'."
        ) from error


def _cells(text: str, delimiter: str, most: int | None = None) -> list[tuple[int, list[str]]]:
    """The first lines, or all: their numbers and stripped cells."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return [
        (reader.line_num, [unescape_formula(cell.strip()) for cell in row])
        for row in itertools.islice(reader, most)
    ]
