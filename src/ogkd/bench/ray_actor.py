"""What a worker of a Ray cluster does. It answers errors as records: an exception means a loss."""

from __future__ import annotations

import platform
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ogkd.bench.runner import RunGroup, RunResult
from ogkd.bench.worker import Job, make_runner
from ogkd.datasets.fetch import locate_benchmark
from ogkd.errors import OgkdError, StorageError
from ogkd.features.ray_cluster import use_folders
from ogkd.features.store import FeatureStore


@dataclass(frozen=True)
class NodeState:
    """What a worker found on its node after loading the backbone."""

    node: str
    digest: str = ""  # of the backbone
    shares_cache: bool = False
    problem: str = ""  # why it cannot work there


@dataclass(frozen=True)
class GroupAnswer:
    """The results of a group, or why there are none."""

    results: list[RunResult] | None = None
    error: str = ""
    no_space: bool = False


class RunActor:
    """Runs groups; keeps the backbone and the datasets and texts that it has used in memory."""

    def __init__(self, job: str, folders: Mapping[str, str], marker: str, ogkd: str) -> None:
        use_folders(folders)
        self._job = Job.model_validate_json(job)
        self._marker = Path(marker)
        self._version = ogkd  # of the process that asks
        self._runner = make_runner(self._job)

    def start(self) -> NodeState:
        """Load the backbone and report what is missing on this node."""
        node = platform.node()
        try:
            if problem := self._problem():
                return NodeState(node, problem=problem)
            digest = self._runner.backbone.digest
        except OgkdError as error:
            return NodeState(node, problem=str(error))
        except Exception:
            return NodeState(node, problem=traceback.format_exc(limit=8))
        return NodeState(node, digest, self._marker.is_file())

    def _problem(self) -> str:
        if version("ogkd") != self._version:
            return (
                f"it has ogkd {version('ogkd')}, but the command has {self._version}. Install the "
                "same version on every node."
            )
        for name, source in self._job.sources.items():
            if source.folder is not None and not Path(source.folder).is_dir():
                return (
                    f"there is no folder {source.folder}. Data must be at the same path on every "
                    "node: put it on shared storage."
                )
            if source.folder is None and not source.phantom and locate_benchmark(name) is None:
                return (
                    f"the benchmark {name} is not there. Put the benchmarks on shared storage and "
                    "set OGKD_DATA to that folder."
                )
        return ""

    def encode(self, images: Sequence[str]) -> None:
        """Put features into the cache; the runs report files that cannot be read."""
        try:
            FeatureStore(self._runner.backbone).get(images)
        except (OgkdError, OSError):
            return

    def run(self, group: RunGroup) -> GroupAnswer:
        """Train and test a group."""
        try:
            return GroupAnswer(self._runner.run(group))
        except StorageError as error:
            return GroupAnswer(error=str(error), no_space=True)
        except OgkdError as error:
            return GroupAnswer(error=str(error))
        except Exception:
            return GroupAnswer(error=traceback.format_exc(limit=8))
