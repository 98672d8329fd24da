"""Progress bars for long work: on standard error if that is a terminal, or in a notebook's cell."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

_NAME, _NOTE = 24, 16  # characters: the most for what is done, the least for one number about it

_DELAY = 0.5  # seconds before a notebook shows a bar: short work leaves no trace
_PAUSE = 0.25  # seconds between its updates


class Bar(Protocol):
    """One line of progress."""

    def advance(self, steps: int = 1) -> None: ...

    def describe(self, note: str) -> None:
        """Set the one number after the bar, such as a rate or a loss; longer text is cut."""


class _TerminalBar:
    def __init__(self, progress: Progress, total: int | None, description: str) -> None:
        self._progress = progress
        self._task = progress.add_task(description, total=total, note="")

    def advance(self, steps: int = 1) -> None:
        self._progress.advance(self._task, steps)

    def describe(self, note: str) -> None:
        self._progress.update(self._task, note=note)


class _NotebookBar:
    """A bar in a cell's output, which one line replaces at the end; it needs no widgets."""

    def __init__(self, total: int | None, description: str) -> None:
        self._total, self._description = total, description
        self._done, self._note = 0, ""
        self._began = time.monotonic()
        self._next = self._began + _DELAY
        self._handle: Any = None

    def advance(self, steps: int = 1) -> None:
        self._done += steps
        self._show()

    def describe(self, note: str) -> None:
        self._note = note
        self._show()

    def finish(self) -> None:
        """Leave what was done, if a bar was shown at all."""
        if self._handle is not None:
            self._show(last=True)

    def _show(self, *, last: bool = False) -> None:
        from IPython.display import HTML, display

        now = time.monotonic()
        if now < self._next and not last:
            return
        self._next = now + _PAUSE
        count = str(self._done) if self._total is None else f"{self._done} of {self._total}"
        words = f"{count}, {now - self._began:.0f} s" + (f", {self._note}" if self._note else "")
        value = "" if self._total is None else f' value="{self._done}" max="{self._total}"'
        drawn = "" if last else f" <progress{value}></progress>"
        page = HTML(f"<small>{escape(self._description)}{drawn} {escape(words)}</small>")
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


@contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Bar]:
    """Show a bar for `total` steps (None: unknown), on a terminal or in a notebook only."""
    if _in_notebook():
        bar = _NotebookBar(total, description)
        try:
            yield bar
        finally:
            bar.finish()
        return
    console = Console(stderr=True)
    columns = _columns(console.width, description, total)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield _TerminalBar(progress, total, description)


def _columns(width: int, description: str, total: int | None) -> list[ProgressColumn]:
    """Bar, count and times always fit into `width`; name and note are cut to what they leave."""
    room = width - 2 * len("0:00:00") - len(f"{total}/{total}") - 5  # five spaces
    name = min(len(description), _NAME)
    bar = max(10, min(40, room - name - _NOTE))
    return [
        _text("{task.description}", name),
        BarColumn(bar_width=bar),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        _text("{task.fields[note]}", max(1, room - name - bar)),
    ]


def _text(template: str, most: int) -> TextColumn:
    column = Column(no_wrap=True, overflow="ellipsis", max_width=most)
    return TextColumn(template, markup=False, table_column=column)


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this; IPython in a terminal is not one."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
