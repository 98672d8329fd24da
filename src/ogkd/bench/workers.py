"""Runs the groups of a plan on this machine: in this process, or in several."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ogkd.bench.runner import method_of
from ogkd.bench.runs import FinishedRun, Plan, RunsFolder
from ogkd.bench.sources import Source, open_dataset, require_banks
from ogkd.bench.worker import ATTEMPTS, Job, OnEvent, make_runner, run_groups, unsuitable
from ogkd.errors import ConfigError, DataError, OgkdError
from ogkd.files import holds_files, storage_errors, write_text

_RESTARTS = 3  # of workers that die before they start a group


def make_job(
    plan: Plan, sources: dict[str, Source], place: str, device: str = "auto", engine: str = "torch"
) -> Job:
    specs = tuple(plan.specs.values())
    return Job(specs=specs, sources=sources, backbone=place, device=device, engine=engine)


def prepare(
    folder: RunsFolder, plan: Plan, sources: Mapping[str, Source] | None = None
) -> list[str]:
    """Make the folder ready: store the plan, move damaged runs away, forget old failures.

    Runs on other images or prompts than those of `sources` are refused. Returns notes for the
    user.
    """
    require_banks(sources or {})
    root = folder.root
    problem = ""
    if root.is_dir() and holds_files(root) and not (root / "plans").is_dir():
        problem = "exists and is not a folder of runs"
    elif root.exists() and not root.is_dir():
        problem = "is a file, not a folder for runs"
    if problem:
        raise unsuitable(folder, problem)
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
            (root / ".claims" / f"{spec.hash}{ATTEMPTS}").unlink(missing_ok=True)
            place = folder.folder_of(spec)
            if not place.exists():
                continue
            try:
                run = folder.read(spec, predictions=True)
                _refuse_other_settings(run)
                made_with[spec.dataset] = run
            except DataError as error:
                (root / "damaged").mkdir(exist_ok=True)
                moved = Path(tempfile.mkdtemp(prefix=f"{place.name}-", dir=root / "damaged"))
                with contextlib.suppress(FileNotFoundError):  # another command was faster
                    place.rename(moved / place.name)
                notes.append(f"{error} It was moved to {moved} and will be run again.")
    for name, source in (sources or {}).items():
        if name in made_with:
            _refuse_other_data(folder, made_with[name], source)
    with storage_errors(root):
        folder.write_plan(plan)
    return notes


def _refuse_other_data(folder: RunsFolder, run: FinishedRun, source: Source) -> None:
    """Results on other images or prompts must not be in one table."""
    if source.phantom:
        return  # their specification decides how they are drawn
    try:
        now = open_dataset(source).digests
    except OgkdError:
        return  # no longer there: tables can still be made
    for key, word in {"data_sha256": "images", "bank_sha256": "prompts"}.items():
        if run.result.get(key) not in (None, now[key]):
            raise unsuitable(
                folder, f"contains runs on other {word} of '{source.name}' (they changed)"
            )


def _refuse_other_settings(run: FinishedRun) -> None:
    """A run is named by the settings asked for; defaults and presets may change with ogkd."""
    config, method = run.result.get("config"), method_of(run.spec)
    now = method.config.model_dump(mode="json")
    if config is not None:  # a setting that is newer than the run had its default's effect
        config = method.Config().model_dump(mode="json") | config
    if config is not None and config != now:
        names = [name for name in {**now, **config} if config.get(name) != now.get(name)]
        raise DataError(
            f"{run.folder} was made with another default or preset of {run.spec.method}: "
            f"{', '.join(names)}."
        )


def run_here(folder: RunsFolder, job: Job, on_event: OnEvent) -> None:
    run_groups(folder, job.groups(), make_runner(job), on_event)


def run_processes(folder: RunsFolder, job: Job, on_event: OnEvent, *, workers: int) -> None:
    """Run what is missing in `workers` processes; a process that dies is replaced.

    They share the cores, unless OMP_NUM_THREADS says how many threads each may use, and the GPUs,
    unless a device is named.
    """
    threads = None
    if not os.environ.get("OMP_NUM_THREADS"):
        threads = max(1, (os.cpu_count() or 1) // workers)
    with tempfile.TemporaryDirectory(prefix=".job-", dir=folder.root) as place:
        path = Path(place, "job.json")
        write_text(path, job.model_copy(update={"threads": threads}).model_dump_json())
        gpus = torch.cuda.device_count() if job.device in ("auto", "cuda") else 0
        processes = _Processes(folder, path, threads, visible_gpus(gpus))
        try:
            for _ in range(workers):
                processes.start()
            processes.wait(on_event)
        finally:
            processes.stop()


def visible_gpus(count: int) -> list[str]:
    """A name for each GPU that this process sees, as CUDA_VISIBLE_DEVICES takes it."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return [name for name in named if name][:count] or [str(number) for number in range(count)]


class _Processes:
    """Worker processes and the events that they print."""

    def __init__(
        self, folder: RunsFolder, job_file: Path, threads: int | None, gpus: Sequence[str] = ()
    ) -> None:
        self._log = folder.root / "workers.log"
        self._command = [sys.executable, "-m", "ogkd.bench.worker"]
        self._command += [str(folder.root), str(job_file)]
        own = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        self._environment = os.environ | own
        self._gpus = list(gpus)
        self._lines: queue.Queue[tuple[subprocess.Popen[str], str | None]] = queue.Queue()
        self._alive: dict[subprocess.Popen[str], bool] = {}  # whether it has reached a group
        self._uses: dict[subprocess.Popen[str], str | None] = {}  # its GPU

    def start(self) -> None:
        out = subprocess.PIPE
        # The one with the fewest workers: one that takes over gets the GPU of the one that died.
        gpu = min(self._gpus, key=Counter(self._uses.values()).__getitem__, default=None)
        own = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command, stdout=out, stderr=log, text=True, env=self._environment | own
            )
        self._alive[process] = False
        self._uses[process] = gpu
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._lines.put((process, line))
        self._lines.put((process, None))

    def wait(self, on_event: OnEvent) -> None:
        restarts = _RESTARTS
        while self._alive:
            process, line = self._lines.get()
            if line is not None:
                self._pass_on(process, line, on_event)
                continue
            started, code = self._alive.pop(process), process.wait()
            self._uses.pop(process)
            if code == 0:
                continue
            # Deaths within a group are counted there; here, those of workers that cannot start.
            restarts -= not started
            if restarts < 0:
                raise ConfigError(
                    f"Workers repeatedly ended with code {code}; see {self._log}. Finished runs "
                    "are kept: fix the cause and run again."
                )
            on_event({"event": "died", "code": code})
            self.start()

    def _pass_on(self, process: subprocess.Popen[str], line: str, on_event: OnEvent) -> None:
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:
            return  # printed by a library
        self._alive[process] = True
        if record["event"] == "fatal":  # it would stop every worker
            raise ConfigError(record["error"], argument=record["argument"])
        on_event(record)

    def stop(self) -> None:
        """End the workers that still run; their locks are released with the processes."""
        for process in self._alive:
            process.terminate()
        for process in self._alive:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
