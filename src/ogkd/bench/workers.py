"""Makes a folder of runs ready and starts workers on it: here, in processes, or on a Ray cluster.

A worker (worker.py) claims what is left by locks; nothing is handed to it and nothing comes back
but the results in the folder. Here workers that die are replaced, and the folder is watched.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from ogkd.bench.runner import method_of
from ogkd.bench.runs import FinishedRun, Plan, RunsFolder, one_line
from ogkd.bench.sources import Source, open_source, texts_of
from ogkd.bench.worker import ATTEMPTS, MOST_ATTEMPTS, Ended, Job, work_elsewhere
from ogkd.data.fetch import locate_benchmark
from ogkd.errors import ConfigError, DataError, OgkdError
from ogkd.features.cluster import Cluster, absolute, settings_for_workers, use_settings
from ogkd.files import holds_files, storage_errors

_PAUSE = 0.5  # seconds between two looks at the workers and the folder
# The job is read before the slow imports, so that the command need not wait to write it.
_WORKER = "import sys; job = sys.stdin.readline(); from ogkd.bench import worker; worker.main(job)"


def make_job(
    folder: RunsFolder,
    plan: Plan,
    sources: Mapping[str, Source],
    backbone: str,
    device: str = "auto",
    engine: str = "torch",
) -> Job:
    """The job of a plan, with absolute paths: a worker elsewhere has another working folder."""
    return Job(
        out=str(folder.root.absolute()),
        specs=tuple(plan.specs.values()),
        sources={
            name: source.model_copy(update={"folder": source.folder and absolute(source.folder)})
            for name, source in sources.items()
        },
        backbone=absolute(backbone),
        device=device,
        engine=engine,
    )


def prepare(folder: RunsFolder, plan: Plan, sources: Mapping[str, Source]) -> list[str]:
    """Make the folder ready: store the plan, move damaged runs away, forget old failures.

    Runs on other images or prompts than those of `sources` are refused. Returns notes for the
    user.
    """
    root = folder.root
    for source in sources.values():
        texts_of(source)  # fails now, not in the first run, if a bank cannot be read
    if root.exists() and not (root / "plans").is_dir() and (root.is_file() or holds_files(root)):
        raise ConfigError(f"{root} exists and is not a folder of runs.", argument="out")
    notes = []
    made_with: dict[str, FinishedRun] = {}
    with storage_errors(root):
        old = folder.plan_to_replace(plan.name)
        if hidden := len(set(old.specs if old else ()) - set(plan.specs)):
            notes.append(
                f"The last '{plan.name}' in {root} asked for {hidden} other runs; tables now show "
                "this selection. Run the whole grid to show all."
            )
        for spec in plan.specs.values():
            folder.failure_of(spec).unlink(missing_ok=True)
            (folder.claims / f"{spec.hash}{ATTEMPTS}").unlink(missing_ok=True)
            run_folder = folder.folder_of(spec)
            if not run_folder.exists():
                continue
            try:
                run = folder.read(spec, predictions=True)
                _refuse_other_settings(run)
                made_with[spec.dataset] = run
            except DataError as error:
                (root / "damaged").mkdir(exist_ok=True)
                moved = Path(tempfile.mkdtemp(prefix=f"{run_folder.name}-", dir=root / "damaged"))
                with contextlib.suppress(FileNotFoundError):  # another command was faster
                    run_folder.rename(moved / run_folder.name)
                notes.append(f"{error} It was moved to {moved} and will be run again.")
    for name, source in sources.items():
        if name in made_with:
            _refuse_other_data(folder, made_with[name], source)
    with storage_errors(root):
        folder.write_plan(plan)
    return notes


def _refuse_other_data(folder: RunsFolder, run: FinishedRun, source: Source) -> None:
    """Results on other images or prompts must not be in one table."""
    try:
        now = run.result if source.phantom else open_source(source).digests
    except OgkdError:
        return  # no longer there: tables can still be made
    for key, word in {"data_sha256": "images", "bank_sha256": "prompts"}.items():
        if run.result.get(key) not in (None, now[key]):
            raise ConfigError(
                f"{folder.root} contains runs on other {word} of '{source.name}' (they changed).",
                argument="out",
            )


def _refuse_other_settings(run: FinishedRun) -> None:
    """A run is named by the settings asked for; defaults and presets may change with ogkd."""
    method = method_of(run.spec)
    now = method.config.model_dump(mode="json")
    # A setting that is newer than the run had its default's effect.
    then = method.Config().model_dump(mode="json") | (run.result.get("config") or now)
    if names := [name for name in {**now, **then} if then.get(name) != now.get(name)]:
        raise DataError(
            f"{run.folder} was made with another default or preset of {run.spec.method}: "
            f"{', '.join(names)}."
        )


class Progress:
    """Counts the finished and failed runs of a plan in its folder: a bar, or lines for a log.

    Calling it looks at the folder. The time left is known once runs were finished.
    """

    def __init__(self, folder: RunsFolder, plan: Plan) -> None:
        self._folder = folder
        self._left = dict(plan.specs)
        self._failed = 0
        self.total = len(self._left)
        console = self._console = Console(stderr=True)
        words = TextColumn("{task.description}")
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), words)
        self.bars = Bars(*columns, console=console, disable=not console.is_terminal)
        self._settle()
        self._before = self.settled
        self._task = self.bars.add_task("", total=self.total, completed=self.settled)
        self._began = time.monotonic()

    @property
    def settled(self) -> int:
        """How many runs are finished or failed."""
        return self.total - len(self._left)

    def __call__(self) -> None:
        before = self.settled
        self._settle()
        if self.settled == before:
            return
        # An estimate from the runs that were finished since the start: long ones come first.
        each = (time.monotonic() - self._began) / (self.settled - self._before)
        left = timedelta(seconds=round(each * len(self._left)))
        words = [f"at most about {left} left"] if self._left else []
        words += [f"{self._failed} failed"] if self._failed else []
        self.bars.update(self._task, completed=self.settled, description=", ".join(words))
        if not self._console.is_terminal:
            self.note(", ".join([f"done {self.settled}/{self.total}", *words]))

    def _settle(self) -> None:
        finished, failures = self._folder.settled()
        for key in finished & self._left.keys():
            del self._left[key]
        for key in failures & self._left.keys():
            self._failed += 1
            spec = self._left.pop(key)
            with contextlib.suppress(DataError):  # another command tries it again
                self.note(f"FAILED {spec}: {one_line(self._folder.reason(spec))}")

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class Worker(Protocol):
    def poll(self) -> Ended | None:
        """How it ended; None while it works."""

    def stop(self) -> None: ...


def supervise(start: Callable[[int], Worker], count: Callable[[], int], progress: Progress) -> None:
    """Keep as many workers running as `count` says; return when one finds nothing left to do.

    A worker that dies is replaced by one of the same number. Deaths within a group are counted
    there; here, those without any progress, as of workers that cannot start.
    """
    workers: dict[int, Worker] = {}
    deaths, settled = 0, progress.settled
    try:
        while True:
            wanted = max(1, count())
            for number in range(wanted):
                if number not in workers:
                    workers[number] = start(number)
            time.sleep(_PAUSE)
            progress()
            if progress.settled > settled:
                deaths, settled = 0, progress.settled
            for number, worker in list(workers.items()):
                if (ended := worker.poll()) is None:
                    continue
                if ended.error:
                    raise ConfigError(ended.error, argument=ended.argument)
                if not ended.death:
                    return
                del workers[number]
                deaths += 1
                if deaths > MOST_ATTEMPTS * wanted:
                    raise ConfigError(
                        f"Workers repeatedly died: {ended.death}. Finished runs are kept.",
                        argument="workers",
                    )
                progress.note(f"A worker died ({ended.death}); another one takes over.")
    finally:
        for worker in workers.values():
            worker.stop()
        progress()


def run_processes(job: Job, progress: Progress, *, workers: int) -> None:
    """Run what is missing in `workers` processes.

    They share the cores, unless OMP_NUM_THREADS says how many threads each may use, and the GPUs,
    unless a device is named.
    """
    environment = dict(os.environ)
    if not environment.get("OMP_NUM_THREADS"):
        job = job.model_copy(update={"threads": max(1, (os.cpu_count() or 1) // workers)})
        environment["OMP_NUM_THREADS"] = str(job.threads)
    count = torch.cuda.device_count() if job.device in ("auto", "cuda") else 0
    visible = list(filter(None, environment.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    gpus = visible[:count] or [str(number) for number in range(count)]

    def start(number: int) -> Worker:
        gpu = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}
        return _Process(job, environment | gpu)

    supervise(start, lambda: workers, progress)


class _Process:
    """A worker process. Its standard input tells it that this process lives."""

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        self._log = Path(job.out, "workers.log")
        pipe = subprocess.PIPE
        with self._log.open("ab") as log:
            words = [sys.executable, "-c", _WORKER]
            self._process = subprocess.Popen(
                words, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: `poll` says so
            self._process.stdin.write(job.model_dump_json() + "\n")
            self._process.stdin.flush()

    def poll(self) -> Ended | None:
        code = self._process.poll()
        if code is None:
            return None
        reply, _ = self._process.communicate()  # closes the pipes, too
        return Ended(**json.loads(reply)) if reply else Ended(death=f"code {code}; see {self._log}")

    def stop(self) -> None:
        """End it; its locks are released with the process."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def run_ray(job: Job, progress: Progress, cluster: Cluster) -> None:
    """Run what is missing on a Ray cluster whose nodes share the folder of runs."""
    job = job.model_copy(update={"threads": cluster.threads})
    groups = len(job.groups())
    with cluster.joined() as ray:
        resources = cluster.resources(ray, job.device)
        task = ray.remote(_work_on_node).options(**resources, max_retries=0)
        arguments = job.model_dump_json(), settings_for_workers(), version("ogkd")

        def count() -> int:
            return min(groups, cluster.workers(ray, resources))

        supervise(lambda _: _Task(ray, task.remote(*arguments)), count, progress)


def _work_on_node(content: str, settings: Mapping[str, str], wanted: str) -> Ended:
    """Work on a node of a cluster, if it has the same software and data as the command."""
    use_settings(settings)
    job = Job.model_validate_json(content)
    sources = job.sources.values()
    folders = [job.out, *(source.folder for source in sources if source.folder)]
    missing = [folder for folder in folders if not Path(folder).is_dir()]
    catalogued = (source.name for source in sources if not (source.folder or source.phantom))
    missing += [name for name in catalogued if locate_benchmark(name) is None]
    missing += [f"ogkd {wanted}"] if version("ogkd") != wanted else []
    if missing:
        return Ended(f"Node {platform.node()} has no {missing[0]}.", argument="ray")
    return work_elsewhere(content)


@dataclass(frozen=True)
class _Task:
    """A worker on a node of a Ray cluster."""

    ray: Any
    reference: Any

    def poll(self) -> Ended | None:
        if not self.ray.wait([self.reference], timeout=0)[0]:
            return None
        try:
            ended: Ended = self.ray.get(self.reference)
        except self.ray.exceptions.RayError as error:
            return Ended(death=type(error).__name__)
        return ended

    def stop(self) -> None:
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.cancel(self.reference, force=True)
