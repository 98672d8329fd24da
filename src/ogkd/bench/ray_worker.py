"""What a worker of a Ray cluster does; it answers with records, so that an exception is a loss."""

from __future__ import annotations

import platform
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ogkd.bench.run import Finished, Group
from ogkd.bench.sources import Source
from ogkd.bench.work import Job, make_runner
from ogkd.datasets.fetch import locate_benchmark
from ogkd.errors import OgkdError, StorageError
from ogkd.features.ray_cluster import use_folders
from ogkd.features.store import FeatureStore

__all__ = ["Answer", "Hello", "Worker"]


@dataclass(frozen=True)
class Hello:
    """What a worker says when its backbone is loaded."""

    node: str
    digest: str = ""
    shares_cache: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Answer:
    """The results of a group, or why there are none."""

    finished: list[Finished] | None = None
    error: str = ""
    no_space: bool = False


class Worker:
    """Holds the backbone, and the datasets and texts that it has met."""

    def __init__(self, job: str, places: Mapping[str, str], seal: str, ogkd: str) -> None:
        use_folders(places)
        self._job = Job.model_validate_json(job)
        self._seal = Path(seal)
        self._asked_by = ogkd
        self._runner = make_runner(self._job)

    def hello(self) -> Hello:
        """Load the backbone; say what is missing on this node."""
        node = platform.node()
        try:
            if problem := self._problem():
                return Hello(node, problem=problem)
            digest = self._runner.backbone.digest
        except OgkdError as error:
            return Hello(node, problem=str(error))
        except Exception:
            return Hello(node, problem=traceback.format_exc(limit=8))
        return Hello(node, digest, self._seal.is_file())

    def _problem(self) -> str:
        if version("ogkd") != self._asked_by:
            return (
                f"it has ogkd {version('ogkd')}, but {self._asked_by} asks. Install the same "
                "version on every node."
            )
        for name, text in self._job.sources.items():
            source = Source.from_json(text)
            if source.folder is not None and not Path(source.folder).is_dir():
                return (
                    f"there is no folder {source.folder} there. Data must be at the same path on "
                    "every node: put it on shared storage."
                )
            if source.folder is None and not source.phantom and locate_benchmark(name) is None:
                return (
                    f"the benchmark {name} is not there. Put the benchmarks on shared storage and "
                    "set OGKD_DATA to that folder."
                )
        return ""

    def encode(self, paths: Sequence[str]) -> None:
        """Put features into the cache; what cannot be read is for the runs to say."""
        try:
            FeatureStore(self._runner.backbone).get([Path(path) for path in paths])
        except (OgkdError, OSError):
            return

    def run(self, group: Group) -> Answer:
        """Train and judge a group."""
        try:
            return Answer(self._runner.run(group))
        except StorageError as error:
            return Answer(error=str(error), no_space=True)
        except OgkdError as error:
            return Answer(error=str(error))
        except Exception:
            return Answer(error=traceback.format_exc(limit=8))
