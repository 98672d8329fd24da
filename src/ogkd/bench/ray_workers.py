"""The same runs on a Ray cluster: groups go to workers, results come back and are written here.

A worker is an actor that keeps the backbone and its datasets in memory. A lost worker is replaced
and its group is tried again; only this process writes, so nothing is lost or written twice.
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ogkd.bench.progress import Pace, estimate
from ogkd.bench.runner import RunGroup
from ogkd.bench.runs import RunsFolder
from ogkd.bench.sources import open_dataset
from ogkd.bench.worker import MOST_ATTEMPTS, GroupAnswer, Job, Ledger, OnEvent, answer, make_runner
from ogkd.datasets.fetch import locate_benchmark
from ogkd.errors import ConfigError, OgkdError
from ogkd.features.ray_cluster import (
    absolute,
    cluster,
    fitting_workers,
    folders,
    gpus_for,
    use_folders,
)
from ogkd.features.ray_encode import RayWorkers
from ogkd.features.store import FeatureStore
from ogkd.files import cache_dir
from ogkd.images import ImageRef

_PAUSE = 1.0  # seconds between checks for new nodes and for groups of other processes
_CHUNK = 256  # images encoded by one task: a shard of the feature store


def run_ray(
    folder: RunsFolder,
    job: Job,
    on_event: OnEvent,
    workers: RayWorkers = RayWorkers(),  # noqa: B008
) -> None:
    cpus, count = workers.cpus, workers.count
    job = _with_whole_paths(job, threads=max(1, int(cpus)))
    with cluster(workers.address, cpus=None if count is None else count * cpus) as ray:
        gpus = gpus_for(ray, workers.gpus, count, job.device)
        workers = replace(workers, gpus=gpus)
        if count is None and fitting_workers(ray, cpus, gpus) == 0:
            raise ConfigError(
                f"No node of the cluster has {cpus:g} CPU(s) and {gpus:g} GPU(s) for a run. Ask "
                "for less, or give the number of workers if the cluster grows on demand.",
                argument="workers",
            )
        cache_dir().mkdir(parents=True, exist_ok=True)
        # A worker that sees this file shares the cache with us.
        with tempfile.NamedTemporaryFile(prefix=".marker-", dir=cache_dir()) as marker:
            ledger = Ledger(folder, job.groups(), on_event)
            driver = _Driver(ray, ledger, job, marker.name, workers)
            try:
                driver.run()
            finally:
                driver.stop()


def _with_whole_paths(job: Job, *, threads: int) -> Job:
    """The job with absolute paths: a worker elsewhere has another working folder."""
    sources = {
        name: source.model_copy(update={"folder": source.folder and absolute(source.folder)})
        for name, source in job.sources.items()
    }
    changes = {"sources": sources, "backbone": absolute(job.backbone), "threads": threads}
    return job.model_copy(update=changes)


@dataclass(frozen=True)
class NodeState:
    """What a worker found on its node after loading the backbone."""

    node: str
    digest: str = ""  # of the backbone
    shares_cache: bool = False
    problem: str = ""  # why it cannot work there


class RunActor:
    """A worker: keeps the backbone and the datasets and texts that it has used in memory.

    It answers errors as records: an exception means that it is lost.
    """

    def __init__(self, job: str, folders: Mapping[str, str], marker: str, ogkd: str) -> None:
        use_folders(folders)
        self._job = Job.model_validate_json(job)
        self._marker = Path(marker)
        self._version = ogkd  # of the process that asks
        self._runner = make_runner(self._job)

    def start(self) -> NodeState:
        """Load the backbone and report what is missing on this node."""
        node, digest = platform.node(), ""
        try:
            if not (problem := self._problem()):
                digest = self._runner.backbone.digest
        except OgkdError as error:
            problem = str(error)
        except Exception:
            problem = traceback.format_exc(limit=8)
        return NodeState(node, digest, self._marker.is_file(), problem)

    def _problem(self) -> str:
        if (mine := version("ogkd")) != self._version:
            return f"it has ogkd {mine}, not {self._version}. Install the same version everywhere."
        for name, source in self._job.sources.items():
            if source.folder is not None and not Path(source.folder).is_dir():
                return (
                    f"there is no folder {source.folder}. Every node needs it: use shared storage."
                )
            if source.folder is None and not source.phantom and locate_benchmark(name) is None:
                return f"there is no {name}. Set OGKD_DATA to a folder on shared storage."
        return ""

    def encode(self, images: Sequence[str]) -> None:
        """Put features into the cache; the runs report files that cannot be read."""
        with contextlib.suppress(OgkdError, OSError):
            FeatureStore(self._runner.backbone).get(images)

    def run(self, group: RunGroup) -> GroupAnswer:
        return answer(self._runner, group)


@dataclass(frozen=True)
class _Images:
    """Images that a dataset is judged on, encoded before its runs: once, not by every worker."""

    name: str
    dataset: str
    paths: tuple[str, ...]


@dataclass
class _Worker:
    """An actor, what it was asked for, and the lock that is held for it."""

    actor: Any
    reference: Any = None  # of the answer that is awaited; None: it is idle
    task: RunGroup | _Images | None = None  # None while it is getting ready
    lock: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class _Driver:
    """Starts workers, gives them tasks and writes their results."""

    def __init__(self, ray: Any, ledger: Ledger, job: Job, marker: str, asked: RayWorkers) -> None:
        self._ray = ray
        self._ledger = ledger
        self._backbone = job.backbone
        self._asked = asked
        self._workers: list[_Worker] = []
        self._deaths: Counter[str] = Counter()
        self._digest = ""  # of the backbone on the nodes
        self._failed_starts = 0
        self._arguments = (job.model_dump_json(), folders(), marker, version("ogkd"))
        pace = Pace(ledger.folder.readable_runs())
        # The longest first: if a long one starts last, all others wait for it.
        cost = {group.name: estimate(group.specs, pace).most for group in ledger.left}
        self._images = deque(_judged_images(job, ledger.left))
        ledger.left.sort(key=lambda group: -cost[group.name])

    def run(self) -> None:
        """Return when every group is settled, here or by another process."""
        while self._ledger.left or any(worker.task is not None for worker in self._workers):
            self._start_workers()
            self._assign()
            awaited = [mine.reference for mine in self._workers if mine.reference is not None]
            if not awaited:
                time.sleep(_PAUSE)  # another process is working on what is left
                continue
            answered, _ = self._ray.wait(awaited, num_returns=1, timeout=_PAUSE)
            for reference in answered:
                self._receive(next(mine for mine in self._workers if mine.reference == reference))

    def stop(self) -> None:
        for worker in list(self._workers):
            self._stop_worker(worker)

    def _start_workers(self) -> None:
        """Start as many workers as were asked for or fit now, but not more than there are tasks."""
        cpus, gpus = self._asked.cpus, self._asked.gpus or 0.0
        fit = self._asked.count or max(1, fitting_workers(self._ray, cpus, gpus))
        busy = sum(worker.task is not None for worker in self._workers)
        tasks = len(self._ledger.left) + len(self._images) + busy
        remote = self._ray.remote(RunActor)
        while len(self._workers) < min(fit, tasks):
            # Ray must not restart anything: losses are counted here.
            options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
            actor = remote.options(**options).remote(*self._arguments)
            self._workers.append(_Worker(actor, actor.start.remote()))

    def _assign(self) -> None:
        for worker in self._workers:
            if worker.reference is not None:
                continue
            if self._images:
                worker.task = images = self._images.popleft()
                worker.reference = worker.actor.encode.remote(images.paths)
                continue
            tasks = [mine.task for mine in self._workers]
            unready = {task.dataset for task in tasks if isinstance(task, _Images)}
            if (claimed := self._ledger.claim(without=unready)) is not None:
                group, worker.lock = claimed
                self._ledger.start(group)
                worker.task, worker.reference = group, worker.actor.run.remote(group)

    def _receive(self, worker: _Worker) -> None:
        """Take a worker's answer; afterwards it is idle or gone."""
        task = worker.task
        try:
            found = self._ray.get(worker.reference)
        except self._ray.exceptions.RayError as error:
            self._replace(worker, error)
            return
        worker.reference = worker.task = None
        if isinstance(found, NodeState):
            self._check_node(found)
        elif isinstance(task, RunGroup):
            self._ledger.left[:0] = self._ledger.store(task, found)
        worker.lock.close()

    def _check_node(self, state: NodeState) -> None:
        if state.problem:
            raise ConfigError(f"A worker on node {state.node} cannot start: {state.problem}")
        if not self._digest:
            self._ledger.check_backbone(self._backbone, state.digest)
            self._digest = state.digest
        if state.digest != self._digest:
            raise ConfigError(
                f"'{self._backbone}' is another backbone on node {state.node} (digest "
                f"{state.digest[:12]}, elsewhere {self._digest[:12]}). Put the same files on all "
                "nodes."
            )
        self._failed_starts = 0
        if not state.shares_cache:
            self._images.clear()  # that node would not find what others encode

    def _replace(self, worker: _Worker, error: Exception) -> None:
        """Put back what a lost worker was doing, unless that has cost too many workers."""
        task = worker.task
        self._ledger.on_event({"event": "died", "code": type(error).__name__})
        if task is None:
            self._stop_worker(worker)
            self._failed_starts += 1
            if self._failed_starts >= MOST_ATTEMPTS:
                reason = str(error).strip().splitlines() or [repr(error)]
                raise ConfigError(
                    f"Workers cannot be started: {reason[-1]}. Is the same version of ogkd "
                    "installed on every node? Finished runs are kept."
                )
            return
        self._deaths[task.name] += 1
        often = self._deaths[task.name] >= MOST_ATTEMPTS
        if isinstance(task, RunGroup) and often:
            died = f"The worker died {MOST_ATTEMPTS} times while working on this (out of memory?)."
            self._ledger.fail(task, died)
        elif isinstance(task, RunGroup):
            self._ledger.left.insert(0, task)
        elif not often:  # otherwise the runs themselves encode what they need
            self._images.appendleft(task)
        self._stop_worker(worker)

    def _stop_worker(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)  # a worker that is only unreachable must not continue
        worker.lock.close()


def _judged_images(job: Job, groups: Sequence[RunGroup]) -> list[_Images]:
    """The images that runs are judged on, in chunks; none of a dataset that cannot be opened."""
    found = []
    firsts = (group.specs[0] for group in groups)
    for name, split in dict.fromkeys((spec.dataset, spec.judge) for spec in firsts):
        try:
            items = open_dataset(job.sources[name]).manifest.part(split)
        except OgkdError:
            continue  # its runs will report the error
        paths = [str(ImageRef(item.image.file.absolute(), item.image.part)) for item in items]
        for start in range(0, len(paths), _CHUNK):
            part = tuple(paths[start : start + _CHUNK])
            found.append(_Images(f"{name} {start}", name, part))
    return found
