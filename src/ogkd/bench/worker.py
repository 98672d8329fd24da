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
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from ogkd.backbones import load_backbone
from ogkd.bench.runner import RunGroup, Runner, group_runs
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
    in_turn = [group for turn in rounds for group in turn if group is not None]

    def cost(group: RunGroup) -> tuple[int, float]:
        spec = group.specs[0]
        return _COSTS.get(METHODS[spec.method].cost, 1), len(group.specs) * (spec.shots or math.inf)

    return sorted(in_turn, key=cost, reverse=True)


def work(job: Job, notify: Callable[[], object] = lambda: None) -> None:
    """Run every group of a job that no other process has run or is running."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    runner = Runner(
        lambda: load_backbone(job.backbone, device=job.device, engine=job.engine), job.sources
    )
    run_groups(RunsFolder(Path(job.out)), job.groups(), runner, notify)


def run_groups(
    folder: RunsFolder,
    groups: Sequence[RunGroup],
    runner: Runner,
    notify: Callable[[], object] = lambda: None,
) -> None:
    """Run the groups that are left; return when all are settled, here or by other processes.

    `notify` is called whenever results or failures were written.
    """
    left = [group for group in groups if not _is_settled(folder, group)]
    if left:
        _check_backbone(folder, groups, runner)
    while left:
        before = len(left)
        for group in list(left):
            with contextlib.suppress(Timeout), lock_group(folder, group):
                if not _is_settled(folder, group):
                    _attempt(folder, group, runner)
                    notify()
                left.remove(group)
        if len(left) == before:
            time.sleep(_PAUSE)  # other processes work on all that is left


def _is_settled(folder: RunsFolder, group: RunGroup) -> bool:
    return all(folder.has(spec) or folder.failure_of(spec).is_file() for spec in group.specs)


def _check_backbone(folder: RunsFolder, groups: Sequence[RunGroup], runner: Runner) -> None:
    """Refuse another backbone than that of finished runs: tables must not mix them."""
    digest = runner.backbone.digest  # one that cannot be loaded ends the work here
    specs = (spec for group in groups for spec in group.specs)
    finished = next(filter(folder.has, specs), None)
    known = finished and folder.read(finished).result.get("backbone_digest")
    if finished is not None and known != digest:
        raise ConfigError(
            f"{folder.root} contains runs of '{finished.backbone}' with digest {str(known)[:12]}, "
            f"but this one has {digest[:12]} (other weights, or another engine).",
            argument="out",
        )


def lock_group(folder: RunsFolder, group: RunGroup) -> contextlib.ExitStack:
    """Lock each run of a group, all or none: groups of two grids may overlap.

    Timeout if another process has one of them; closing what is returned releases them.
    """
    folder.claims.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as locks:
        for spec in group.specs:
            locks.enter_context(FileLock(folder.claims / f"{spec.hash}.lock", blocking=False))
        return locks.pop_all()


def _attempt(folder: RunsFolder, group: RunGroup, runner: Runner) -> None:
    """Run a locked group, unless that has cost too many processes."""
    attempts = folder.claims / f"{group.name}{ATTEMPTS}"
    before = int(attempts.read_text() or 0) if attempts.is_file() else 0
    with storage_errors(folder.root):
        attempts.write_text(str(before + 1))
    try:
        if before >= MOST_ATTEMPTS:
            # A killed process cannot report why; without this limit it would be tried forever.
            died = f"The process died {before} times while working on this (out of memory?)."
            _fail(folder, group, died)
        else:
            _run(folder, group, runner)
    finally:
        attempts.unlink(missing_ok=True)  # remains only if the process is killed


def _run(folder: RunsFolder, group: RunGroup, runner: Runner) -> None:
    """Run a group; if it fails, run by run, so that only the run with the error fails."""
    try:
        results = runner.run(group)
    except StorageError as error:
        raise StorageError(str(error), argument="out") from error
    except Exception as error:
        if len(group.specs) == 1:
            _fail(folder, group, _reason(error))
            return
        for spec in group.specs:
            if not folder.has(spec):
                _run(folder, RunGroup((spec,)), runner)
        return
    for run in results:
        folder.write(run.spec, run.result, run.predictions)


def _fail(folder: RunsFolder, group: RunGroup, reason: str) -> None:
    for spec in group.specs:
        if not folder.has(spec):
            folder.write_failure(spec, reason)


def _reason(error: Exception) -> str:
    if isinstance(error, OgkdError):
        return str(error)
    if out_of_memory(error):
        return "There was not enough memory for this run. Use fewer workers."
    return "".join(traceback.format_exception(error, limit=8))


@dataclass(frozen=True)
class Ended:
    """How a worker ended: nothing was left, an error that ends all workers, or a death."""

    error: str = ""
    argument: str | None = None  # that the error is about
    death: str = ""


def work_elsewhere(job: str) -> Ended:
    """Work on a job (JSON) that another process made."""
    try:
        work(Job.model_validate_json(job))
    except OgkdError as error:  # an exception would mean that the worker is lost
        return Ended(str(error), argument=error.argument)
    return Ended()


def main(job: str) -> None:
    """Work in a process of its own, which ends with its parent.

    The job was the first line of standard input, which the parent keeps open. How it ended is
    written to standard output as JSON; what libraries print goes to the log.
    """
    reply = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.write(reply, json.dumps(vars(work_elsewhere(job))).encode())


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the parent has ended, in whatever way
    os._exit(1)
