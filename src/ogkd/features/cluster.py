"""A Ray cluster, joined or started: without telemetry, and started on loopback only.

Also the encoding of very large folders of images on its nodes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ogkd import plugins
from ogkd.backbones import load_backbone
from ogkd.backbones.base import Backbone
from ogkd.errors import ConfigError
from ogkd.features.encode import EncodedBatch, encode_files
from ogkd.files import cache_dir, home
from ogkd.images import ImageRef

_OBJECTS = 512 * 2**20  # bytes of shared memory of a cluster that we start; more goes to disk
LOCAL = "local"


@dataclass(frozen=True)
class Cluster:
    """Where the cluster is, how many workers to start there, and the cores of each."""

    address: str = LOCAL  # "local": start one on this machine; "auto", or HOST:PORT of its head
    count: int | None = None  # None: as many as fit
    cpus: float = 1.0

    @property
    def threads(self) -> int:
        return max(1, int(self.cpus))

    @contextlib.contextmanager
    def joined(self) -> Iterator[Any]:
        """The module `ray`, joined to the cluster."""
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if self.address == LOCAL:
            # Ray's own switch for "one machine only": its servers then listen on loopback alone.
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            cores = None if self.count is None else max(1, round(self.count * self.cpus))
            options |= {"num_cpus": cores, "include_dashboard": False}
            options |= {"object_store_memory": _OBJECTS}
        try:
            import ray

            host, _, port = self.address.rpartition(":")
            if host and port.isdigit() and "/" not in host:
                # Fails at once if the port is closed: Ray itself tries for minutes.
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            ray.init(address=self.address, **options)
        except ImportError:
            raise ConfigError(
                'Ray is not installed: pip install "ogkd[ray]".', argument="ray"
            ) from None
        except Exception as error:  # nobody listens, or any of Ray's many kinds
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"Cannot reach the Ray cluster '{self.address}': {reason}.", argument="ray"
            ) from None
        # Ray reports a lost node at length on standard output, where results go: stop it.
        if hasattr(ray._private.worker, "print_to_stdstream"):
            ray._private.worker.print_to_stdstream = lambda *_, **__: None
        try:
            yield ray
        finally:
            ray.shutdown()

    def resources(self, ray: Any, device: str) -> dict[str, float]:
        """What Ray reserves for each worker: cores and, unless the device is the CPU, a GPU.

        If more workers than GPUs are wanted each gets a share. Ray hides GPUs from workers that
        were given none: they would compute on CPUs without a word.
        """
        if device.startswith("cuda:"):
            raise ConfigError(f"On a Ray cluster use cuda, not {device}.", argument="device")
        gpus = int(sum(node.get("GPU", 0) for node in _nodes(ray)))
        share = 0.0
        if gpus and device in ("auto", "cuda"):
            share = 1.0 / max(1, math.ceil((self.count or gpus) / gpus))
        resources = {"num_cpus": self.cpus, "num_gpus": share}
        if not self.workers(ray, resources):
            raise ConfigError(
                f"No node of the cluster has {self.cpus:g} CPU(s) and {share:g} GPU(s).",
                argument="cpus_per_worker",
            )
        return resources

    def workers(self, ray: Any, resources: Mapping[str, float]) -> int:
        """How many workers to start: as many as are wanted, or fit on the nodes now."""
        needs = {"CPU": resources["num_cpus"], "GPU": resources["num_gpus"]}
        return self.count or sum(
            int(min(node.get(kind, 0.0) / need for kind, need in needs.items() if need))
            for node in _nodes(ray)
        )


def _nodes(ray: Any) -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def absolute(name: str) -> str:
    """The absolute path of a folder, for a process elsewhere; other names as they are."""
    path = home(name)
    return str(path.resolve()) if path.exists() else name


def settings_for_workers() -> dict[str, str]:
    """The cache, the benchmarks and the plugins of this process, for workers to use too."""
    settings = {"OGKD_CACHE": str(cache_dir().resolve())}
    if data := os.environ.get("OGKD_DATA"):
        settings["OGKD_DATA"] = str(home(data).resolve())
    if loaded := os.environ.get(plugins.VARIABLE):
        settings[plugins.VARIABLE] = loaded
    return settings


def use_settings(settings: Mapping[str, str]) -> None:
    """In a worker: use the folders and plugins of the process that asked for the work."""
    for name in ("OGKD_CACHE", "OGKD_DATA", plugins.VARIABLE):
        os.environ.pop(name, None)
    os.environ.update(settings)


class Encoder:
    """An actor that loads the backbone once, then encodes batches."""

    def __init__(self, settings: Mapping[str, str], threads: int, digest: str, **load: str) -> None:
        use_settings(settings)
        with contextlib.suppress(OSError):  # names of files may be relative to it
            os.chdir(load.pop("folder"))
        torch.set_num_threads(threads)
        self._backbone = load_backbone(load.pop("source"), **load)
        if self._backbone.digest != digest:
            raise ConfigError("The backbone on a node of the cluster has other weights than here.")

    def encode(self, images: Sequence[ImageRef], options: Mapping[str, bool]) -> EncodedBatch:
        (batch,) = encode_files(self._backbone, images, **options, batch_size=len(images))
        return replace(batch, crops=None)


def encode_files_on_ray(
    backbone: Backbone,
    images: Sequence[ImageRef],
    *,
    cluster: Cluster,
    source: str,
    device: str = "auto",
    engine: str = "torch",
    batch_size: int = 32,
    **options: bool,
) -> Iterator[EncodedBatch]:
    """Encode on a cluster what `encode_files` encodes here: the same order, batches and options.

    `backbone` was loaded here from `source`; workers load it from there too, and refuse a
    different one. Files must have the same path on every node.
    """
    chunks = [images[start : start + batch_size] for start in range(0, len(images), batch_size)]
    load = {"source": absolute(source), "device": device, "engine": engine}
    with cluster.joined() as ray:
        from ray.util import ActorPool

        resources = cluster.resources(ray, device)
        count = min(len(chunks), cluster.workers(ray, resources))
        actor = ray.remote(Encoder).options(**resources, max_restarts=3, max_task_retries=3)
        arguments = settings_for_workers(), cluster.threads, backbone.digest
        actors = [actor.remote(*arguments, folder=str(Path.cwd()), **load) for _ in range(count)]
        batches = ActorPool(actors).map(lambda a, chunk: a.encode.remote(chunk, options), chunks)
        try:
            for chunk, batch in zip(chunks, batches, strict=True):
                yield replace(batch, images=chunk)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ConfigError(f"The workers of the cluster cannot encode: {reason}") from None
