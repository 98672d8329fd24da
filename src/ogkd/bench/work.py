"""The loop of one worker: claim a group, run it, write its results, go on.

A claim is a lock that the operating system drops with the process, so workers of several
commands, or machines with a common disk, share one folder and nothing is run twice.
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
from pydantic import BaseModel, ConfigDict

from ogkd.bench.results import RunsFolder
from ogkd.bench.run import Finished, Group, Runner, group_runs
from ogkd.bench.sources import Source
from ogkd.bench.spec import RunSpec
from ogkd.errors import ConfigError, OgkdError, StorageError
from ogkd.files import storage_errors

__all__ = [
    "MOST_ATTEMPTS",
    "Claim",
    "Job",
    "Say",
    "check_data",
    "check_digest",
    "data_of_finished",
    "make_runner",
    "record",
    "record_failure",
    "settled",
    "short",
    "title",
    "work",
]

Say = Callable[[dict[str, Any]], None]  # is told what happens, as small records

MOST_ATTEMPTS = 3  # at a group whose processes die
TRIES = ".tries"  # ending of the file that counts them
_PAUSE = 0.5  # seconds between looks at what others are working on


class Job(BaseModel):
    """Everything that a worker in another process needs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    specs: tuple[RunSpec, ...]
    sources: dict[str, str]  # dataset -> Source.as_json
    backbone: str  # where it is on this machine
    device: str = "auto"
    threads: int | None = None

    def groups(self) -> list[Group]:
        """The same for every worker."""
        return group_runs(self.specs)


def make_runner(job: Job) -> Runner:
    """A runner for the job's backbone and datasets; the backbone is loaded when needed."""
    import torch

    from ogkd.backbones import load_backbone

    if job.threads is not None:
        torch.set_num_threads(job.threads)
    sources = {name: Source.from_json(text) for name, text in job.sources.items()}
    return Runner(lambda: load_backbone(job.backbone, device=job.device), sources)


def work(folder: RunsFolder, groups: Sequence[Group], runner: Runner, say: Say) -> None:
    """Run every group that nobody else has run or is running; return when all are settled."""
    checked = False
    data: dict[str, str] = {}
    waiting = list(groups)
    while waiting:
        busy = []
        for group in waiting:
            if settled(folder, group):
                continue
            try:
                with Claim(folder, group):
                    if settled(folder, group):
                        continue
                    if not checked:
                        check_digest(folder, groups, runner.backbone.digest)
                        data = data_of_finished(folder, groups)
                        checked = True
                    _attempt(folder, group, runner, say, data)
            except Timeout:
                busy.append(group)
        if len(busy) == len(waiting):
            time.sleep(_PAUSE)
        waiting = busy


def settled(folder: RunsFolder, group: Group) -> bool:
    """Whether every run of the group is finished or has failed."""
    return all(folder.has(spec) or folder.failure_of(spec).is_file() for spec in group.specs)


class Claim:
    """The locks of whoever works on a group, one for each run: groups of two grids may overlap."""

    def __init__(self, folder: RunsFolder, group: Group) -> None:
        place = _claims(folder)
        self._locks = [
            FileLock(place / f"{spec.hash}.lock", blocking=False) for spec in group.specs
        ]

    @property
    def is_held(self) -> bool:
        """Whether it is ours."""
        return all(lock.is_locked for lock in self._locks)

    def acquire(self) -> None:
        """Take all locks or none; Timeout where somebody else has one of them."""
        try:
            for lock in self._locks:
                lock.acquire()
        except Timeout:
            self.release()
            raise

    def release(self) -> None:
        """Give back what is held."""
        for lock in self._locks:
            lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _claims(folder: RunsFolder) -> Path:
    place = folder.root / ".claims"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _attempt(
    folder: RunsFolder, group: Group, runner: Runner, say: Say, data: dict[str, str]
) -> None:
    """Run a claimed group; an error is recorded, a full disk ends the work."""
    tries = _claims(folder) / f"{group.name}{TRIES}"
    before = int(tries.read_text() or 0) if tries.is_file() else 0
    if before >= MOST_ATTEMPTS:
        # A process that is killed cannot say why; without this it would be tried for ever.
        reason = f"The process died {before} times while working on this (out of memory?)."
        record_failure(folder, group, reason, say)
        tries.unlink(missing_ok=True)
        return
    with storage_errors(folder.root):
        tries.write_text(str(before + 1))
    try:
        for part, finished in _run(group, runner, say, folder):
            if isinstance(finished, str):
                record_failure(folder, part, finished, say)
            else:
                check_data(folder, data, finished)
                record(folder, part, finished, say)
    finally:
        tries.unlink(missing_ok=True)  # stays only where the process is killed


def _run(
    group: Group, runner: Runner, say: Say, folder: RunsFolder
) -> Iterator[tuple[Group, list[Finished] | str]]:
    """The group's results or why there are none; where it fails, each of its runs by itself."""
    say({"event": "start", "group": group.name, "runs": len(group.specs), "what": title(group)})
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
                yield from _run(Group((spec,)), runner, say, folder)


def data_of_finished(folder: RunsFolder, groups: Sequence[Group]) -> dict[str, str]:
    """What images each dataset had in the runs that are there."""
    found: dict[str, str] = {}
    for group in groups:
        for spec in group.specs:
            name = f"{spec.data} {spec.dataset}"
            if name not in found and folder.has(spec):
                found[name] = str(folder.read(spec).result.get("data_sha256"))
    return found


def check_data(folder: RunsFolder, known: dict[str, str], finished: Sequence[Finished]) -> None:
    """Refuse to put results on other images in one table."""
    spec, sha = finished[0].spec, str(finished[0].result["data_sha256"])
    if known.setdefault(f"{spec.data} {spec.dataset}", sha) != sha:
        raise ConfigError(
            f"{folder.root} holds runs on other images of '{spec.dataset}': files were added or "
            "removed since. Choose another --out."
        )


def record(folder: RunsFolder, group: Group, finished: Sequence[Finished], say: Say) -> None:
    """Write the results of a group; what was there before a kill stays and is not counted."""
    new = [run for run in finished if not folder.has(run.spec)]
    for run in new:
        folder.write(run.spec, run.result, run.predictions)
    seconds = sum(sum(run.result["seconds"].values()) for run in finished)
    say({"event": "done", "group": group.name, "runs": len(new), "seconds": seconds})


def record_failure(folder: RunsFolder, group: Group, reason: str, say: Say) -> None:
    """Write why the runs of a group that are not there did not finish."""
    for spec in group.specs:
        if not folder.has(spec):
            folder.write_failure(spec, reason)
    event = {"event": "failed", "group": group.name, "runs": len(group.specs)}
    say(event | {"what": title(group), "error": short(reason)})


def short(reason: str) -> str:
    """A line about a failure: the end of a traceback, or the beginning of a message."""
    lines = [line.strip() for line in reason.strip().splitlines()] or [""]
    return lines[-1] if lines[0].startswith("Traceback") else " ".join(lines[:2])


def title(group: Group) -> str:
    """What a group is, for a person."""
    first = group.specs[0]
    return f"{first.dataset} {first.method} {first.shots or 'all'} shots x{len(group.specs)}"


def check_digest(folder: RunsFolder, groups: Sequence[Group], digest: str) -> None:
    """Refuse to put results of two backbones in one table."""
    for group in groups:
        for spec in group.specs:
            if folder.has(spec):
                found = folder.read(spec).result.get("backbone_digest")
                if found != digest:
                    raise ConfigError(
                        f"{folder.root} holds runs of '{spec.backbone}' with digest "
                        f"{str(found)[:12]}, but this one has {digest[:12]}. Choose another --out."
                    )
                return


def main() -> None:
    """`python -m ogkd.bench.work RUNS JOB.json`: one worker; it says what happens as JSON lines."""
    root, job_file = Path(sys.argv[1]), Path(sys.argv[2])

    def say(record: dict[str, Any]) -> None:
        print(json.dumps(record), flush=True)

    job = Job.model_validate_json(job_file.read_text(encoding="utf-8"))
    try:
        work(RunsFolder(root), job.groups(), make_runner(job), say)
    except OgkdError as error:
        say({"event": "fatal", "error": str(error)})
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
