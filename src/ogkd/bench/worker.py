"""One worker: lock a group of runs, run it, write its results, take the next one.

The operating system releases a lock with its process, so workers of several commands, or of
machines with a common disk, can share one folder and nothing is run twice.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from ogkd.backbones import Backbone, load_backbone
from ogkd.bench.runner import RunGroup, Runner, RunResult, group_runs
from ogkd.bench.runs import FrozenRecord, RunsFolder, RunSpec
from ogkd.bench.sources import Source
from ogkd.errors import ConfigError, OgkdError, StorageError, out_of_memory
from ogkd.files import storage_errors

OnEvent = Callable[[dict[str, Any]], None]
"""Receives small records about what happens: start, done, failed, died."""

MOST_ATTEMPTS = 3  # at a group whose processes die
ATTEMPTS = ".tries"  # suffix of the file that counts them
_PAUSE = 0.5  # seconds between checks of groups that other processes are working on


class Job(FrozenRecord):
    """Everything that a worker in another process needs."""

    specs: tuple[RunSpec, ...]
    sources: dict[str, Source]
    backbone: str  # where it is on this machine
    device: str = "auto"
    engine: str = "torch"  # that encodes images
    threads: int | None = None

    def groups(self) -> list[RunGroup]:
        return group_runs(self.specs)


def make_runner(job: Job) -> Runner:
    """A runner for the job's backbone and datasets; the backbone is loaded when needed."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)

    def load() -> Backbone:
        return load_backbone(job.backbone, device=job.device, engine=job.engine)

    return Runner(load, job.sources)


@dataclass(frozen=True)
class GroupAnswer:
    """The results of a group, or why there are none."""

    results: list[RunResult] | None = None
    error: str = ""
    no_space: bool = False


def answer(runner: Runner, group: RunGroup) -> GroupAnswer:
    """Train and test a group; an error is an answer too."""
    try:
        return GroupAnswer(runner.run(group))
    except OgkdError as error:
        return GroupAnswer(error=str(error), no_space=isinstance(error, StorageError))
    except Exception as error:
        if out_of_memory(error):
            return GroupAnswer(error="There was not enough memory for this run. Use fewer workers.")
        return GroupAnswer(error=traceback.format_exc(limit=8))


def unsuitable(folder: RunsFolder, problem: str) -> ConfigError:
    """The error about a folder that these runs must not be in."""
    return ConfigError(f"{folder.root} {problem}. Choose another folder.", argument="out")


def lock_group(folder: RunsFolder, group: RunGroup) -> contextlib.ExitStack:
    """Lock each run of a group, all or none: groups of two grids may overlap.

    Timeout if another process has one of them; closing what is returned releases them.
    """
    place = _claims(folder)
    with contextlib.ExitStack() as held:
        for spec in group.specs:
            held.enter_context(FileLock(place / f"{spec.hash}.lock", blocking=False))
        return held.pop_all()


def _claims(folder: RunsFolder) -> Path:
    place = folder.root / ".claims"
    place.mkdir(parents=True, exist_ok=True)
    return place


class Ledger:
    """Which groups are left in a folder; writes and reports results and failures.

    It knows the backbone and the images that finished runs were made with: results of others must
    not be in the same table.
    """

    def __init__(self, folder: RunsFolder, groups: Sequence[RunGroup], on_event: OnEvent) -> None:
        self.folder = folder
        self.on_event = on_event
        self.left = [group for group in groups if not self._is_settled(group)]
        self._images: dict[tuple[str | None, str], str] = {}
        self._backbone = ""
        for spec in (spec for group in groups for spec in group.specs):
            if (spec.data, spec.dataset) not in self._images and folder.has(spec):
                result = folder.read(spec).result
                self._images[spec.data, spec.dataset] = str(result.get("data_sha256"))
                self._backbone = self._backbone or str(result.get("backbone_digest"))

    def _is_settled(self, group: RunGroup) -> bool:
        has, failure_of = self.folder.has, self.folder.failure_of
        return all(has(spec) or failure_of(spec).is_file() for spec in group.specs)

    def check_backbone(self, name: str, digest: str) -> None:
        if (self._backbone or digest) != digest:
            raise unsuitable(
                self.folder,
                f"contains runs of '{Path(name).name}' with digest {self._backbone[:12]}, but "
                f"this one has {digest[:12]} (other weights, or another engine)",
            )

    def claim(self, without: Container[str] = ()) -> tuple[RunGroup, contextlib.ExitStack] | None:
        """Take the next group that no process works on, locked; none of the datasets `without`."""
        for group in list(self.left):
            if group.specs[0].dataset in without:
                continue
            try:
                lock = lock_group(self.folder, group)
            except Timeout:
                if self._is_settled(group):
                    self.left.remove(group)
                continue
            self.left.remove(group)
            if not self._is_settled(group):
                return group, lock
            lock.close()
        return None

    def start(self, group: RunGroup) -> None:
        self._report("start", group)

    def store(self, group: RunGroup, found: GroupAnswer) -> list[RunGroup]:
        """Write the results of a group; runs that were finished before are kept and not counted.

        Returns what must be tried again: a failed group one by one, so that only the run with the
        error fails.
        """
        if found.no_space:
            raise StorageError(found.error, argument="out")
        if found.results is None and len(group.specs) > 1:
            return [RunGroup((spec,)) for spec in group.specs if not self.folder.has(spec)]
        if found.results is None:
            self.fail(group, found.error)
            return []
        spec, sha = found.results[0].spec, str(found.results[0].result["data_sha256"])
        if self._images.setdefault((spec.data, spec.dataset), sha) != sha:
            raise unsuitable(
                self.folder, f"contains runs on other images of '{spec.dataset}' (files changed)"
            )
        new = [run for run in found.results if not self.folder.has(run.spec)]
        for run in new:
            self.folder.write(run.spec, run.result, run.predictions)
        seconds = sum(sum(run.result["seconds"].values()) for run in found.results)
        self._report("done", group, runs=len(new), seconds=seconds)
        return []

    def fail(self, group: RunGroup, reason: str) -> None:
        """Record why the unfinished runs of a group failed."""
        for spec in group.specs:
            if not self.folder.has(spec):
                self.folder.write_failure(spec, reason)
        self._report("failed", group, error=one_line(reason))

    def _report(self, event: str, group: RunGroup, **more: Any) -> None:
        hashes = [spec.hash for spec in group.specs]
        what = {"group": group.name, "runs": len(hashes), "what": str(group), "specs": hashes}
        self.on_event({"event": event} | what | more)


def one_line(reason: str) -> str:
    """A failure in one line: the end of a traceback, or the beginning of a message."""
    lines = [line.strip() for line in reason.strip().splitlines()] or [""]
    return lines[-1] if lines[0].startswith("Traceback") else " ".join(lines[:2])


def run_groups(
    folder: RunsFolder, groups: Sequence[RunGroup], runner: Runner, on_event: OnEvent
) -> None:
    """Run every group that no other process has run or is running; return when all are settled."""
    ledger = Ledger(folder, groups, on_event)
    if ledger.left:
        ledger.check_backbone(groups[0].specs[0].backbone, runner.backbone.digest)
    while ledger.left:
        if (claimed := ledger.claim()) is None:
            time.sleep(_PAUSE)
            continue
        group, lock = claimed
        with lock:
            _attempt(ledger, group, runner)


def _attempt(ledger: Ledger, group: RunGroup, runner: Runner) -> None:
    """Run a locked group, unless that has cost too many processes."""
    attempts = _claims(ledger.folder) / f"{group.name}{ATTEMPTS}"
    before = int(attempts.read_text() or 0) if attempts.is_file() else 0
    if before >= MOST_ATTEMPTS:
        # A killed process cannot report why; without this limit it would be tried forever.
        died = f"The process died {before} times while working on this (out of memory?)."
        ledger.fail(group, died)
        attempts.unlink(missing_ok=True)
        return
    with storage_errors(ledger.folder.root):
        attempts.write_text(str(before + 1))
    todo = [group]
    try:
        while todo:
            part = todo.pop(0)
            ledger.start(part)
            todo[:0] = ledger.store(part, answer(runner, part))
    finally:
        attempts.unlink(missing_ok=True)  # remains only if the process is killed


def main() -> None:
    """`python -m ogkd.bench.worker RUNS JOB.json`: one worker that prints its events as JSON."""
    root, job_file = Path(sys.argv[1]), Path(sys.argv[2])

    def on_event(record: dict[str, Any]) -> None:
        print(json.dumps(record), flush=True)

    job = Job.model_validate_json(job_file.read_text(encoding="utf-8"))
    try:
        run_groups(RunsFolder(root), job.groups(), make_runner(job), on_event)
    except OgkdError as error:
        on_event({"event": "fatal", "error": str(error), "argument": error.argument})
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
