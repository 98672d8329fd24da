"""Progress of long work on standard error: a bar on a terminal or in a notebook, else lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

_INTERVAL = 30.0  # seconds between two lines where there is no terminal
quiet = False  # `ogkd --quiet` sets it: nothing is shown
_shown: ContextVar[Progress | None] = ContextVar("progress", default=None)


class Bar:
    """Progress of one piece of work; without `progress`, a line now and then for logs."""

    def __init__(self, description: str, total: int | None, progress: Progress | None) -> None:
        self._description, self._total, self._progress = description, total, progress
        self._note, self._done, self._last = "", 0, time.monotonic()
        if progress is not None:
            self._task = progress.add_task(description, total=total, note="")

    def advance(self, steps: int = 1) -> None:
        self._done += steps
        if self._progress is not None:
            self._progress.advance(self._task, steps)
        elif not quiet and time.monotonic() - self._last >= _INTERVAL:
            self._last = time.monotonic()
            total = "" if self._total is None else f"/{self._total}"
            line = f"{self._description} {self._done}{total} {self._note}".rstrip()
            print(line, file=sys.stderr, flush=True)

    def describe(self, note: str) -> None:
        """Set the one number after the bar, such as a rate or a loss; longer text is cut."""
        self._note = note
        if self._progress is not None:
            self._progress.update(self._task, note=note)

    def close(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.remove_task(self._task)


@contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Bar]:
    """Show progress of `total` steps (None: unknown)."""
    # Imported here: `ogkd --help` shows no progress.
    from rich import progress as bars
    from rich.console import Console
    from rich.table import Column

    def text(template: str, width: int) -> bars.TextColumn:
        column = Column(no_wrap=True, overflow="ellipsis", max_width=width)
        return bars.TextColumn(template, markup=False, table_column=column)

    if (outer := _shown.get()) is not None:  # a step of longer work: below its bar while it lasts
        bar = Bar(description, total, outer)
        try:
            yield bar
        finally:
            bar.close()
        return
    console = Console(stderr=True)
    if quiet or not (console.is_terminal or console.is_jupyter):
        yield Bar(description, total, None)
        return
    columns = (
        text("{task.description}", 24),
        bars.BarColumn(bar_width=None),  # takes the room that the others leave
        bars.MofNCompleteColumn(table_column=Column(min_width=len(f"{total}/{total}"))),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
        text("{task.fields[note]}", 16),
    )
    with bars.Progress(*columns, console=console, expand=True) as progress:
        token = _shown.set(progress)
        try:
            yield Bar(description, total, progress)
        finally:
            _shown.reset(token)
