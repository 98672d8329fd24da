"""A Ray cluster, joined or started: without telemetry, and started on loopback only."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ogkd import plugins
from ogkd.errors import ConfigError
from ogkd.files import cache_dir, home

_OBJECTS = 512 * 2**20  # bytes of shared memory of a cluster that we start; more goes to disk
_FOLDERS = ("OGKD_CACHE", "OGKD_DATA")


@contextmanager
def cluster(address: str | None, *, cpus: float | None = None) -> Iterator[Any]:
    """The module `ray`, joined to the cluster at `address`; None starts one with `cpus` cores.

    In a process that has joined a cluster already, that one is used, and left as it was.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its C++ side warns needlessly
    if address is None and "ray" not in sys.modules:
        # Ray's own switch for "one machine only": its servers then listen on loopback alone.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
    except ImportError:
        raise ConfigError(
            'Ray is not installed. Install it with: pip install "ogkd[ray]", or work on this '
            "machine alone."
        ) from None
    if ray.is_initialized():
        yield ray
        return
    own: dict[str, Any] = {}
    if address is None:
        cores = None if cpus is None else max(1, round(cpus))
        own = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": _OBJECTS}
    try:
        _fail_if_nobody_listens(address)
        with _without_stderr():
            quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
            ray.init(address=address or "local", **quiet, **own)
    except Exception as error:  # nobody listens, or any of Ray's many kinds
        where = f"the Ray cluster at '{address}'" if address else "a Ray cluster on this machine"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"Cannot reach {where}: {reason}. Give the address auto on a node of a running "
            "cluster, or HOST:PORT of its head; without an address one is started here.",
            argument="address",
        ) from None
    # Ray reports a lost node at length on standard output, where results go: stop it.
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield ray
    finally:
        ray.shutdown()


def _fail_if_nobody_listens(address: str | None) -> None:
    """Fail at once if the port is closed: Ray itself tries for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Drop standard error: Ray's C++ side writes there, whatever its log level."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def fitting_workers(ray: Any, cpus: float, gpus: float) -> int:
    """How many workers of this size fit on the nodes of the cluster now."""
    wanted = {kind: size for kind, size in (("CPU", cpus), ("GPU", gpus)) if size}
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    rooms = [[has.get(kind, 0.0) / size for kind, size in wanted.items()] for has in alive]
    return sum(int(min(room, default=1)) for room in rooms)


def gpus_for(ray: Any, asked: float | None, count: int | None, device: str) -> float:
    """GPUs of each worker: as asked; else one, or a share that lets `count` workers have one.

    Ray hides GPUs from workers that were given none: they would compute on CPUs without a word.
    """
    if device.startswith("cuda:"):
        raise ConfigError(
            f"On a Ray cluster each worker sees its own GPU only, so {device} has no meaning. Use "
            "the device cuda or auto.",
            argument="device",
        )
    if asked is not None or device not in ("auto", "cuda"):
        return asked or 0.0
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    there = int(sum(has.get("GPU", 0.0) for has in alive))
    return 1.0 / max(1, math.ceil((count or there) / there)) if there else 0.0


def absolute(place: str) -> str:
    """The absolute path of a folder, for a process elsewhere; other names as they are."""
    path = home(place)
    return str(path.resolve()) if path.exists() else place


def folders() -> dict[str, str]:
    """The cache, the benchmarks and the plugins of this process, for workers to use too."""
    found = {
        name: str(home(os.environ[name]).resolve()) for name in _FOLDERS if os.environ.get(name)
    }
    if loaded := os.environ.get(plugins.VARIABLE):
        found[plugins.VARIABLE] = loaded
    return {"OGKD_CACHE": str(cache_dir().resolve())} | found


def use_folders(found: Mapping[str, str]) -> None:
    """In a worker: use the folders and plugins of the process that asked for the work."""
    for name in (*_FOLDERS, plugins.VARIABLE):
        os.environ.pop(name, None)
    os.environ.update(found)
