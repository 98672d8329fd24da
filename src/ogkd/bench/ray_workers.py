"""The same runs on a Ray cluster: groups go to workers, results come back and are written here.

A worker is an actor that keeps the backbone and its datasets in memory. A lost worker is replaced
and its group is tried again; only this process writes, so nothing is lost or written twice.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import Timeout

from ogkd.bench.progress import estimate
from ogkd.bench.ray_actor import GroupAnswer, NodeState, RunActor
from ogkd.bench.runner import RunGroup
from ogkd.bench.runs import RunsFolder
from ogkd.bench.sources import open_dataset
from ogkd.bench.worker import (
    MOST_ATTEMPTS,
    GroupLock,
    Job,
    OnEvent,
    Provenance,
    is_settled,
    start_event,
    write_failure,
    write_results,
)
from ogkd.errors import ConfigError, OgkdError, StorageError
from ogkd.features.ray_cluster import absolute, cluster, fitting_workers, folders
from ogkd.features.ray_encode import RayWorkers
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
    """Run what is missing on a Ray cluster with these workers."""
    cpus, gpus, count = workers.cpus, workers.gpus, workers.count
    job = _with_whole_paths(job, threads=max(1, int(cpus)))
    with cluster(workers.address, cpus=None if count is None else count * cpus) as ray:
        if count is None and fitting_workers(ray, cpus, gpus) == 0:
            raise ConfigError(
                f"No node of the cluster has {cpus:g} CPU(s) and {gpus:g} GPU(s) for a run. Ask "
                "for less, or give the number of workers if the cluster grows on demand.",
                argument="workers",
            )
        with _cache_marker() as marker:
            driver = _Driver(ray, folder, job, on_event, marker, workers)
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


@contextlib.contextmanager
def _cache_marker() -> Iterator[Path]:
    """A file in our cache: a worker that sees it shares the cache with us."""
    path = cache_dir() / f".marker-{uuid.uuid4().hex}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Images:
    """Test images of a dataset, encoded before its runs: once, not by every worker."""

    name: str
    dataset: str
    paths: tuple[str, ...]


@dataclass
class _Worker:
    """An actor, what it was asked for, and the lock that is held for it."""

    actor: Any
    reference: Any = None  # of the answer that is awaited; None: it is idle
    task: RunGroup | _Images | None = None  # None while it is getting ready
    lock: GroupLock | None = None


class _Driver:
    """Starts workers, gives them tasks and writes their results."""

    def __init__(
        self,
        ray: Any,
        folder: RunsFolder,
        job: Job,
        on_event: OnEvent,
        marker: Path,
        wanted: RayWorkers,
    ) -> None:
        self._ray = ray
        self._folder = folder
        self._job = job
        self._on_event = on_event
        self._wanted = wanted
        self._workers: list[_Worker] = []
        self._deaths: Counter[str] = Counter()
        self._digest = ""  # of the backbone on the nodes
        self._failed_starts = 0
        self._arguments = (job.model_dump_json(), folders(), str(marker), version("ogkd"))
        groups = job.groups()
        self._made_with = Provenance(folder, groups)
        missing = [group for group in groups if not is_settled(folder, group)]
        finished = folder.readable_runs()
        # The longest first: if a long one starts last, all others wait for it.
        cost = {group.name: estimate(group.specs, finished) for group in missing}
        self._groups = sorted(missing, key=lambda group: -cost[group.name])
        self._images = deque(_test_images(job, missing))

    def run(self) -> None:
        """Return when every group is settled, here or by another process."""
        while self._groups or any(worker.task is not None for worker in self._workers):
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
        """End the workers and release their locks."""
        for worker in list(self._workers):
            self._stop_worker(worker)

    def _start_workers(self) -> None:
        """Start as many workers as were asked for or fit now, but not more than there are tasks."""
        cpus, gpus = self._wanted.cpus, self._wanted.gpus
        fit = self._wanted.count or max(1, fitting_workers(self._ray, cpus, gpus))
        busy = sum(worker.task is not None for worker in self._workers)
        tasks = len(self._groups) + len(self._images) + busy
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
                images = self._images.popleft()
                worker.task = images
                worker.reference = worker.actor.encode.remote(images.paths)
            elif (found := self._next_group()) is not None:
                worker.task, worker.lock = found
                self._on_event(start_event(found[0]))
                worker.reference = worker.actor.run.remote(found[0])

    def _next_group(self) -> tuple[RunGroup, GroupLock] | None:
        """The next group that no process works on and whose images are encoded, locked."""
        tasks = [worker.task for worker in self._workers]
        unready = {task.dataset for task in tasks if isinstance(task, _Images)}
        for group in list(self._groups):
            if group.specs[0].dataset in unready:
                continue
            lock = GroupLock(self._folder, group)
            try:
                lock.acquire()
            except Timeout:
                if is_settled(self._folder, group):
                    self._groups.remove(group)
                continue
            self._groups.remove(group)
            if not is_settled(self._folder, group):
                return group, lock
            lock.release()
        return None

    def _receive(self, worker: _Worker) -> None:
        """Take a worker's answer; afterwards it is idle or gone."""
        task = worker.task
        try:
            answer = self._ray.get(worker.reference)
        except self._ray.exceptions.RayError as error:
            self._replace(worker, error)
            return
        worker.reference = worker.task = None
        if isinstance(answer, NodeState):
            self._check_node(answer)
        elif isinstance(task, RunGroup):
            self._store(task, answer)
        if worker.lock is not None:
            worker.lock.release()
            worker.lock = None

    def _check_node(self, state: NodeState) -> None:
        if state.problem:
            raise ConfigError(f"A worker on node {state.node} cannot start: {state.problem}")
        if not self._digest:
            self._made_with.check_backbone(self._job.backbone, state.digest)
            self._digest = state.digest
        if state.digest != self._digest:
            raise ConfigError(
                f"'{self._job.backbone}' is another backbone on node {state.node} (digest "
                f"{state.digest[:12]}, elsewhere {self._digest[:12]}). Put the same files on all "
                "nodes."
            )
        self._failed_starts = 0
        if not state.shares_cache:
            self._images.clear()  # that node would not find what others encode

    def _store(self, group: RunGroup, answer: GroupAnswer) -> None:
        if answer.no_space:
            raise StorageError(answer.error)
        if answer.results is not None:
            self._made_with.check_images(answer.results)
            write_results(self._folder, group, answer.results, self._on_event)
        elif len(group.specs) == 1:
            write_failure(self._folder, group, answer.error, self._on_event)
        else:  # one by one, so that only the run with the error fails
            left = [spec for spec in group.specs if not self._folder.has(spec)]
            self._groups[:0] = [RunGroup((spec,)) for spec in left]

    def _replace(self, worker: _Worker, error: Exception) -> None:
        """Put back what a lost worker was doing, unless that has cost too many workers."""
        task, lock = worker.task, worker.lock
        worker.lock = None
        self._stop_worker(worker)
        reason = str(error).strip().splitlines()
        if task is None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_ATTEMPTS:
                raise ConfigError(
                    f"Workers cannot be started: {reason[-1] if reason else error!r}. Is the same "
                    "version of ogkd installed on every node? Finished runs are kept."
                )
            return
        self._on_event({"event": "died", "code": type(error).__name__})
        self._deaths[task.name] += 1
        often = self._deaths[task.name] >= MOST_ATTEMPTS
        if isinstance(task, RunGroup) and often:
            died = f"The worker died {MOST_ATTEMPTS} times while working on this (out of memory?)."
            write_failure(self._folder, task, died, self._on_event)
        elif isinstance(task, RunGroup):
            self._groups.insert(0, task)
        elif not often:  # otherwise the runs themselves encode what they need
            self._images.appendleft(task)
        if lock is not None:
            lock.release()

    def _stop_worker(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)  # a worker that is only unreachable must not go on
        if worker.lock is not None:
            worker.lock.release()


def _test_images(job: Job, groups: Sequence[RunGroup]) -> list[_Images]:
    """The test images of the datasets in chunks; none of a dataset that cannot be opened."""
    found = []
    for name in dict.fromkeys(group.specs[0].dataset for group in groups):
        try:
            items = open_dataset(job.sources[name]).manifest.part("test")
        except OgkdError:
            continue  # its runs will report the error
        paths = [str(ImageRef(item.image.file.absolute(), item.image.part)) for item in items]
        for start in range(0, len(paths), _CHUNK):
            part = tuple(paths[start : start + _CHUNK])
            found.append(_Images(f"{name} {start}", name, part))
    return found
