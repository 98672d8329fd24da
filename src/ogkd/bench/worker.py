"""One worker: lock a group of runs, run it, write its results, take the next one.

The operating system releases a lock with its process, so workers of several commands, or of
machines with a common disk, can share one folder and nothing is run twice.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from ogkd.bench.runner import RunGroup, Runner, RunResult, group_runs
from ogkd.bench.runs import FrozenRecord, RunsFolder, RunSpec
from ogkd.bench.sources import Source
from ogkd.errors import ConfigError, OgkdError, StorageError
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
    threads: int | None = None

    def groups(self) -> list[RunGroup]:
        """The groups of the job, the same for every worker."""
        return group_runs(self.specs)


def make_runner(job: Job) -> Runner:
    """A runner for the job's backbone and datasets; the backbone is loaded when needed."""
    import torch

    from ogkd.backbones import load_backbone

    if job.threads is not None:
        torch.set_num_threads(job.threads)
    return Runner(lambda: load_backbone(job.backbone, device=job.device), job.sources)


def run_groups(
    folder: RunsFolder, groups: Sequence[RunGroup], runner: Runner, on_event: OnEvent
) -> None:
    """Run every group that no other process has run or is running; return when all are settled."""
    made_with: Provenance | None = None
    waiting = list(groups)
    while waiting:
        busy = []
        for group in waiting:
            if is_settled(folder, group):
                continue
            try:
                with GroupLock(folder, group):
                    if is_settled(folder, group):
                        continue
                    if made_with is None:
                        made_with = Provenance(folder, groups)
                        name = group.specs[0].backbone
                        made_with.check_backbone(name, runner.backbone.digest)
                    _attempt(folder, group, runner, on_event, made_with)
            except Timeout:
                busy.append(group)
        if len(busy) == len(waiting):
            time.sleep(_PAUSE)
        waiting = busy


def is_settled(folder: RunsFolder, group: RunGroup) -> bool:
    """Whether every run of the group is finished or has failed."""
    return all(folder.has(spec) or folder.failure_of(spec).is_file() for spec in group.specs)


class GroupLock:
    """A lock for each run of a group, taken together: groups of two grids may overlap."""

    def __init__(self, folder: RunsFolder, group: RunGroup) -> None:
        place = _locks(folder)
        self._locks = [
            FileLock(place / f"{spec.hash}.lock", blocking=False) for spec in group.specs
        ]

    @property
    def is_held(self) -> bool:
        """Whether this process has the lock."""
        return all(lock.is_locked for lock in self._locks)

    def acquire(self) -> None:
        """Take all locks or none; Timeout if another process has one of them."""
        try:
            for lock in self._locks:
                lock.acquire()
        except Timeout:
            self.release()
            raise

    def release(self) -> None:
        """Release the locks that are held."""
        for lock in self._locks:
            lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _locks(folder: RunsFolder) -> Path:
    place = folder.root / ".claims"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _attempt(
    folder: RunsFolder, group: RunGroup, runner: Runner, on_event: OnEvent, made_with: Provenance
) -> None:
    """Run a locked group; an error is recorded, a full disk ends the work."""
    attempts = _locks(folder) / f"{group.name}{ATTEMPTS}"
    before = int(attempts.read_text() or 0) if attempts.is_file() else 0
    if before >= MOST_ATTEMPTS:
        # A killed process cannot report why; without this limit it would be tried forever.
        reason = f"The process died {before} times while working on this (out of memory?)."
        write_failure(folder, group, reason, on_event)
        attempts.unlink(missing_ok=True)
        return
    with storage_errors(folder.root):
        attempts.write_text(str(before + 1))
    try:
        for part, results in _run(group, runner, on_event, folder):
            if isinstance(results, str):
                write_failure(folder, part, results, on_event)
            else:
                made_with.check_images(results)
                write_results(folder, part, results, on_event)
    finally:
        attempts.unlink(missing_ok=True)  # remains only if the process is killed


def _run(
    group: RunGroup, runner: Runner, on_event: OnEvent, folder: RunsFolder
) -> Iterator[tuple[RunGroup, list[RunResult] | str]]:
    """The group's results, or why there are none; if the group fails, its runs one by one."""
    on_event(start_event(group))
    try:
        yield group, runner.run(group)
    except StorageError:
        raise
    except Exception as error:
        if len(group.specs) == 1:
            known = isinstance(error, OgkdError)
            yield group, str(error) if known else traceback.format_exc(limit=8)
            return
        for spec in group.specs:
            if not folder.has(spec):
                yield from _run(RunGroup((spec,)), runner, on_event, folder)


def start_event(group: RunGroup) -> dict[str, Any]:
    """The record that says that a group is being run."""
    what = {"group": group.name, "runs": len(group.specs), "what": group_title(group)}
    return {"event": "start"} | what


def write_results(
    folder: RunsFolder, group: RunGroup, results: Sequence[RunResult], on_event: OnEvent
) -> None:
    """Write the results of a group; runs that were finished before are kept and not counted."""
    new = [run for run in results if not folder.has(run.spec)]
    for run in new:
        folder.write(run.spec, run.result, run.predictions)
    seconds = sum(sum(run.result["seconds"].values()) for run in results)
    on_event({"event": "done", "group": group.name, "runs": len(new), "seconds": seconds})


def write_failure(folder: RunsFolder, group: RunGroup, reason: str, on_event: OnEvent) -> None:
    """Record why the unfinished runs of a group failed."""
    for spec in group.specs:
        if not folder.has(spec):
            folder.write_failure(spec, reason)
    event = {"event": "failed", "group": group.name, "runs": len(group.specs)}
    on_event(event | {"what": group_title(group), "error": one_line(reason)})


def one_line(reason: str) -> str:
    """A failure in one line: the end of a traceback, or the beginning of a message."""
    lines = [line.strip() for line in reason.strip().splitlines()] or [""]
    return lines[-1] if lines[0].startswith("Traceback") else " ".join(lines[:2])


def group_title(group: RunGroup) -> str:
    """What a group is, for a reader: "busi coop 16 shots x3"."""
    first = group.specs[0]
    return f"{first.dataset} {first.method} {first.shots or 'all'} shots x{len(group.specs)}"


class Provenance:
    """The backbone and the images that a folder's finished runs were made with.

    Results of another backbone or on other images must not be in the same table.
    """

    def __init__(self, folder: RunsFolder, groups: Sequence[RunGroup]) -> None:
        self._root = folder.root
        self._images: dict[tuple[str | None, str], str] = {}
        self._backbone = ""
        for spec in (spec for group in groups for spec in group.specs):
            if (spec.data, spec.dataset) not in self._images and folder.has(spec):
                result = folder.read(spec).result
                self._images[spec.data, spec.dataset] = str(result.get("data_sha256"))
                self._backbone = self._backbone or str(result.get("backbone_digest"))

    def check_backbone(self, name: str, digest: str) -> None:
        """Refuse another backbone than that of the finished runs."""
        if (self._backbone or digest) != digest:
            raise ConfigError(
                f"{self._root} contains runs of '{Path(name).name}' with digest "
                f"{self._backbone[:12]}, but this one has {digest[:12]}. Choose another folder.",
                argument="out",
            )

    def check_images(self, results: Sequence[RunResult]) -> None:
        """Refuse results on other images than those of the finished runs of the dataset."""
        spec, sha = results[0].spec, str(results[0].result["data_sha256"])
        if self._images.setdefault((spec.data, spec.dataset), sha) != sha:
            raise ConfigError(
                f"{self._root} contains runs on other images of '{spec.dataset}': files were added "
                "or removed since. Choose another folder.",
                argument="out",
            )


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
