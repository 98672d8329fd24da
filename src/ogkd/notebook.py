"""What notebooks show of our objects: small tables in HTML. All text is escaped; no scripts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from html import escape

# The notebook's own colours, light or dark.
_STYLE = (
    "<style>.ogkd table{border-collapse:collapse;margin:.4em 0}"
    ".ogkd td,.ogkd th{padding:.15em .7em;text-align:right;vertical-align:middle;"
    "border-bottom:1px solid #8884}.ogkd td:first-child,.ogkd th:first-child{text-align:left}"
    ".ogkd p{margin:.3em 0;max-width:60em}.ogkd small{opacity:.75}"
    ".ogkd img{height:64px;margin:1px;vertical-align:middle}</style>"
)


class Html(str):
    """Text that is HTML already."""


def panel(title: str, *parts: str) -> str:
    """A heading and what belongs to it; plain strings become paragraphs."""
    body = "".join(part if isinstance(part, Html) else f"<p>{escape(part)}</p>" for part in parts)
    return f'{_STYLE}<div class="ogkd"><p><b>{escape(title)}</b></p>{body}</div>'


def small(text: str) -> Html:
    return Html(f"<p><small>{escape(text)}</small></p>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """A table; its cells are escaped unless they are HTML."""
    first = "".join(f"<th>{_cell(cell)}</th>" for cell in head)
    rest = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return Html(f"<table><thead><tr>{first}</tr></thead><tbody>{rest}</tbody></table>")


def text_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The lines of a table in plain text; one that is too wide for the terminal continues below."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    most = max(40, shutil.get_terminal_size((80, 24)).columns)
    names = [_short(row[0], most // 3) for row in cells]
    first = max(map(len, names))
    columns = list(zip(*(row[1:] for row in cells), strict=True))
    widths = [max(map(len, column)) + 2 for column in columns]
    start = 0
    while start < len(columns):
        end = start + 1
        while end < len(columns) and first + sum(widths[start : end + 1]) <= most:
            end += 1
        if start:
            yield ""
        for number, name in enumerate(names):
            shown = [f"{columns[at][number]:>{widths[at]}}" for at in range(start, end)]
            yield f"{name:{first}}{''.join(shown)}".rstrip()
        start = end


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}\u2026"


def pictures(addresses: Iterable[str], *, lost: int = 0) -> Html:
    """Images in a row, given as data URIs, and how many cannot be shown."""
    shown = "".join(f'<img alt="" src="{escape(address)}">' for address in addresses)
    return Html(shown + (f" <small>{lost} not readable</small>" if lost else ""))


def _cell(value: object) -> str:
    return value if isinstance(value, Html) else escape(str(value))
