"""The same runs on a Ray cluster: groups go to workers, results come back and are written here.

A worker is an actor that holds the backbone and its datasets. One that is lost is replaced and
its group is tried again; only this process writes, so nothing is lost or doubled.
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

from ogkd.bench.cost import estimate
from ogkd.bench.ray_worker import Answer, Hello, Worker
from ogkd.bench.results import RunsFolder
from ogkd.bench.run import Group
from ogkd.bench.sources import Source, open_source
from ogkd.bench.work import (
    MOST_ATTEMPTS,
    Claim,
    Job,
    Say,
    check_data,
    check_digest,
    data_of_finished,
    record,
    record_failure,
    settled,
    title,
)
from ogkd.errors import ConfigError, OgkdError, StorageError
from ogkd.features.ray_cluster import absolute, cluster, fitting_workers, folders
from ogkd.files import cache_dir
from ogkd.images import ImageRef

__all__ = ["run_ray"]

_PAUSE = 1.0  # seconds between looks at nodes that came and at what others are working on
_CHUNK = 256  # images encoded by one task: a shard of the feature store


def run_ray(
    folder: RunsFolder,
    job: Job,
    say: Say,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
) -> None:
    """Run what is missing on the cluster at `address` (None: one of this machine's own).

    Each of the workers (None: as many as fit) has `cpus` cores and `gpus` of a GPU.
    """
    job = _anywhere(job, threads=max(1, int(cpus)))
    with cluster(address, cpus=None if workers is None else workers * cpus) as ray:
        if workers is None and fitting_workers(ray, cpus, gpus) == 0:
            raise ConfigError(
                f"No node of the cluster has {cpus:g} CPU(s) and {gpus:g} GPU(s) for a run. Ask "
                "for less, or give --workers on a cluster that grows by itself."
            )
        with _seal() as seal:
            crew = _Crew(ray, folder, job, say, seal=seal, wanted=workers, size=(cpus, gpus))
            try:
                crew.work()
            finally:
                crew.stop()


def _anywhere(job: Job, *, threads: int) -> Job:
    """The job with whole paths: a worker elsewhere has another working folder."""
    sources = {}
    for name, text in job.sources.items():
        source = Source.from_json(text)
        place = None if source.folder is None else absolute(source.folder)
        sources[name] = Source(name, place, source.bank, source.phantom).as_json()
    changes = {"sources": sources, "backbone": absolute(job.backbone), "threads": threads}
    return job.model_copy(update=changes)


@contextlib.contextmanager
def _seal() -> Iterator[Path]:
    """A file in our cache: a worker that sees it shares the cache with us."""
    path = cache_dir() / f".seal-{uuid.uuid4().hex}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Images:
    """Test images of a dataset, to be encoded before its runs: once, not by every worker."""

    name: str
    dataset: str
    paths: tuple[str, ...]


@dataclass
class _Hand:
    """A worker as we see it: what it is asked for, and the claim that is held for it."""

    actor: Any
    asked: Any = None  # the reference of the answer; None: it has nothing to do
    task: Group | _Images | None = None  # None while it is getting ready
    lock: Claim | None = None


class _Crew:
    """The workers, and the tasks that are left."""

    def __init__(
        self,
        ray: Any,
        folder: RunsFolder,
        job: Job,
        say: Say,
        *,
        seal: Path,
        wanted: int | None,
        size: tuple[float, float],
    ) -> None:
        self._ray = ray
        self._folder = folder
        self._job = job
        self._say = say
        self._wanted = wanted
        self._size = size
        self._hands: list[_Hand] = []
        self._deaths: Counter[str] = Counter()
        self._digest = ""
        self._data: dict[str, str] = {}  # what images each dataset has in the runs that are there
        self._failed_starts = 0
        self._arguments = (job.model_dump_json(), folders(), str(seal), version("ogkd"))
        self._all = job.groups()
        missing = [group for group in self._all if not settled(folder, group)]
        finished = folder.readable_runs()
        # The longest first: a long one that starts last is waited for by everybody.
        cost = {group.name: estimate(group.specs, finished) for group in missing}
        self._groups = sorted(missing, key=lambda group: -cost[group.name])
        self._images = deque(_images(job, missing))

    def work(self) -> None:
        """Return when every group is settled, here or by another process."""
        while self._groups or self._busy():
            self._hire()
            self._assign()
            asked = [hand.asked for hand in self._hands if hand.asked is not None]
            if not asked:
                time.sleep(_PAUSE)  # another process is working on what is left
                continue
            answered, _ = self._ray.wait(asked, num_returns=1, timeout=_PAUSE)
            for reference in answered:
                self._hear(next(hand for hand in self._hands if hand.asked == reference))

    def stop(self) -> None:
        """End the workers; claims go with them."""
        for hand in list(self._hands):
            self._dismiss(hand)

    def _busy(self) -> bool:
        return any(hand.task is not None for hand in self._hands)

    def _hire(self) -> None:
        """As many workers as were asked for or as fit now, but not more than there are tasks."""
        fit = self._wanted or max(1, fitting_workers(self._ray, *self._size))
        tasks = len(self._groups) + len(self._images) + sum(bool(hand.task) for hand in self._hands)
        cpus, gpus = self._size
        remote = self._ray.remote(Worker)
        while len(self._hands) < min(fit, tasks):
            # Ray restarts nothing by itself: whatever is lost is counted here.
            options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
            actor = remote.options(**options).remote(*self._arguments)
            self._hands.append(_Hand(actor, actor.hello.remote()))

    def _assign(self) -> None:
        for hand in self._hands:
            if hand.asked is not None:
                continue
            if self._images:
                images = self._images.popleft()
                hand.task, hand.asked = images, hand.actor.encode.remote(images.paths)
            elif (found := self._claimed()) is not None:
                group, hand.lock = found
                what = {"group": group.name, "runs": len(group.specs), "what": title(group)}
                self._say({"event": "start"} | what)
                hand.task, hand.asked = group, hand.actor.run.remote(group)

    def _claimed(self) -> tuple[Group, Claim] | None:
        """The next group that nobody works on and whose images are encoded."""
        tasks = [hand.task for hand in self._hands]
        unready = {task.dataset for task in tasks if isinstance(task, _Images)}
        for group in list(self._groups):
            if group.specs[0].dataset in unready:
                continue
            lock = Claim(self._folder, group)
            try:
                lock.acquire()
            except Timeout:
                if settled(self._folder, group):
                    self._groups.remove(group)
                continue
            self._groups.remove(group)
            if not settled(self._folder, group):
                return group, lock
            lock.release()
        return None

    def _hear(self, hand: _Hand) -> None:
        """Take a worker's answer; it has nothing to do then, or is gone."""
        task = hand.task
        try:
            answer = self._ray.get(hand.asked)
        except self._ray.exceptions.RayError as error:
            self._lost(hand, error)
            return
        hand.asked = hand.task = None
        if isinstance(answer, Hello):
            self._welcome(answer)
        elif isinstance(task, Group):
            self._take(task, answer)
        if hand.lock is not None:
            hand.lock.release()
            hand.lock = None

    def _welcome(self, hello: Hello) -> None:
        if hello.problem:
            raise ConfigError(f"A worker on node {hello.node} cannot start: {hello.problem}")
        if not self._digest:
            check_digest(self._folder, self._all, hello.digest)
            self._data = data_of_finished(self._folder, self._all)
            self._digest = hello.digest
        if hello.digest != self._digest:
            raise ConfigError(
                f"'{self._job.backbone}' is another backbone on node {hello.node} (digest "
                f"{hello.digest[:12]}, elsewhere {self._digest[:12]}). Put the same files on all."
            )
        self._failed_starts = 0
        if not hello.shares_cache:
            self._images.clear()  # what others encode would not be found there

    def _take(self, group: Group, answer: Answer) -> None:
        if answer.no_space:
            raise StorageError(answer.error)
        if answer.finished is not None:
            check_data(self._folder, self._data, answer.finished)
            record(self._folder, group, answer.finished, self._say)
        elif len(group.specs) == 1:
            record_failure(self._folder, group, answer.error, self._say)
        else:  # each by itself, so that only the guilty one fails
            left = [spec for spec in group.specs if not self._folder.has(spec)]
            self._groups[:0] = [Group((spec,)) for spec in left]

    def _lost(self, hand: _Hand, error: Exception) -> None:
        """Put back what the worker was doing, unless that has cost too many workers."""
        task, lock = hand.task, hand.lock
        hand.lock = None
        self._dismiss(hand)
        reason = str(error).strip().splitlines()
        if task is None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_ATTEMPTS:
                raise ConfigError(
                    f"Workers cannot be started: {reason[-1] if reason else error!r}. Is the same "
                    "version of ogkd installed on every node? What is finished is kept."
                )
            return
        self._say({"event": "died", "code": type(error).__name__})
        self._deaths[task.name] += 1
        often = self._deaths[task.name] >= MOST_ATTEMPTS
        if isinstance(task, Group) and often:
            died = f"The worker died {MOST_ATTEMPTS} times while working on this (out of memory?)."
            record_failure(self._folder, task, died, self._say)
        elif isinstance(task, Group):
            self._groups.insert(0, task)
        elif not often:  # else the runs themselves encode what they need
            self._images.appendleft(task)
        if lock is not None:
            lock.release()

    def _dismiss(self, hand: _Hand) -> None:
        self._hands.remove(hand)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(hand.actor)  # one that is only out of reach must not go on
        if hand.lock is not None:
            hand.lock.release()


def _images(job: Job, groups: Sequence[Group]) -> list[_Images]:
    """The test images of the datasets, in parts; a dataset that cannot be opened has none."""
    found = []
    for name in dict.fromkeys(group.specs[0].dataset for group in groups):
        try:
            items = open_source(Source.from_json(job.sources[name])).manifest.part("test")
        except OgkdError:
            continue  # its runs will say why
        paths = [str(ImageRef(item.image.file.absolute(), item.image.part)) for item in items]
        for start in range(0, len(paths), _CHUNK):
            part = tuple(paths[start : start + _CHUNK])
            found.append(_Images(f"{name} {start}", name, part))
    return found
