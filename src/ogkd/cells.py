"""Cells of tables that someone may open in a spreadsheet."""

from __future__ import annotations

BOM = "\ufeff"  # at the start of a CSV: Excel then reads it as UTF-8
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates cells that start with these


def harmless(text: str) -> str:
    """Quote a cell that a spreadsheet would evaluate as a formula; `unquoted` undoes it."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def unquoted(cell: str) -> str:
    """Read a cell that `harmless` wrote."""
    quoted = cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA)
    return cell[1:] if quoted else cell


def harmless_path(path: object) -> str:
    """Write a path so that it still opens the same file but is never a formula."""
    text = str(path)
    return f"./{text}" if harmless(text) != text else text
