"""One worker: lock a group of runs, run it, write its results, take the next one.

Workers share nothing but the folder of runs. The operating system releases a lock with its
process, so workers of several commands, or of machines with a common disk, can work on one folder
and nothing is run twice. workers.py starts this loop several times.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from ogkd.backbones import Backbone, load_backbone
from ogkd.bench.runner import RunGroup, Runner, RunResult, group_runs
from ogkd.bench.runs import FrozenRecord, RunsFolder, RunSpec
from ogkd.bench.sources import Source
from ogkd.errors import ConfigError, OgkdError, StorageError, out_of_memory
from ogkd.files import storage_errors
from ogkd.methods import METHODS

MOST_ATTEMPTS = 3  # at a group whose processes die
ATTEMPTS = ".tries"  # suffix of the file that counts them
_COSTS = {"instant": 0, "seconds": 1, "minutes": 2, "slow": 3}
_PAUSE = 0.5  # seconds between checks of groups that other processes are working on


class Job(FrozenRecord):
    """Everything that a worker in another process needs."""

    out: str  # the folder of runs
    specs: tuple[RunSpec, ...]
    sources: dict[str, Source]
    backbone: str  # its name, or its path on this machine
    device: str = "auto"
    engine: str = "torch"  # that encodes images
    threads: int | None = None

    @property
    def folder(self) -> RunsFolder:
        return RunsFolder(Path(self.out))

    def groups(self) -> list[RunGroup]:
        return claim_order(group_runs(self.specs))


def claim_order(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Expensive methods and many images first, so that no long group starts last.

    Equals take turns by dataset: one worker encodes a dataset while others wait for it.
    """
    by_dataset: dict[str, list[RunGroup]] = {}
    for group in groups:
        by_dataset.setdefault(group.specs[0].dataset, []).append(group)
    rounds = itertools.zip_longest(*by_dataset.values())
    in_turn = [group for some in rounds for group in some if group is not None]

    def cost(group: RunGroup) -> tuple[int, float]:
        spec = group.specs[0]
        method = METHODS[spec.method]
        return _COSTS.get(method.cost, 1), len(group.specs) * (spec.shots or math.inf)

    return sorted(in_turn, key=cost, reverse=True)


def work(job: Job, notify: Callable[[], object] = lambda: None) -> None:
    """Run every group of a job that no other process has run or is running."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)

    def load() -> Backbone:
        return load_backbone(job.backbone, device=job.device, engine=job.engine)

    run_groups(job.folder, job.groups(), Runner(load, job.sources), notify)


def run_groups(
    folder: RunsFolder,
    groups: Sequence[RunGroup],
    runner: Runner,
    notify: Callable[[], object] = lambda: None,
) -> None:
    """Run the groups that are left; return when all are settled, here or by other processes.

    `notify` is called whenever results or failures were written.
    """
    worker = _Worker(folder, groups, runner, notify)
    if worker.left:
        worker.check_backbone(runner.backbone.digest)
    while worker.left:
        if (claimed := worker.claim()) is None:
            time.sleep(_PAUSE)
            continue
        group, lock = claimed
        with lock:
            worker.attempt(group)


def unsuitable(folder: RunsFolder, problem: str) -> ConfigError:
    """The error about a folder that these runs must not be in."""
    return ConfigError(f"{folder.root} {problem}. Choose another folder.", argument="out")


def lock_group(folder: RunsFolder, group: RunGroup) -> contextlib.ExitStack:
    """Lock each run of a group, all or none: groups of two grids may overlap.

    Timeout if another process has one of them; closing what is returned releases them.
    """
    claims = _claims(folder)
    with contextlib.ExitStack() as locks:
        for spec in group.specs:
            locks.enter_context(FileLock(claims / f"{spec.hash}.lock", blocking=False))
        return locks.pop_all()


def _claims(folder: RunsFolder) -> Path:
    claims = folder.root / ".claims"
    claims.mkdir(parents=True, exist_ok=True)
    return claims


class _Worker:
    """The groups that are left in a folder, and how they are claimed, run and settled."""

    def __init__(
        self,
        folder: RunsFolder,
        groups: Sequence[RunGroup],
        runner: Runner,
        notify: Callable[[], object],
    ) -> None:
        self._folder = folder
        self._runner = runner
        self._notify = notify
        self._specs = [spec for group in groups for spec in group.specs]
        self._digests: dict[tuple[str, tuple[str | None, str]], str] = {}
        self.left = [group for group in groups if not self._is_settled(group)]

    def _is_settled(self, group: RunGroup) -> bool:
        has, failure_of = self._folder.has, self._folder.failure_of
        return all(has(spec) or failure_of(spec).is_file() for spec in group.specs)

    def claim(self) -> tuple[RunGroup, contextlib.ExitStack] | None:
        """Take the next group that no process works on, locked."""
        for group in list(self.left):
            try:
                lock = lock_group(self._folder, group)
            except Timeout:
                if self._is_settled(group):
                    self.left.remove(group)
                continue
            self.left.remove(group)
            if not self._is_settled(group):
                return group, lock
            lock.close()
        return None

    def attempt(self, group: RunGroup) -> None:
        """Run a locked group, unless that has cost too many processes."""
        attempts = _claims(self._folder) / f"{group.name}{ATTEMPTS}"
        before = int(attempts.read_text() or 0) if attempts.is_file() else 0
        if before >= MOST_ATTEMPTS:
            # A killed process cannot report why; without this limit it would be tried forever.
            died = f"The process died {before} times while working on this (out of memory?)."
            self._fail(group, died)
            attempts.unlink(missing_ok=True)
            return
        with storage_errors(self._folder.root):
            attempts.write_text(str(before + 1))
        try:
            self._run(group)
        finally:
            attempts.unlink(missing_ok=True)  # remains only if the process is killed

    def _run(self, group: RunGroup) -> None:
        """Run a group; if it fails, run by run, so that only the run with the error fails."""
        try:
            results = self._runner.run(group)
        except StorageError as error:
            raise StorageError(str(error), argument="out") from error
        except Exception as error:
            if len(group.specs) == 1:
                self._fail(group, _reason(error))
                return
            for spec in group.specs:
                if not self._folder.has(spec):
                    self._run(RunGroup((spec,)))
        else:
            self._store(results)

    def _store(self, results: Sequence[RunResult]) -> None:
        """Write the results of a group; runs that were finished before are kept."""
        first = results[0]
        self.check_backbone(str(first.result["backbone_digest"]))
        self._check_images(first.spec, str(first.result["data_sha256"]))
        for run in results:
            self._folder.write(run.spec, run.result, run.predictions)
        self._notify()

    def _fail(self, group: RunGroup, reason: str) -> None:
        for spec in group.specs:
            if not self._folder.has(spec):
                self._folder.write_failure(spec, reason)
        self._notify()

    def check_backbone(self, digest: str) -> None:
        """Refuse another backbone than that of finished runs: tables must not mix them."""
        known = self._known_digest("backbone_digest", self._specs) or digest
        if known != digest:
            raise unsuitable(
                self._folder,
                f"contains runs of '{self._specs[0].backbone}' with digest {known[:12]}, but this "
                f"one has {digest[:12]} (other weights, or another engine)",
            )

    def _check_images(self, spec: RunSpec, digest: str) -> None:
        same = [other for other in self._specs if _collection(other) == _collection(spec)]
        if (self._known_digest("data_sha256", same) or digest) != digest:
            raise unsuitable(
                self._folder, f"contains runs on other images of '{spec.dataset}' (files changed)"
            )

    def _known_digest(self, name: str, specs: Sequence[RunSpec]) -> str | None:
        """The digest that a finished run of these was made with; None if none is finished."""
        key = (name, _collection(specs[0]))
        if key not in self._digests:
            finished = next(filter(self._folder.has, specs), None)
            if finished is None:
                return None
            self._digests[key] = str(self._folder.read(finished).result.get(name))
        return self._digests[key]


def _collection(spec: RunSpec) -> tuple[str | None, str]:
    return spec.data, spec.dataset


def _reason(error: Exception) -> str:
    if isinstance(error, OgkdError):
        return str(error)
    if out_of_memory(error):
        return "There was not enough memory for this run. Use fewer workers."
    return "".join(traceback.format_exception(error, limit=8))


def one_line(reason: str) -> str:
    """A failure in one line: the end of a traceback, or the beginning of a message."""
    lines = [line.strip() for line in reason.strip().splitlines()] or [""]
    return lines[-1] if lines[0].startswith("Traceback") else " ".join(lines[:2])


def main(job: str) -> None:
    """Work on a job in a process of its own, which ends with its parent.

    The job was the first line of standard input, which the parent keeps open. An error that ends
    all workers is written to standard output as JSON; what libraries print goes to the log.
    """
    reply = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(Job.model_validate_json(job))
    except OgkdError as error:
        json.dump({"error": str(error), "argument": error.argument}, reply)
        reply.flush()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the parent has ended, in whatever way
    os._exit(1)
