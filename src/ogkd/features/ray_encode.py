"""Very large folders of images through Ray Data: each worker of a cluster loads the model once."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ogkd.backbones import load_backbone
from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.errors import ConfigError, OgkdError
from ogkd.features.encode import EncodedBatch, encode_files, raw
from ogkd.features.ray_cluster import (
    absolute,
    cluster,
    fitting_workers,
    folders,
    gpus_for,
    use_folders,
)
from ogkd.images import ImageRef

_MOST_BLOCKS = 1000  # parts that the work is cut into; a lost part is encoded again


@dataclass(frozen=True)
class RayWorkers:
    """Which workers encode: where the cluster is, how many there are, and what each one has."""

    address: str | None = None  # None: start a cluster on this machine
    count: int | None = None  # None: as many as fit
    cpus: float = 1.0
    gpus: float | None = None  # None: one, or a share, if the cluster has any


@dataclass(frozen=True)
class _Recipe:
    """What a worker needs to load the same model."""

    backbone: str
    digest: str
    device: str
    engine: str
    patches: bool
    deep: bool
    threads: int


def encode_files_on_ray(
    backbone: Backbone,
    images: Sequence[ImageRef],
    *,
    place: str,
    workers: RayWorkers,
    device: str = "auto",
    engine: str = "torch",
    patches: bool = False,
    deep: bool = False,
    batch_size: int = 32,
) -> Iterator[EncodedBatch]:
    """Encode on a cluster what `encode_files` encodes here: the same order and batches.

    `backbone` was loaded here from `place`; workers load it from there too, and refuse a different
    one. Files must have the same path on every node. Unreadable files are reported in their batch.
    """
    threads = max(1, int(workers.cpus))
    recipe = _Recipe(absolute(place), backbone.digest, device, engine, patches, deep, threads)
    chunks = [images[start : start + batch_size] for start in range(0, len(images), batch_size)]
    asked = None if workers.count is None else workers.count * workers.cpus
    with cluster(workers.address, cpus=asked) as ray:
        for row in _rows(ray, chunks, recipe, workers):
            yield _batch(chunks[row["index"]], row, patches=patches, deep=deep)


def _rows(
    ray: Any, chunks: Sequence[Sequence[ImageRef]], recipe: _Recipe, workers: RayWorkers
) -> Iterator[dict[str, Any]]:
    import ray.data as data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    gpus = gpus_for(ray, workers.gpus, workers.count, recipe.device)
    fit = fitting_workers(ray, workers.cpus, gpus)
    count = min(len(chunks), workers.count or fit)
    if count == 0:
        raise ConfigError(
            f"No node of the cluster has {workers.cpus:g} CPU(s) and {gpus:g} GPU(s). Request "
            "less, or set the number of workers to wait for on a cluster that scales by itself.",
            argument="workers",
        )
    items = [
        {"index": index, "images": [_address(image) for image in chunk]}
        for index, chunk in enumerate(chunks)
    ]
    encoded = data.from_items(items, override_num_blocks=min(len(items), _MOST_BLOCKS)).map(
        _Encoder,
        fn_constructor_args=(asdict(recipe), folders()),
        concurrency=count,
        num_cpus=workers.cpus,
        num_gpus=gpus,
    )
    for row in encoded.iter_rows():
        if row["problem"]:
            raise ConfigError(f"A worker cannot encode: {row['problem']}")
        yield row


def _address(image: ImageRef) -> bytes:
    """Where it is, for a process elsewhere; as bytes, for not every file name is valid text."""
    return os.fsencode(str(ImageRef(image.file.absolute(), image.part)))


class _Encoder:
    """An actor of Ray Data: loads the model once, then encodes batches."""

    def __init__(self, recipe: dict[str, Any], own: dict[str, str]) -> None:
        use_folders(own)
        self._recipe = _Recipe(**recipe)
        self._backbone: Backbone | None = None
        self._problem = ""
        torch.set_num_threads(self._recipe.threads)
        try:
            self._backbone = self._load()
        except OgkdError as error:
            self._problem = str(error)  # reported with the first batch: Ray would retry forever

    def _load(self) -> Backbone:
        recipe = self._recipe
        found = load_backbone(recipe.backbone, device=recipe.device, engine=recipe.engine)
        if found.digest != recipe.digest:
            raise ConfigError(
                f"'{recipe.backbone}' is another backbone on a worker (digest {found.digest[:12]}, "
                f"here {recipe.digest[:12]}). Put the same files on every node."
            )
        return found

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        answer = {"index": int(row["index"]), "problem": self._problem}
        answer |= {"bad": "{}", "shape": "[]", "globals": b"", "patches": b"", "deep": b""}
        if self._backbone is None:
            return answer
        images = [ImageRef.of(os.fsdecode(bytes(name))) for name in row["images"]]
        wanted = {"patches": self._recipe.patches, "deep": self._recipe.deep}
        (batch,) = encode_files(self._backbone, images, **wanted, batch_size=len(images))
        answer["bad"] = json.dumps(batch.errors)  # as text: an empty column has no type
        if batch.features is not None:
            answer["globals"] = raw(batch.features.globals)
            if batch.features.patches is not None:
                answer["patches"] = raw(batch.features.patches)
                answer["shape"] = json.dumps(batch.features.patches.shape[1:])
            if batch.features.deep is not None:
                answer["deep"] = raw(batch.features.deep)
        return answer


def _tensor(content: bytes, *shape: int) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.float32).copy().reshape(shape))


def _batch(
    chunk: Sequence[ImageRef], row: dict[str, Any], *, patches: bool, deep: bool
) -> EncodedBatch:
    """The answer of a worker, with the names that the user gave."""
    errors = {}
    for index, reason in json.loads(row["bad"]).items():
        file = chunk[int(index)].file
        errors[int(index)] = reason.replace(str(file.absolute()), str(file))
    good = len(chunk) - len(errors)
    found = None
    if good:
        found = ImageFeatures(
            _tensor(row["globals"], good, -1),
            _tensor(row["patches"], good, *json.loads(row["shape"])) if patches else None,
            _tensor(row["deep"], good, -1) if deep else None,
        )
    return EncodedBatch(chunk, found, errors)
