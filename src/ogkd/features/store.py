"""Features on disk, addressed by what they are features of: nothing is encoded twice.

The key is the image's bytes, the backbone's digest, the preprocessing and the view. Entries
are kept in safetensors shards that are written whole; a shard cut short by a crash is skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.errors import DataError
from ogkd.features.encode import whole_image
from ogkd.features.unreadable import decode_ahead, unreadable, unreadable_error
from ogkd.files import cache_dir, write_atomically
from ogkd.images import ImageRef, read_image
from ogkd.images.transforms import normalise, random_resized_crop
from ogkd.progress import progress_bar

_BATCH = 32
_SHARD = 256  # entries written at once: what a kill can lose


@dataclass(frozen=True)
class View:
    """The whole image (`crop` None), or the crop of that number in the series of `seed`."""

    crop: int | None = None
    seed: int = 0

    @property
    def key(self) -> str:
        return "whole" if self.crop is None else f"crop{self.seed}.{self.crop}"


WHOLE = View()


class FeatureStore:
    """Features of images by one backbone; `patches` are kept in half precision."""

    def __init__(self, backbone: Backbone, *, root: Path | None = None) -> None:
        self.backbone = backbone
        recipe = json.dumps([backbone.digest, asdict(backbone.preprocessing)], sort_keys=True)
        name = hashlib.sha256(recipe.encode()).hexdigest()[:24]
        self.folder = (root or cache_dir() / "features") / name
        self.encoded = 0  # views computed, not found, since this object was made
        self.seconds = 0.0  # what that took, decoding included
        self._entries: dict[str, Path] = {}
        self._shards: set[Path] = set()

    def get(
        self,
        images: Sequence[str | Path | ImageRef],
        views: Sequence[View] = (WHOLE,),
        *,
        patches: bool = False,
    ) -> ImageFeatures:
        """Features of every view of every image: globals [N, V, d], patches [N, V, P, d] (fp16).

        Unreadable images are one DataError that names all of them.
        """
        self._find_shards()
        refs = [ImageRef.of(image) for image in images]
        try:
            keys = self._complete(refs, views, patches=patches)
        except DataError:
            # One bad file stops the work: name all of them at once.
            if bad := unreadable(refs):
                raise unreadable_error(bad) from None
            raise
        shape = (len(images), len(views))
        globals_, kept = self._read(keys, patches=patches)
        return ImageFeatures(
            globals_.unflatten(0, shape), kept.unflatten(0, shape) if patches else None
        )

    def _complete(
        self, images: Sequence[ImageRef], views: Sequence[View], *, patches: bool
    ) -> list[str]:
        """Encode what is missing; the keys of every view of every image."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(lambda image: image.key, images))  # each is hashed once
        jobs = [(image, view) for image in images for view in views]
        keys = [f"{image.key}-{view.key}" for image, view in jobs]
        ending = "/patches" if patches else ""
        missing = {
            key: job
            for key, job in zip(keys, jobs, strict=True)
            if not {key, f"{key}{ending}"} <= self._entries.keys()
        }
        if missing:
            self._encode(missing, patches=patches)
        return keys

    def _find_shards(self) -> None:
        """Read the headers of shards not seen yet (other processes may have added some)."""
        for shard in sorted(self.folder.glob("*.safetensors")):
            if shard in self._shards:
                continue
            with contextlib.suppress(SafetensorError, OSError), safe_open(shard, "pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a dict
                    self._entries.setdefault(key, shard)  # what was read once stays the same
            self._shards.add(shard)

    def _read(self, keys: Sequence[str], *, patches: bool) -> tuple[Tensor, Tensor]:
        backbone = self.backbone
        globals_ = torch.empty(len(keys), backbone.embed_dim)
        grid = backbone.patch_grid[0] * backbone.patch_grid[1]
        rows = len(keys) if patches else 0
        kept = torch.empty(rows, grid, backbone.embed_dim, dtype=torch.float16)
        by_shard: dict[Path, list[tuple[str, Tensor]]] = {}
        for row, key in enumerate(keys):
            by_shard.setdefault(self._entries[key], []).append((key, globals_[row]))
            if patches:
                name = f"{key}/patches"
                by_shard.setdefault(self._entries[name], []).append((name, kept[row]))
        for shard, wanted in by_shard.items():
            with safe_open(shard, "pt") as file:
                for name, place in wanted:
                    place.copy_(file.get_tensor(name))
        return globals_, kept

    def _encode(self, missing: dict[str, tuple[ImageRef, View]], *, patches: bool) -> None:
        shard: dict[str, Tensor] = {}
        keys = list(missing)
        done, began = 0, time.perf_counter()
        with progress_bar("Encoding images", len(keys)) as bar:
            for found in decode_ahead(self._crop, list(missing.values()), batch_size=_BATCH):
                crops = [_or_raise(outcome) for outcome in found]
                self._encode_batch(keys[done : done + len(crops)], crops, shard, patches)
                done += len(crops)
                bar.advance(len(crops))
                bar.describe(f"{done / (time.perf_counter() - began):.1f} images/s")
                if len(shard) >= _SHARD:
                    self._write(shard)
                    shard = {}
        if shard:
            self._write(shard)
        self.seconds += time.perf_counter() - began
        self._find_shards()

    def _crop(self, job: tuple[ImageRef, View]) -> NDArray[np.uint8]:
        image, view = job
        prep = self.backbone.preprocessing
        if view.crop is None:
            return whole_image(image, prep)
        # The crop depends on the image and the view alone, not on its neighbours or its name.
        rng = np.random.default_rng([view.seed, view.crop, int(image.key[:15], 16)])
        return random_resized_crop(read_image(image), prep, rng)

    def _encode_batch(
        self,
        keys: Sequence[str],
        crops: Sequence[NDArray[np.uint8]],
        shard: dict[str, Tensor],
        patches: bool,
    ) -> None:
        pixels = normalise(crops, self.backbone.preprocessing).to(self.backbone.device)
        features = self.backbone.encode_images(pixels, patches=patches)
        self.encoded += len(keys)
        for row, key in enumerate(keys):
            if key not in self._entries:
                # Where patches come later, the first globals stay: a tower that is asked for
                # patches rounds in another way, and results must not depend on the order.
                shard[key] = features.globals[row].cpu().clone()
            if features.patches is not None:
                shard[f"{key}/patches"] = features.patches[row].half().cpu().clone()

    def _write(self, shard: dict[str, Tensor]) -> None:
        with write_atomically(self.folder / f"{uuid.uuid4().hex}.safetensors") as aside:
            aside.write_bytes(save(shard))  # a full disk is then an OSError


def _or_raise(outcome: NDArray[np.uint8] | DataError) -> NDArray[np.uint8]:
    if isinstance(outcome, DataError):
        raise outcome
    return outcome
