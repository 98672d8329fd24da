"""Progress bars for long work, on standard error; silent unless that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar:
    """One line of progress."""

    def __init__(self, progress: Progress, total: int | None, description: str) -> None:
        self._progress = progress
        self._task = progress.add_task(description, total=total, note="")

    def advance(self, steps: int = 1) -> None:
        self._progress.advance(self._task, steps)

    def describe(self, note: str) -> None:
        """Set the text after the bar, such as a rate or a loss."""
        self._progress.update(self._task, note=note)


@contextmanager
def progress_bar(description: str, total: int | None = None) -> Iterator[Bar]:
    """Show a bar for `total` steps (None: unknown), on a terminal only."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Bar(progress, total, description)
