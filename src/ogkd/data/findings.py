"""Tables in which an image may show several findings: a column for each, or a column `labels`.

A column has 1, 0 or nothing (unknown); `labels` lists the findings of an image, as edema|effusion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten

from ogkd.data.names import fold_name, read_class_names
from ogkd.data.task import ABSENT, PRESENT, UNKNOWN
from ogkd.errors import DataError, did_you_mean

LISTED = "labels"  # the column that lists findings
_BETWEEN = "|"
_NOTHING = ("no finding", "no findings", "none", "-")  # listed instead of findings: there are none
_VALUES = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "y"), PRESENT),
    **dict.fromkeys(("0", "0.0", "false", "no", "n"), ABSENT),
    # -1 is how large public tables of chest films mark what the reader left open
    **dict.fromkeys(("", "-1", "-1.0", "?", "unknown", "uncertain", "nan", "<na>"), UNKNOWN),
}
_WIDEST = 30  # letters of a column's cells in a note
_MOSTLY = 0.5  # share of cells that are 1 or 0, above which any other cell is a mistake

Lines = Sequence[tuple[int, Mapping[str, str]]]  # line number and cells of each row
# Names, what each row says of them, and columns that look like findings in other words.
Columns = tuple[tuple[str, ...], list[tuple[int, ...]], str]


def read_findings(
    path: Path, columns: Mapping[str, str], rows: Lines, wanted: Sequence[str] | None
) -> Columns:
    """The findings of a table; `columns` are those without another meaning, and their spelling.

    `wanted` names the findings to read; without it, they are all that the table has.
    """
    if wanted is None:
        if rows and LISTED in rows[0][1]:
            return _listed(path, rows, wanted)
        names = _binary_columns(path, columns, rows)
    else:
        by_name = {fold_name(name): name for name in columns}
        if rows and LISTED in rows[0][1] and not by_name.keys() & set(map(fold_name, wanted)):
            return _listed(path, rows, wanted)
        names = [_column(path, columns, by_name, name) for name in wanted]
    values = []
    for line, row in rows:
        if invalid := next((name for name in names if _value(row[name]) is None), None):
            raise DataError(
                f"{path}, line {line}: '{columns[invalid]}' is '{row[invalid]}', but a finding is "
                "1, 0 or empty."
            )
        values.append(tuple(_VALUES[_plain(row[name])] for name in names))
    rest = {} if wanted else {name: columns[name] for name in columns if name not in names}
    return read_class_names([columns[name] for name in names]), values, _in_words(rest, rows)


def _plain(cell: str) -> str:
    """A cell as `_VALUES` has it: 1,0 is a number in many countries."""
    return cell.lower().replace(",", ".")


def _value(cell: str) -> int | None:
    return _VALUES.get(_plain(cell))


def _column(path: Path, columns: Mapping[str, str], by_name: Mapping[str, str], wanted: str) -> str:
    column = by_name.get(fold_name(wanted))
    if not column:
        raise DataError(
            f"{path} has no column '{wanted}'.{did_you_mean(wanted, columns.values())} It has: "
            f"{', '.join(columns.values())}.",
            argument="findings",
        )
    return column


def _binary_columns(path: Path, columns: Mapping[str, str], rows: Lines) -> list[str]:
    """The columns that have 1 and 0 in them, and hardly anything else."""
    binary = []
    for name in filter(None, columns):
        values = [_value(row[name]) for _, row in rows]
        known = sum(value in (PRESENT, ABSENT) for value in values)
        strange = sum(value is None for value in values)
        if known > _MOSTLY * (known + strange):
            binary.append(name)
    if not binary:
        raise DataError(
            f"{path} needs the columns path and label, or a column of 1, 0 or nothing for each "
            f"finding, but has: {', '.join(rows[0][1])}."
        )
    return binary


def _in_words(columns: Mapping[str, str], rows: Lines) -> str:
    """The columns that may be findings all the same: empty, of words, or with two values."""
    described = []
    for name in filter(None, columns):
        cells = {row[name] for _, row in rows}
        values = sorted(cell for cell in cells if _value(cell) != UNKNOWN)
        if len(values) == 2 or not any(map(str.isdigit, "".join(values))):
            shown = shorten(", ".join(values), _WIDEST, placeholder=" ...") or "nothing known"
            described.append(f"{columns[name]} ({shown})")
    return ", ".join(described)


def _listed(path: Path, rows: Lines, wanted: Sequence[str] | None) -> Columns:
    """A finding that is not listed is absent; an empty cell says nothing about any of them."""
    each: list[set[str] | None] = []
    spelt: dict[str, str] = {}
    for line, row in rows:
        cell = row[LISTED]
        parts = [part.strip() for part in cell.split(_BETWEEN) if part.strip()]
        listed = {fold_name(part) for part in parts}
        nothing = listed & set(_NOTHING)
        if nothing and listed - nothing:
            raise DataError(
                f"{path}, line {line}: the labels are '{cell}', a finding and none at once."
            )
        spelt |= {
            fold_name(part): part for part in parts if fold_name(part) not in (*spelt, *_NOTHING)
        }
        each.append(listed - nothing if parts else None)
    names = list(wanted) if wanted is not None else [spelt[key] for key in sorted(spelt)]
    if unknown := sorted(set(spelt) - {fold_name(name) for name in names}):
        raise DataError(
            f"{path} lists findings that were not given: {', '.join(spelt[u] for u in unknown)}. "
            f"Given: {', '.join(names)}.",
            argument="findings",
        )
    if not names:
        raise DataError(f"{path}: the column {LISTED} lists no finding.")
    keys = [fold_name(name) for name in names]
    values = [
        tuple(UNKNOWN if listed is None else int(key in listed) for key in keys) for listed in each
    ]
    return read_class_names(names), values, ""
