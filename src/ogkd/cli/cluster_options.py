"""Options of commands that can spread their work over a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from ogkd.features.ray_encode import RayWorkers

__all__ = [
    "AddressOption",
    "ClusterEngineOption",
    "CpusOption",
    "GpusOption",
    "WorkersOption",
    "read_crew",
]

ClusterEngineOption = Annotated[
    str, typer.Option(help="Where images are encoded: local, or ray (a cluster).")
]
AddressOption = Annotated[
    str | None, typer.Option(help="Of the Ray cluster: auto or HOST:PORT; none: start one here.")
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Ray workers (default: as many as fit).")
]
CpusOption = Annotated[float, typer.Option(min=0.1, help="CPU cores of each Ray worker.")]
GpusOption = Annotated[float, typer.Option(min=0.0, help="GPUs of each Ray worker: 1, or 0.25.")]


def read_crew(
    engine: str, address: str | None, workers: int | None, cpus: float, gpus: float
) -> RayWorkers | None:
    """The workers that were asked for; None for this process alone."""
    if engine == "ray":
        from ogkd.features.ray_encode import RayWorkers

        return RayWorkers(address, workers, cpus, gpus)
    if engine != "local":
        raise ConfigError(f"--engine is local or ray, not '{engine}'.")
    if address is not None or workers is not None or gpus:
        raise ConfigError("--address, --workers and --gpus-per-worker need --engine ray.")
    return None
