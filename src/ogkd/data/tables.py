"""Tables of `path,label[,split][,patient]`, one image per line; or findings for label.

Read are .xlsx files and text in the usual encodings, with any of three delimiters; written are CSV
and .xlsx.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PureWindowsPath
from typing import Any, TextIO

from ogkd.cells import escape_formula, escape_path, unescape_formula
from ogkd.data.case import Case, Dataset, refuse_twice
from ogkd.data.findings import LISTED, read_findings
from ogkd.data.names import class_labels, first_lines, fold_name, misspelt_split, split_name
from ogkd.data.task import Target, Task
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import ConfigError, DataError
from ogkd.files import is_text, read_bytes, resolved, write_atomically, write_new
from ogkd.images import ImageRef
from ogkd.images.ref import kind_of

TABLES = (".csv", ".tsv", ".txt", ".xlsx")  # endings of tables
SHEET = ".xlsx"
_MOST = 1 << 29  # bytes of a table, unpacked
_LONGEST = 1 << 20  # rows of a sheet, as Excel has at most
_GROUPS = ("patient", "group", "lesion", "patient_id", "group_id", "lesion_id")
_EMPTY = ("", "nan", "<na>", "#n/a", "null")  # what programs write for an empty cell
_CASE = "case"  # the column that says which images belong together, as this program writes it
_RESERVED = ("path", "label", "split", *_GROUPS, LISTED, _CASE)
_RENAMED = ("path", "label", "split", "group", LISTED)  # may have another heading

Columns = Mapping[str, str]  # the headings of columns that are not called by their name
# A table as text: lower-case column names with their spelling, and the rows with their line.
Lines = list[tuple[int, dict[str, str]]]
Rows = tuple[dict[str, str], Lines]
Row = Sequence[object]  # of a table to write: text without formulas, and numbers


def read_table(
    path: Path,
    *,
    root: Path | None = None,
    class_names: Sequence[str] | None = None,
    findings: Sequence[str] | None = None,
    columns: Columns | None = None,
) -> Dataset:
    """One case for each row; paths count from `root`, else from the table's own folder.

    A table is the user's own: absolute paths and `..` are taken as they stand. Without a column
    label, or if `findings` names some, each image has findings instead of one class. `columns` are
    the headings of path, label, split, group or labels, where they are others.
    """
    titles, rows = read_rows(path, columns)
    _check_splits(path, rows)
    task: Task
    targets: Sequence[Target]
    ignored: tuple[tuple[str, str], ...] = ()
    if findings is not None or "label" not in titles:
        others = {name: title for name, title in titles.items() if name not in _RESERVED}
        names, targets, unused = read_findings(path, others, rows, findings or class_names)
        task = Findings(names)
        if unused:
            what = f"Columns that are not read, because their cells are not 1 or 0: {unused}."
            ignored = ((what, "If one of them is a finding, write 1 and 0 into it."),)
    else:
        names, targets = _classes(path, rows, class_names)
        task = OneOf(names)
    groups = _groups(path, titles, columns)
    cases = _cases(path, path.parent if root is None else root, groups, rows, targets)
    refuse_twice(
        path, [(f"line {line}", case) for (line, _), case in zip(rows, cases, strict=True)]
    )
    return Dataset(tuple(cases), task, ignored)


def read_unlabelled_table(path: Path, columns: Columns | None = None) -> list[Case]:
    """The images of a table whose labels, if any, do not matter."""
    titles, rows = read_rows(path, columns)
    groups = _groups(path, titles, columns)
    return _cases(path, path.parent, groups, rows, [-1] * len(rows))


def _groups(path: Path, titles: Mapping[str, str], columns: Columns | None) -> list[str]:
    """The column that names the patient or lesion, if there is one."""
    groups = [name for name in titles if name in _GROUPS]
    if "group" in (columns or {}):
        return ["group"]
    if len(groups) > 1:
        raise DataError(
            f"{path} has {len(groups)} columns that may be the group: {', '.join(groups)}."
        )
    return groups


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
    groups: Sequence[str],
    rows: Lines,
    targets: Sequence[Target],
) -> list[Case]:
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


def table_rows(dataset: Dataset, folder: Path) -> list[Row]:
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
    rows: list[Row] = [["path", *map(escape_formula, columns), "split", *last]]
    address = relative_to(folder)
    for case in dataset.cases:
        targets = case.image_targets or (case.target,) * len(case.images)
        ends = [escape_formula(cell(case)) for cell in last.values()]
        for image, target in zip(case.images, targets, strict=True):
            cells = [escape_formula(cell) for _, cell in task.cells(target)]
            rows.append([address(image), *cells, case.split, *ends])
    return rows


def table_text(dataset: Dataset, folder: Path) -> str:
    return csv_text(table_rows(dataset, folder))


def csv_text(rows: Sequence[Row]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class Sheet:
    """An .xlsx file that is being written, row by row; numbers are numbers in it."""

    def __init__(self) -> None:
        self._book = _openpyxl().Workbook(write_only=True)
        self._sheet = self._book.create_sheet()

    def append(self, row: Row) -> None:
        self._sheet.append(
            [_UNPRINTABLE.sub("\ufffd", x) if isinstance(x, str) else x for x in row]
        )

    @classmethod
    @contextlib.contextmanager
    def at(cls, path: Path) -> Iterator[Sheet]:
        """A sheet that appears at `path` once all of its rows are there."""
        with write_atomically(path, suffixes=(SHEET,)) as aside:
            sheet = cls()
            try:
                yield sheet
            finally:
                sheet._book.save(aside)  # or it would complain, and leave a temporary file


def row_appender(output: TextIO | Sheet | list[Row]) -> Callable[[Row], None]:
    """What adds a row to a sheet or list, or to a CSV file, where numbers have six digits."""
    if isinstance(output, Sheet | list):
        return output.append
    table = csv.writer(output, lineterminator="\n")
    return lambda row: table.writerow([f"{x:.6f}" if isinstance(x, float) else x for x in row])


def data_frame(rows: Sequence[Row]) -> Any:
    """Rows below their header as a pandas DataFrame, where no cell needs to be harmless."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise ConfigError('A DataFrame needs pandas: pip install "ogkd[bench]".') from error
    plain = [[unescape_formula(x) if isinstance(x, str) else x for x in row] for row in rows]
    return DataFrame(plain[1:], columns=plain[0])


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write a new table; a CSV file that exists is only accepted if it has the same text."""
    if path.suffix.lower() != SHEET:
        write_new(path, csv_text(rows))
        return
    if path.exists():
        raise ConfigError(f"{path} exists, so it is not overwritten.", argument="out")
    with Sheet.at(path) as sheet:
        for row in rows:
            sheet.append(row)


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


def read_rows(path: Path, columns: Columns | None = None) -> Rows:
    """Read a table, without its blank rows."""
    columns = _check_columns(columns or {})
    (_, titles), *lines = _lines(path, columns.get("path", "path"))
    header = _header(path, titles, columns)
    if "path" not in header:
        raise DataError(
            f"{path} needs the columns path and label (and optionally split and patient), "
            f"but has: {', '.join(titles)}.",
            argument="columns",
        )
    # Without a label, any other column may be a finding.
    once = _RESERVED if "label" in header else [name for name in header if name]
    if twice := sorted({name for name in once if header.count(name) > 1}):
        raise DataError(f"{path} has the column {twice[0]} twice.")
    rows = []
    for line, cells in lines:
        if not any(cells):
            continue
        if any(cells[len(header) :]):
            raise DataError(
                f"{path}, line {line}: {len(cells)} cells, but the header has {len(header)}."
            )
        row = dict(itertools.zip_longest(header, cells[: len(header)], fillvalue=""))
        if not row["path"] or "\0" in row["path"]:
            raise DataError(f"{path}, line {line}: the path is empty or has a zero byte in it.")
        rows.append((line, row))
    if not rows:
        raise DataError(f"{path} has no rows below its header.")
    return dict(zip(header, titles, strict=True)), rows


def _check_columns(columns: Columns) -> Columns:
    if unknown := set(columns) - set(_RENAMED):
        raise ConfigError(
            f"columns gives the headings of {', '.join(_RENAMED)}, but names '{min(unknown)}'.",
            argument="columns",
        )
    if len(set(map(fold_name, columns.values()))) < len(columns):
        raise ConfigError(
            f"columns gives one heading twice: {', '.join(columns.values())}.", argument="columns"
        )
    return columns


def _header(path: Path, titles: Sequence[str], columns: Columns) -> list[str]:
    """The names of the columns; one that would have the name of a renamed one has none."""
    renamed = {fold_name(heading): name for name, heading in columns.items()}
    folded = [fold_name(title) for title in titles]
    if missing := [heading for heading in columns.values() if fold_name(heading) not in folded]:
        raise DataError(
            f"{path} has no column '{missing[0]}', but: {', '.join(titles)}.", argument="columns"
        )
    names = ["" if title.lower() in columns else title.lower() for title in titles]
    return [renamed.get(fold, name) for fold, name in zip(folded, names, strict=True)]


# Files to lines: the number and the stripped cells of each

_UNPRINTABLE = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _lines(path: Path, heading: str) -> list[tuple[int, list[str]]]:
    """All lines of a table; `heading` is that of its paths."""
    try:
        content = read_bytes(path, most=_MOST)
        lines = _sheet_lines(content) if content[:4] == b"PK\3\4" else _text_lines(content, heading)
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"Cannot read {path} as a table ({error}). Save the table as .xlsx or 'CSV UTF-8'."
        ) from error
    if not lines:
        raise DataError(f"{path} is empty.")
    return [(number, [unescape_formula(cell.strip()) for cell in cells]) for number, cells in lines]


def _text_lines(content: bytes, heading: str) -> list[tuple[int, list[str]]]:
    text = _decode(content)

    def cells(delimiter: str, most: int | None = None) -> list[tuple[int, list[str]]]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        return [(reader.line_num, row) for row in itertools.islice(reader, most)]

    def rank(delimiter: str) -> tuple[bool, int]:
        titles = [fold_name(cell) for _, row in cells(delimiter, 1) for cell in row]
        return fold_name(heading) in titles, len(titles)

    # Spreadsheets of many countries write semicolons into their CSV, because 0,5 is a number.
    return cells(max(",;\t", key=rank))


def _decode(content: bytes) -> str:
    """UTF-8; UTF-16, which begins with a mark; or what Western versions of Excel call CSV."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Where some letters are UTF-8, the others are damaged, not Windows-1252.
        text = content.decode("cp1252")
        if _UNPRINTABLE.search(text) or not content.decode("utf-8", "ignore").isascii():
            raise
        return text


def _sheet_lines(content: bytes) -> list[tuple[int, list[str]]]:
    """The rows of the first sheet of an .xlsx file, with the values that its formulas had."""
    load_workbook = _openpyxl().load_workbook
    lines = []
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if (size := sum(member.file_size for member in archive.infolist())) > _MOST:
                raise ValueError(f"it has {size:,} bytes, unpacked")
        with warnings.catch_warnings(action="ignore"):  # about styles and the like
            sheet = load_workbook(io.BytesIO(content), read_only=True, data_only=True).worksheets[0]
            sheet.reset_dimensions()  # those in the file may be wrong
            for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
                if number > _LONGEST:
                    raise ValueError(f"it has more than {_LONGEST:,} rows")
                if any(cell is not None for cell in row):
                    lines.append((number, list(map(_cell_text, row))))
    except Exception as error:  # of zipfile, of the XML parser, and any kind of openpyxl's own
        raise ValueError(f"it is damaged or not an .xlsx file: {error!r}") from error
    return lines


def _cell_text(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return "" if value is None else str(int(value) if whole else value)  # type: ignore[call-overload]


def _openpyxl() -> Any:
    try:
        import openpyxl
    except ImportError as error:
        raise DataError('Reading and writing .xlsx needs: pip install "ogkd[excel]".') from error
    return openpyxl
