"""Very large folders of images through Ray Data: each worker of a cluster holds the model once."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ogkd.backbones import load_backbone
from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.errors import ConfigError, OgkdError
from ogkd.features.cluster import absolute, cluster, fitting_workers, places, take_places
from ogkd.features.encode import BadFile, EncodedBatch, encode_files

__all__ = ["Crew", "encode_files_on_ray"]

_MOST_BLOCKS = 1000  # parts that the work is cut into; a lost part is encoded again


@dataclass(frozen=True)
class Crew:
    """Which workers encode: where the cluster is, how many, and what each of them has."""

    address: str | None = None  # None: a cluster of this machine's own
    workers: int | None = None  # None: as many as fit
    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class _Recipe:
    """What a worker needs to load the same model."""

    backbone: str
    digest: str
    device: str
    engine: str
    patches: bool
    threads: int


def encode_files_on_ray(
    backbone: Backbone,
    paths: Sequence[Path],
    *,
    place: str,
    crew: Crew,
    device: str = "auto",
    engine: str = "torch",
    patches: bool = False,
    batch_size: int = 32,
) -> Iterator[EncodedBatch]:
    """What `encode_files` gives, in the same order and batches, encoded by a cluster.

    `backbone` was loaded here from `place`; workers load it from there too, and refuse another.
    Files must be at the same path on every node. A file that cannot be read is set apart.
    """
    recipe = _Recipe(
        absolute(place), backbone.digest, device, engine, patches, max(1, int(crew.cpus))
    )
    chunks = [paths[start : start + batch_size] for start in range(0, len(paths), batch_size)]
    asked = None if crew.workers is None else crew.workers * crew.cpus
    with cluster(crew.address, cpus=asked) as ray:
        for row in _rows(ray, chunks, recipe, crew):
            yield _batch(chunks[row["index"]], row, patches=patches)


def _rows(
    ray: Any, chunks: Sequence[Sequence[Path]], recipe: _Recipe, crew: Crew
) -> Iterator[dict[str, Any]]:
    import ray.data as data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    fit = fitting_workers(ray, crew.cpus, crew.gpus)
    workers = min(len(chunks), crew.workers or fit)
    if workers == 0:
        raise ConfigError(
            f"No node of the cluster has {crew.cpus:g} CPU(s) and {crew.gpus:g} GPU(s). Ask for "
            "less, or give --workers on a cluster that grows by itself."
        )
    # Names of files are bytes: not every one is valid text.
    items = [
        {"index": index, "paths": [os.fsencode(path.absolute()) for path in chunk]}
        for index, chunk in enumerate(chunks)
    ]
    encoded = data.from_items(items, override_num_blocks=min(len(items), _MOST_BLOCKS)).map(
        _Encoder,
        fn_constructor_args=(asdict(recipe), places()),
        concurrency=workers,
        num_cpus=crew.cpus,
        num_gpus=crew.gpus,
    )
    for row in encoded.iter_rows():
        if row["problem"]:
            raise ConfigError(f"A worker cannot encode: {row['problem']}")
        yield row


class _Encoder:
    """An actor of Ray Data: loads the model once, then encodes batches."""

    def __init__(self, recipe: dict[str, Any], own: dict[str, str]) -> None:
        take_places(own)
        self._recipe = _Recipe(**recipe)
        self._backbone: Backbone | None = None
        self._problem = ""
        torch.set_num_threads(self._recipe.threads)
        try:
            self._backbone = self._load()
        except OgkdError as error:
            self._problem = str(error)  # said with the first batch: Ray would try for ever

    def _load(self) -> Backbone:
        recipe = self._recipe
        found = load_backbone(recipe.backbone, device=recipe.device, engine=recipe.engine)
        if found.digest != recipe.digest:
            raise ConfigError(
                f"'{recipe.backbone}' is another backbone there (digest {found.digest[:12]}, here "
                f"{recipe.digest[:12]}). Put the same files on every node."
            )
        return found

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        answer = {"index": int(row["index"]), "problem": self._problem}
        answer |= {"bad": "{}", "shape": "[]", "globals": b"", "patches": b""}
        if self._backbone is None:
            return answer
        names = [Path(os.fsdecode(bytes(name))) for name in row["paths"]]
        (batch,) = encode_files(
            self._backbone, names, patches=self._recipe.patches, batch_size=len(names)
        )
        reasons = {bad.path: bad.reason for bad in batch.bad}
        bad = {index: reasons[name] for index, name in enumerate(names) if name in reasons}
        answer["bad"] = json.dumps(bad)  # as text: empty columns have no type of their own
        if batch.features is not None:
            answer["globals"] = _raw(batch.features.globals)
            if batch.features.patches is not None:
                answer["patches"] = _raw(batch.features.patches)
                answer["shape"] = json.dumps(batch.features.patches.shape[1:])
        return answer


def _raw(rows: Tensor) -> bytes:
    return rows.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()


def _tensor(content: bytes, *shape: int) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.float32).copy().reshape(shape))


def _batch(chunk: Sequence[Path], row: dict[str, Any], *, patches: bool) -> EncodedBatch:
    """The answer of a worker, with the names that the user gave."""
    reasons = {int(index): reason for index, reason in json.loads(row["bad"]).items()}
    good = [path for index, path in enumerate(chunk) if index not in reasons]
    bad = [
        BadFile(chunk[index], reason.replace(str(chunk[index].absolute()), str(chunk[index])))
        for index, reason in reasons.items()
    ]
    if not good:
        return EncodedBatch(chunk, [], None, bad)
    found = ImageFeatures(
        _tensor(row["globals"], len(good), -1),
        _tensor(row["patches"], len(good), *json.loads(row["shape"])) if patches else None,
    )
    return EncodedBatch(chunk, good, found, bad)
