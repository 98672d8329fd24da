"""Workers: one loop that claims groups of runs by lock files, here or in processes.

Workers share nothing but the folder of runs. The operating system releases a lock with its
process, so workers of several commands, or of machines with a common disk, can work on one folder
and nothing is run twice. Nothing is handed out and nothing is replaced: whoever is left takes what
a dead worker leaves.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from ogkd.backbones import load_backbone
from ogkd.bench.runner import RunGroup, Runner, group_runs
from ogkd.bench.runs import FrozenRecord, Plan, RunsFolder
from ogkd.bench.sources import Source
from ogkd.errors import ConfigError, OgkdError, StorageError, out_of_memory
from ogkd.files import storage_errors
from ogkd.methods import METHODS
from ogkd.progress import progress_bar

MOST_ATTEMPTS = 3  # at a group whose processes die
_COSTS = {"instant": 0, "seconds": 1, "minutes": 2, "slow": 3}
_PAUSE = 0.5  # seconds between two looks at other processes
_ERROR = 2  # exit code of a worker that met an error which must end all
# The job is read before the slow imports, so that the command need not wait to write it.
_WORKER = "import sys; job = sys.stdin.readline(); from ogkd.bench import worker; worker.main(job)"
Notify = Callable[[], object]


class Job(FrozenRecord):
    """Everything that a worker in another process needs."""

    out: Path  # the folder of runs
    plan: Plan
    sources: dict[str, Source]
    backbone: str  # its name, or its path
    device: str = "auto"
    engine: str = "torch"  # that encodes images
    threads: int | None = None

    def groups(self) -> list[RunGroup]:
        """Expensive methods and many images first, so that no long group starts last.

        Equals take turns by dataset: one worker encodes a dataset while others wait for it.
        """
        turns = Counter[str]()

        def order(group: RunGroup) -> tuple[float, ...]:
            spec = group[0]
            turns[spec.dataset] += 1
            cost = _COSTS.get(METHODS[spec.method].cost, 1)
            return -cost, -len(group) * (spec.shots or math.inf), turns[spec.dataset]

        return sorted(group_runs(list(self.plan.specs.values())), key=order)


def work(job: Job, notify: Notify = lambda: None) -> None:
    """Run every group of a job; return when all are settled, here or by other processes.

    `notify` is called whenever results or failures were written.
    """
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    runner = Runner(
        lambda: load_backbone(job.backbone, device=job.device, engine=job.engine), job.sources
    )
    folder, groups = RunsFolder(job.out), job.groups()
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
    return all(folder.has(spec) or folder.failure_of(spec).is_file() for spec in group)


def _check_backbone(folder: RunsFolder, groups: Sequence[RunGroup], runner: Runner) -> None:
    """Refuse another backbone than that of finished runs: tables must not mix them."""
    digest = runner.backbone.digest  # one that cannot be loaded ends the work here
    finished = next((spec for group in groups for spec in group if folder.has(spec)), None)
    if finished and (known := folder.read(finished).result.backbone_digest) != digest:
        raise ConfigError(
            f"{folder.root} contains runs of a backbone with digest {str(known)[:12]}, but this "
            f"one has {digest[:12]} (other weights, or another engine).",
            argument="out",
        )


def lock_group(folder: RunsFolder, group: RunGroup) -> contextlib.ExitStack:
    """Lock each run of a group, all or none: groups of two grids may overlap.

    Timeout if another process has one of them; closing what is returned releases them.
    """
    folder.claims.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as locks:
        for spec in group:
            locks.enter_context(FileLock(folder.claims / f"{spec.hash}.lock", blocking=False))
        return locks.pop_all()


def _attempt(folder: RunsFolder, group: RunGroup, runner: Runner) -> None:
    """Run a locked group, unless that has cost too many processes."""
    attempts = folder.attempts_of(group[0])
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
        if len(group) == 1:
            _fail(folder, group, _reason(error))
            return
        for spec in group:
            if not folder.has(spec):
                _run(folder, (spec,), runner)
        return
    for run in results:
        folder.write(run.spec, run.result, run.predictions)


def _fail(folder: RunsFolder, group: RunGroup, reason: str) -> None:
    for spec in group:
        if not folder.has(spec):
            folder.write_failure(spec, reason)


def _reason(error: Exception) -> str:
    if isinstance(error, OgkdError):
        return str(error)
    if out_of_memory(error):
        return "There was not enough memory for this run. Use fewer workers."
    return "".join(traceback.format_exception(error, limit=8))


# Starting workers


@contextlib.contextmanager
def watched(folder: RunsFolder, plan: Plan) -> Iterator[Notify]:
    """A bar of a plan's runs; what it yields counts the finished and failed ones again."""
    with progress_bar(plan.name, len(plan.specs)) as bar:
        settled = 0

        def notify() -> None:
            nonlocal settled
            finished = sum(map(folder.has, plan.specs.values()))
            failed = len(plan.specs.keys() & folder.failures().keys())
            bar.advance(finished + failed - settled)
            settled = finished + failed
            if failed:
                bar.describe(f"{failed} failed")

        notify()
        yield notify


def run_processes(job: Job, workers: int, notify: Notify = lambda: None) -> None:
    """Run what is missing in `workers` processes, which end with this one.

    They share the cores, unless OMP_NUM_THREADS says how many threads each may use, and the GPUs,
    unless a device is named. If all workers died, they are started again: after MOST_ATTEMPTS a
    group that kills its process is given up. This process does what is left in the end: nothing,
    or it meets the error that a worker has met.
    """
    environment = dict(os.environ)
    if not environment.get("OMP_NUM_THREADS"):
        job = job.model_copy(update={"threads": max(1, (os.cpu_count() or 1) // workers)})
        environment["OMP_NUM_THREADS"] = str(job.threads)
    count = torch.cuda.device_count() if job.device in ("auto", "cuda") else 0
    visible = list(filter(None, environment.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    gpus = visible[:count] or [str(number) for number in range(count)]
    for _ in range(MOST_ATTEMPTS + 1):
        processes = [
            _start(job, environment | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}))
            for gpu in itertools.islice(itertools.cycle(gpus or [""]), workers)
        ]
        codes: set[int | None] = {None}
        try:
            # Until all died, or one found nothing left to do or met an error.
            while None in codes and codes.isdisjoint({0, _ERROR}):
                time.sleep(_PAUSE)
                notify()
                codes = {process.poll() for process in processes}
        finally:
            for process in processes:
                _stop(process)
        notify()
        if not codes.isdisjoint({0, _ERROR}):
            return work(job, notify)
    raise ConfigError(
        f"Workers repeatedly died (see {job.out / 'workers.log'}). Finished runs are kept.",
        argument="workers",
    )


def _start(job: Job, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """A worker process. Its standard input tells it that this process lives."""
    with (job.out / "workers.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, env=environment,
        )  # fmt: skip
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once
        process.stdin.write(job.model_dump_json() + "\n")
        process.stdin.flush()
    return process


def _stop(process: subprocess.Popen[str]) -> None:
    """End a worker, whose locks are released with it."""
    process.terminate()
    try:
        process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def main(job: str) -> None:
    """Work in a process of its own, which ends with its parent.

    The job was the first line of standard input, which the parent keeps open.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(Job.model_validate_json(job))
    except OgkdError:
        sys.exit(_ERROR)


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the parent has ended, in whatever way
    os._exit(1)
