"""What a person sees of a running benchmark: one live table, or plain lines without a terminal."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

__all__ = ["Watch"]


class Watch:
    """Counts what workers say; a context manager, called with each of their records."""

    def __init__(self, *, total: int, done: int, seconds: float, workers: int) -> None:
        self.total = total
        self.done = done
        self.failed = 0
        self._at_start = done
        self._estimate = seconds / max(1, workers)
        self._running: dict[str, tuple[str, float]] = {}
        self._began = time.perf_counter()
        self._console = Console(stderr=True)
        self._live = (
            Live(console=self._console, get_renderable=self._table, refresh_per_second=2)
            if self._console.is_terminal
            else None
        )

    def __enter__(self) -> Watch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, record: dict[str, Any]) -> None:
        event, group = record["event"], record.get("group", "")
        what, since = self._running.pop(group, (record.get("what", ""), time.perf_counter()))
        if event == "start":
            self._running[group] = (what, time.perf_counter())
            return
        seconds = time.perf_counter() - since
        if event == "done":
            self.done += record["runs"]
            self._line(f"done   {self.done}/{self.total}  {what}  {seconds:.1f} s")
        elif event == "failed":
            self.failed += record["runs"]
            self._line(f"FAILED {what}: {record['error']}", always=True)
        elif event == "died":
            self._line(f"A worker died (code {record['code']}); another one takes over.", True)

    def _line(self, text: str, always: bool = False) -> None:
        if self._live is None or always:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def eta(self) -> str:
        """How long the rest takes, from the runs of this session, else from the estimate."""
        left = self.total - self.done - self.failed
        new = self.done - self._at_start
        passed = time.perf_counter() - self._began
        seconds = left * passed / new if new else self._estimate
        return duration(seconds)

    def _table(self) -> Table:
        table = Table(box=None)
        for head in ("done", "running", "failed", "total", "passed", "still about"):
            table.add_column(head, justify="right")
        passed = duration(time.perf_counter() - self._began)
        counts = (self.done, len(self._running), self.failed, self.total)
        table.add_row(*map(str, counts), passed, self.eta())
        for what, since in list(self._running.values()):
            table.add_row("", "", "", "", duration(time.perf_counter() - since), what)
        return table


def duration(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s` or `12 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
