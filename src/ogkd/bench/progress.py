"""How long runs will take, and the live table (or plain lines) about runs in progress."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ogkd.bench.runner import method_of
from ogkd.bench.runs import FinishedRun, RunSpec
from ogkd.methods import METHODS

# Before any run of a method is finished: seconds of one run at 16 shots on one core, by its `cost`.
_ROUGH = {"instant": 0.5, "seconds": 2.0, "minutes": 120.0, "slow": 300.0}
_ONLINE = 12.0  # times as long if every step encodes new crops (measured: docs, cluster)
_SHOTS = 16


def estimate(specs: Sequence[RunSpec], finished: Sequence[FinishedRun]) -> float:
    """Seconds for these runs, one after the other.

    A run takes, for each shot, what the median run of its method took: training passes over the
    images a fixed number of times. Methods without finished runs are guessed roughly.
    """
    rates: dict[str, list[float]] = {}
    for run in finished:
        seconds = sum(took for phase, took in run.result["seconds"].items() if phase != "load")
        rates.setdefault(run.spec.method, []).append(seconds / (run.spec.shots or _SHOTS))
    total = 0.0
    for spec in specs:
        if spec.method in rates:
            rate = median(rates[spec.method])
        else:
            rate = _ROUGH.get(METHODS[spec.method].cost, 2.0) / _SHOTS
            rate *= _ONLINE if method_of(spec).config.views == "online" else 1.0
        total += (spec.shots or _SHOTS) * rate
    return total


class Progress:
    """Shows the events of workers; a context manager that is called with each event."""

    def __init__(self, *, total: int, done: int, seconds: float, workers: int) -> None:
        self.total = total
        self.done = done
        self.failed = 0
        self._at_start = done
        self._estimate = seconds / max(1, workers)
        self._running: dict[str, tuple[str, float]] = {}
        self._began = time.perf_counter()
        console = self._console = Console(stderr=True)
        self._live = Live(console=console, get_renderable=self._table, refresh_per_second=2)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()  # does nothing if it was not started

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
        if always or not self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None)
        for head in ("done", "running", "failed", "total", "elapsed", "remaining"):
            table.add_column(head, justify="right")
        now = time.perf_counter()
        passed, new = now - self._began, self.done - self._at_start
        left = self.total - self.done - self.failed
        remaining = left * passed / new if new else self._estimate
        counts = (self.done, len(self._running), self.failed, self.total)
        table.add_row(*map(str, counts), duration(passed), duration(remaining))
        for what, since in list(self._running.values()):
            table.add_row("", "", "", "", duration(now - since), what)
        return table


def duration(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s` or `12 s`.

    >>> duration(7500), duration(200)
    ('2 h 05 min', '3 min 20 s')
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
