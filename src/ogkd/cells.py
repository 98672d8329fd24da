"""Tables: cells that someone may open in a spreadsheet, and tables in plain text."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates cells that start with these


def escape_formula(text: str) -> str:
    """Quote a cell that a spreadsheet would evaluate as a formula; `unescape_formula` undoes it."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def unescape_formula(cell: str) -> str:
    """Read a cell that `escape_formula` wrote."""
    quoted = cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA)
    return cell[1:] if quoted else cell


def escape_path(path: object) -> str:
    """Write a path so that it still opens the same file but is never a formula."""
    text = str(path)
    return f"./{text}" if escape_formula(text) != text else text


def terminal_width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def text_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The lines of a table in plain text; one that is too wide for the terminal continues below."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    limit = terminal_width()
    names = [_shorten(row[0], limit // 3) for row in cells]
    first = max(map(len, names))
    columns = list(zip(*(row[1:] for row in cells), strict=True))
    widths = [max(map(len, column)) + 2 for column in columns]
    start = 0
    while start < len(columns):
        end = start + 1
        while end < len(columns) and first + sum(widths[start : end + 1]) <= limit:
            end += 1
        if start:
            yield ""
        for number, name in enumerate(names):
            shown = [f"{columns[at][number]:>{widths[at]}}" for at in range(start, end)]
            yield f"{name:{first}}{''.join(shown)}".rstrip()
        start = end


def _shorten(name: str, limit: int) -> str:
    return name if len(name) <= limit else f"{name[: limit - 1]}\u2026"
