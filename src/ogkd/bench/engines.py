"""Engines map the same work over groups of runs: in this process, or in several of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ogkd.bench.results import Plan, Run, RunsFolder
from ogkd.bench.run import method_of
from ogkd.bench.sources import Source, open_source
from ogkd.bench.work import TRIES, Job, Say, make_runner, work
from ogkd.errors import ConfigError, DataError, OgkdError
from ogkd.files import storage_errors, write_text

__all__ = ["make_job", "prepare", "run_here", "run_local"]

_RESTARTS = 3  # of workers that died; what each of them was doing is tried again


def make_job(plan: Plan, sources: dict[str, Source], backbone: str, *, device: str = "auto") -> Job:
    """What workers need, wherever they are."""
    return Job(
        specs=tuple(cell.spec for cell in plan.cells),
        sources={name: source.as_json() for name, source in sources.items()},
        backbone=str(backbone),
        device=device,
    )


def prepare(
    folder: RunsFolder, plan: Plan, sources: Mapping[str, Source] | None = None
) -> list[str]:
    """Make the folder ready: keep the plan, put damaged runs aside, forget old failures.

    Runs on other images or prompts than `sources` have are refused. Returns what to tell the user.
    """
    root = folder.root
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root} is a file, not a folder for runs. Choose another --out.")
    strange = root.is_dir() and any(root.iterdir()) and not (root / "plans").is_dir()
    if strange:
        raise ConfigError(f"{root} exists and is not a folder of runs. Choose another --out.")
    notes = []
    made_with: dict[str, Run] = {}
    with storage_errors(root):
        if (lost := _left_out(folder, plan)) > 0:
            notes.append(
                f"The last '{plan.name}' in {root} asked for {lost} other runs; tables now show "
                "this selection. Run it without options to show all."
            )
        for cell in plan.cells:
            place = folder.folder_of(cell.spec)
            if not place.is_dir():
                continue
            try:
                run = folder.read(cell.spec)
                for part in run.parts:
                    run.predictions(part)
                _refuse_other_settings(run)
                made_with[run.spec.dataset] = run
            except DataError as error:
                aside = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=_made(root / "damaged")))
                with contextlib.suppress(FileNotFoundError):  # another command was faster
                    place.rename(aside / place.name)
                notes.append(f"{error} It was put aside in {aside} and will be run again.")
        for cell in plan.cells:
            folder.failure_of(cell.spec).unlink(missing_ok=True)
            (root / ".claims" / f"{cell.spec.hash}{TRIES}").unlink(missing_ok=True)
    for name, run in made_with.items():
        if sources is not None and name in sources:
            _refuse_other_data(folder, run, sources[name])
    with storage_errors(root):
        folder.write_plan(plan)
    return notes


def _refuse_other_data(folder: RunsFolder, run: Run, source: Source) -> None:
    """Results on other images or prompts must not stand in one table."""
    if source.phantom:
        return  # drawn by their specification alone
    try:
        now = open_source(source).digests
    except OgkdError:
        return  # not there any more: tables can still be made
    what = {"data_sha256": "images", "bank_sha256": "prompts"}
    for key, word in what.items():
        if run.result.get(key) not in (None, now[key]):
            raise ConfigError(
                f"{folder.root} holds runs on other {word} of '{source.name}': they have changed "
                "since. Choose another --out."
            )


def _left_out(folder: RunsFolder, plan: Plan) -> int:
    """How many runs of the plan that was there by this name are not in the new one."""
    old = folder.plans().get(plan.name)
    asked = {cell.spec.hash for cell in plan.cells}
    return 0 if old is None else sum(cell.spec.hash not in asked for cell in old.cells)


def _refuse_other_settings(run: Run) -> None:
    """A run is named by what was asked for; what that stands for may change with ogkd."""
    config = run.result.get("config")
    now = method_of(run.spec).config.model_dump(mode="json")
    if config is not None and config != now:
        names = [name for name in {**now, **config} if config.get(name) != now.get(name)]
        raise DataError(
            f"{run.folder} was made with another default or preset of {run.spec.method}: "
            f"{', '.join(names)}."
        )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_here(folder: RunsFolder, job: Job, say: Say) -> None:
    """Run what is missing in this process."""
    work(folder, job.groups(), make_runner(job), say)


def run_local(folder: RunsFolder, job: Job, say: Say, *, workers: int) -> None:
    """Run what is missing in `workers` processes; a process that dies is replaced."""
    share = max(1, (os.cpu_count() or 1) // workers)
    job = job.model_copy(update={"threads": share})
    with _file(folder, job) as job_file:
        crew = _Crew(folder, job_file, share)
        try:
            for _ in range(workers):
                crew.start()
            crew.watch(say, restarts=_RESTARTS)
        finally:
            crew.stop()


@contextlib.contextmanager
def _file(folder: RunsFolder, job: Job) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix=".job-", dir=folder.root))
    try:
        write_text(place / "job.json", job.model_dump_json())
        yield place / "job.json"
    finally:
        shutil.rmtree(place, ignore_errors=True)


@dataclass
class _Worker:
    process: subprocess.Popen[str]
    fatal: bool = False
    spoke: bool = False  # whether it came as far as a group


class _Crew:
    """Worker processes and what they say."""

    def __init__(self, folder: RunsFolder, job_file: Path, threads: int) -> None:
        self._folder = folder
        self._job_file = job_file
        self._environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self._said: queue.Queue[tuple[_Worker, str | None]] = queue.Queue()
        self._alive: list[_Worker] = []
        self._fatal = ""

    def start(self) -> None:
        arguments = [sys.executable, "-m", "ogkd.bench.work"]
        log = self._folder.root / "workers.log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [*arguments, str(self._folder.root), str(self._job_file)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment,
            )
        worker = _Worker(process)
        self._alive.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()

    def _listen(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        with worker.process.stdout as lines:
            for line in lines:
                self._said.put((worker, line))
        self._said.put((worker, None))

    def watch(self, say: Say, *, restarts: int) -> None:
        """Pass on what workers say until all have ended."""
        while self._alive:
            worker, line = self._said.get()
            if line is not None:
                self._hear(worker, line, say)
                continue
            code = worker.process.wait()
            self._alive.remove(worker)
            if code == 0:
                continue
            if worker.fatal or (restarts == 0 and not worker.spoke):
                raise ConfigError(self._last_words(worker, code))
            # Deaths within a group are counted there; here, those of workers that cannot start.
            restarts -= not worker.spoke
            say({"event": "died", "code": code})
            self.start()

    def _hear(self, worker: _Worker, line: str, say: Say) -> None:
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:
            return  # a library's own words
        worker.spoke = True
        if record.get("event") == "fatal":
            worker.fatal = True
            self._fatal = str(record["error"])
            return
        say(record)

    def _last_words(self, worker: _Worker, code: int) -> str:
        if worker.fatal:
            return self._fatal
        return (
            f"Workers ended with code {code} again and again; see {self._folder.root}/workers.log. "
            "What is finished is kept: mend the cause and run the same command again."
        )

    def stop(self) -> None:
        """End what still runs; claims are dropped with the processes."""
        for worker in self._alive:
            worker.process.terminate()
        for worker in self._alive:
            try:
                worker.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
