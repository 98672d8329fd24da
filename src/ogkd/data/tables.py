"""CSV and TSV tables: `path,label[,split][,patient]`, one image per line; or findings for label."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path, PureWindowsPath

from ogkd.cells import escape_formula, escape_path, unescape_formula
from ogkd.data.case import Case, Dataset
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
_EMPTY = ("nan", "<na>", "#n/a", "null")
_CASE = "case"  # the column that says which images belong together, as this program writes it
_RESERVED = ("path", "label", "split", *_GROUPS, LISTED, _CASE)


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
    header, rows = _rows(path)
    group = _group_column(path, list(header))
    _check_splits(path, rows)
    task: Task
    targets: list[Target]
    ignored: tuple[tuple[str, str], ...] = ()
    if findings is not None or "label" not in header:
        others = {name: title for name, title in header.items() if name not in _RESERVED}
        names, known, unused = read_findings(path, others, rows, findings or class_names)
        task, targets = Findings(names), list(known)
        if unused:
            what = f"Columns that are not read, because their cells are not 1 or 0: {unused}."
            ignored = ((what, "If one of them is a finding, write 1 and 0 into it."),)
    else:
        names, labels = _classes(path, rows, class_names)
        task, targets = OneOf(names), list(labels)
    folder = path.parent if root is None else root
    cases = [
        _case(path, folder, row, group, target)
        for (_, row), target in zip(rows, targets, strict=True)
    ]
    refuse_twice(
        path, [(f"line {line}", case) for (line, _), case in zip(rows, cases, strict=True)]
    )
    return Dataset(tuple(cases), task, ignored)


def read_unlabelled_table(path: Path) -> list[Case]:
    """The images of a table whose labels, if any, do not matter."""
    header, rows = _rows(path)
    group = _group_column(path, list(header))
    return [_case(path, path.parent, row, group, -1) for _, row in rows]


def _case(
    table: Path, folder: Path, row: Mapping[str, str], group: str | None, target: Target
) -> Case:
    image = _image(table, folder, row["path"])
    patient = (row[group] if group else "") or _volume(row["path"], image)
    columns = {name: cell for name, cell in row.items() if name not in ("path", "label", "split")}
    split = split_name(row.get("split", ""))
    return Case.single(image, target, split=split, group=patient, columns=columns)


def _check_splits(path: Path, rows: Sequence[tuple[int, dict[str, str]]]) -> None:
    for line, row in rows:
        if near := misspelt_split(row.get("split", "")):
            raise DataError(f"{path}, line {line}: the split is '{row['split']}'. Is it '{near}'?")
    without = [line for line, row in rows if not row.get("split")]
    if 0 < len(without) < len(rows):
        raise DataError(f"{path}, line {without[0]}: split is empty, but other lines have one.")


def refuse_twice(source: Path, locations: Sequence[tuple[str, Case]]) -> None:
    """Refuse a file that is listed twice; `locations` says where each case was read."""
    seen: dict[str, tuple[str, Case]] = {}
    complaints = []
    for location, case in locations:
        key = os.path.normpath(str(case.image))
        if key not in seen:
            seen[key] = (location, case)
            continue
        first, other = seen[key]
        what = "the same label" if other.target == case.target else "another label"
        complaints.append(f"{case.image}: {first} and {location}, with {what}")
    if complaints:
        raise DataError(
            f"{source} lists {len(complaints)} file(s) twice:\n{first_lines(complaints)}\n"
            "Keep one line for each image."
        )


def _classes(
    path: Path, rows: Sequence[tuple[int, dict[str, str]]], class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], list[int]]:
    """The classes of the column label, and the class of each row."""
    for line, row in rows:
        if not row["label"]:
            raise DataError(f"{path}, line {line}: label is empty.")
    raw = sorted({row["label"] for _, row in rows})
    names, labels = class_labels(path, raw, class_names)
    if len(names) < 2:
        raise DataError(
            f"{path} has {len(names)} class(es) in its column label; at least 2 are needed."
        )
    for line, row in rows:
        if row["label"].casefold() in _EMPTY:
            raise DataError(
                f"{path}, line {line}: the label is '{row['label']}', which programs write for an "
                "empty cell."
            )
    return names, [labels[row["label"]] for _, row in rows]


def table_text(dataset: Dataset, folder: Path) -> str:
    """The dataset as a table that `read_table` reads in `folder`; never a formula."""
    task, images = dataset.task, dataset.images
    if bad := [str(image) for image in images if not writable(image)]:
        raise DataError(
            f"{len(bad)} file name(s) cannot be listed in a UTF-8 table:\n"
            f"{first_lines(list(map(ascii, bad)))}\nRename these files."
        )
    columns = [name for name, _ in task.cells(dataset.cases[0].target)]
    if reserved := {name.lower() for name in columns} & set(_RESERVED) - {"label"}:
        raise DataError(
            f"A finding cannot be called '{min(reserved)}', a column with another meaning."
        )
    grouped = any(case.name != str(case.image) for case in dataset.cases)
    patients = any(case.group is not None for case in dataset.cases)
    heading = ["path", *map(escape_formula, columns), "split"]
    rows = [heading + ["patient"] * patients + [_CASE] * grouped]
    address = relative_to(folder)
    for case in dataset.cases:
        targets = case.image_targets or (case.target,) * len(case.images)
        for image, target in zip(case.images, targets, strict=True):
            cells = [escape_formula(cell) for _, cell in task.cells(target)]
            row = [address(image), *cells, case.split]
            row += [escape_formula(case.group or "")] * patients + [
                escape_formula(case.name)
            ] * grouped
            rows.append(row)
    return csv_text(rows)


def csv_text(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def writable(image: ImageRef) -> bool:
    """Whether a table can list the image: its address is text that does not end in a space."""
    address = str(image)
    return is_text(address) and address == address.rstrip()


def relative_to(folder: Path) -> Callable[[ImageRef], str]:
    """A function that writes the address of an image for a table in `folder`."""
    here = resolved(folder)

    @cache
    def real(parent: Path) -> Path:
        return resolved(parent)

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
    windows = PureWindowsPath(cell)
    drive = windows.is_absolute() and not Path(cell).is_absolute()
    if not (drive or "\\" in cell) or image.file.is_file():
        return image
    if drive:
        tails = ("/".join(windows.parts[n:]) for n in range(1, len(windows.parts)))
        here = next((tail for tail in tails if ImageRef.of(folder / tail).file.is_file()), None)
        raise DataError(
            f"{table}: {cell} is a path of a Windows computer, and is not on this one. Write paths "
            f"that are relative to {folder} (or to another root)"
            + (f"; this one is then {here}." if here else ".")
        )
    other = ImageRef.of(folder / cell.replace("\\", "/"))
    return other if other.file.is_file() else image


def _volume(path: str, image: ImageRef) -> str | None:
    """Slices of one volume belong together even if no patient is known."""
    if image.part and kind_of(image.file) in ("nifti", "dicom"):
        return path.removesuffix(f"#{image.part}")
    return None


def _group_column(path: Path, header: Sequence[str]) -> str | None:
    columns = [name for name in header if name in _GROUPS]
    if len(columns) > 1:
        raise DataError(
            f"{path} has {len(columns)} columns that may be the group: {', '.join(columns)}."
        )
    return columns[0] if columns else None


def _rows(path: Path) -> tuple[dict[str, str], list[tuple[int, dict[str, str]]]]:
    """The columns with their spelling, and line number and cells of each row that is not blank."""
    text = _text(path)
    try:
        tabs = path.suffix.lower() == ".tsv"
        titles, lines = _cells(text, "\t" if tabs else _delimiter(text))
    except csv.Error as error:
        raise DataError(f"{path} is not a UTF-8 table ({error}).") from error
    header = [name.lower() for name in titles]
    if "path" not in header:
        raise DataError(
            f"{path} needs the columns path and label (and optionally split and patient), "
            f"but has: {', '.join(titles) or 'none'}."
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
        cells += [""] * (len(header) - len(cells))
        row = dict(zip(header, cells, strict=True))
        if not row["path"] or "\0" in row["path"]:
            raise DataError(f"{path}, line {line}: the path is empty or has a zero byte in it.")
        rows.append((line, row))
    if not rows:
        raise DataError(f"{path} has no rows below its header.")
    return dict(zip(header, titles, strict=True)), rows


def _text(path: Path) -> str:
    try:
        content = read_bytes(path, most=_MOST)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.") from error
    if content.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise DataError(f"{path} is a spreadsheet or an archive: save the sheet as 'CSV UTF-8'.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: not UTF-8 text: save the table as 'CSV UTF-8'."
        ) from error


def _delimiter(text: str) -> str:
    """Spreadsheets of many countries write semicolons into their CSV, because 0,5 is a number."""
    header = text.split("\n", 1)[0]
    names = {
        delimiter: [name.lower() for name in _cells(header, delimiter)[0]] for delimiter in ",;\t"
    }
    return max(
        names, key=lambda sign: (len(names[sign]) > 1, "path" in names[sign], len(names[sign]))
    )


def _cells(text: str, delimiter: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    header = [unescape_formula(cell.strip()) for cell in next(reader, [])]
    return header, [
        (reader.line_num, [unescape_formula(cell.strip()) for cell in row]) for row in reader
    ]
