"""How long runs will take, and the live table (or plain lines) about runs in progress."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ogkd.bench.runner import method_of
from ogkd.bench.runs import FinishedRun, RunSpec
from ogkd.errors import OgkdError
from ogkd.methods import METHODS, make_method

# Before any run of a method is finished: seconds of one run at 16 shots on one core, by its `cost`.
_ROUGH = {"instant": 0.5, "seconds": 2.0, "minutes": 120.0, "slow": 300.0}
_ONLINE = 12.0  # times as long if every step encodes new crops (measured: docs, cluster)
_SPREAD = 5.0  # a guess may be wrong by this factor, in both directions
_SHOTS = 16


@dataclass(frozen=True)
class Span:
    """Seconds from `least` to `most`; both are the same once runs of this kind were measured."""

    least: float
    most: float

    def __str__(self) -> str:
        if self.most <= 1.2 * self.least:
            return f"about {duration(self.most)}"
        return f"{duration(self.least)} to {duration(self.most)}"


class Pace:
    """How long a run takes, learned from finished runs of the same kind and their shots.

    `measured` has the seconds of runs by hash, for kinds without a finished run (probe.py).
    """

    def __init__(
        self, finished: Iterable[FinishedRun] = (), measured: Mapping[str, float] | None = None
    ) -> None:
        self._measured = {} if measured is None else measured
        self._seen: dict[Hashable, dict[int, list[float]]] = {}  # by kind and shots
        self._errors: dict[str, list[float]] = {}  # by cost: measured by guessed
        for run in finished:
            seconds = run.result["seconds"].items()
            self.learn(run.spec, sum(took for phase, took in seconds if phase != "load"))

    def learn(self, spec: RunSpec, seconds: float) -> None:
        with suppress(KeyError, OgkdError):  # of a plugin that is not loaded, or another version
            mine = self._seen.setdefault(_kind(spec), {})
            mine.setdefault(spec.shots or _SHOTS, []).append(seconds)
            if METHODS[spec.method].needs_images:  # others take as long as the test images
                errors = self._errors.setdefault(METHODS[spec.method].cost, [])
                errors.append(seconds / _guess(spec))

    def knows(self, spec: RunSpec) -> bool:
        """Whether a run of this kind is finished."""
        return _kind(spec) in self._seen

    def of(self, spec: RunSpec) -> Span:
        """Other shots take as long (heads on features) up to in proportion (training)."""
        shots = spec.shots or _SHOTS
        if known := self._seen.get(_kind(spec)):
            near = min(known, key=lambda count: abs(math.log(count / shots)))
            seconds = median(known[near])
            return Span(*sorted((seconds, seconds * shots / near)))
        if (measured := self._measured.get(spec.hash)) is not None:
            return Span(measured, measured)
        # A machine that was slow for methods like this is slow for it. Others say nothing:
        # adapters mostly wait for images to be encoded, prompt learners for the text tower.
        errors = self._errors.get(METHODS[spec.method].cost)
        seconds = _guess(spec) * (median(errors) if errors else 1.0)
        return Span(seconds / _SPREAD, seconds * _SPREAD)


def _kind(spec: RunSpec) -> Hashable:
    """What its duration depends on beside its images: method, epochs, batches and views."""
    return _kind_of(spec.method, spec.preset, json.dumps(spec.settings, sort_keys=True))


@cache
def _kind_of(name: str, preset: str | None, settings: str) -> Hashable:
    method = make_method(name, preset=preset, settings=json.loads(settings))
    train = getattr(method.config, "train", None)
    length = getattr(train, "epochs", None), getattr(train, "batch_size", None)
    return name, length, method.config.views, method.as_benchmarked


def _guess(spec: RunSpec) -> float:
    """Seconds of a run by the cost of its method; what does not train takes its time to encode."""
    seconds = _ROUGH.get(METHODS[spec.method].cost, 2.0) * (spec.shots or _SHOTS) / _SHOTS
    method = method_of(spec)
    if method.config.views == "online":
        return seconds * _ONLINE
    return seconds if method.needs_training else seconds * max(1, method.kept_views)


def estimate(specs: Iterable[RunSpec], pace: Pace) -> Span:
    """Seconds for these runs, one after the other."""
    spans = [pace.of(spec) for spec in specs]
    return Span(sum(span.least for span in spans), sum(span.most for span in spans))


class Progress:
    """Shows the events of workers; a context manager that is called with each event.

    What remains is estimated from `pace`, which learns from each run that ends.
    """

    def __init__(self, specs: Sequence[RunSpec], *, done: int, pace: Pace, workers: int) -> None:
        self.total = done + len(specs)
        self.done = done
        self.failed = 0
        self._left = {spec.hash: spec for spec in specs}
        self._pace = pace
        self._workers = max(1, workers)
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
        ended = [self._left.pop(key) for key in record.get("specs", ()) if key in self._left]
        if event == "done":
            self.done += record["runs"]
            for spec in ended:
                self._pace.learn(spec, seconds / len(record["specs"]))
            left = f", {self.remaining} left" if self._left else ""
            self._line(f"done   {self.done}/{self.total}  {what}  {seconds:.1f} s{left}")
        elif event == "failed":
            self.failed += record["runs"]
            self._line(f"FAILED {what}: {record['error']}", always=True)
        elif event == "died":
            self._line(f"A worker died (code {record['code']}); another one takes over.", True)

    @property
    def remaining(self) -> Span:
        """The time left on all workers together."""
        whole = estimate(self._left.values(), self._pace)
        return Span(whole.least / self._workers, whole.most / self._workers)

    def _line(self, text: str, always: bool = False) -> None:
        if always or not self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None)
        for head in ("done", "running", "failed", "total", "elapsed", "remaining"):
            table.add_column(head, justify="right")
        now = time.perf_counter()
        counts = (self.done, len(self._running), self.failed, self.total)
        table.add_row(*map(str, counts), duration(now - self._began), str(self.remaining))
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
