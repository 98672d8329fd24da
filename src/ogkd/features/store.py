"""Features on disk, addressed by what they are features of: nothing is encoded twice.

The key is the image's bytes, the backbone's digest, the preprocessing and the view. Entries
lie in safetensors shards that are written whole; a shard cut short by a crash is passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Sequence
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
from ogkd.features.encode import ADVICE, unreadable, unreadable_error
from ogkd.files import cache_dir, write_atomically
from ogkd.images.address import content_key
from ogkd.images.decode import read_image
from ogkd.images.transforms import center_crop, normalise, random_resized_crop
from ogkd.progress import Bar, progress_bar

__all__ = ["WHOLE", "FeatureStore", "View"]

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
    """Features of image files by one backbone; `patches` are kept in half precision."""

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
        self, paths: Sequence[Path], views: Sequence[View] = (WHOLE,), *, patches: bool = False
    ) -> ImageFeatures:
        """Features of every view of every file: globals [N, V, d], patches [N, V, P, d] (fp16)."""
        self._find_shards()
        try:
            keys = self._complete(paths, views, patches=patches)
        except DataError:
            # One bad file stops the work: name all of them at once.
            if bad := unreadable(paths):
                raise unreadable_error(bad, ADVICE) from None
            raise
        flat = [key for row in keys for key in row]
        found = self._read(flat, patches=patches)
        return ImageFeatures(
            found.globals.unflatten(0, (len(paths), len(views))),
            None if found.patches is None else found.patches.unflatten(0, (len(paths), len(views))),
        )

    def _complete(
        self, paths: Sequence[Path], views: Sequence[View], *, patches: bool
    ) -> list[list[str]]:
        """Encode what is missing; the keys of every view of every file."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            hashes = list(pool.map(content_key, paths))
        keys = [[f"{sha}-{view.key}" for view in views] for sha in hashes]
        missing: dict[str, tuple[Path, str, View]] = {}
        for path, sha, row in zip(paths, hashes, keys, strict=True):
            for key, view in zip(row, views, strict=True):
                if not self._has(key, patches):
                    missing[key] = (path, sha, view)
        if missing:
            self._encode(missing, patches=patches)
        return keys

    def _has(self, key: str, patches: bool) -> bool:
        return key in self._entries and (not patches or f"{key}/patches" in self._entries)

    def _find_shards(self) -> None:
        """Read the headers of shards not seen yet (other processes may have added some)."""
        for shard in sorted(self.folder.glob("*.safetensors")):
            if shard in self._shards:
                continue
            with contextlib.suppress(SafetensorError, OSError), safe_open(shard, "pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a dict
                    self._entries.setdefault(key, shard)  # what was read once stays the same
            self._shards.add(shard)

    def _read(self, keys: Sequence[str], *, patches: bool) -> ImageFeatures:
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
        return ImageFeatures(globals_, kept if patches else None)

    def _encode(self, missing: dict[str, tuple[Path, str, View]], *, patches: bool) -> None:
        shard: dict[str, Tensor] = {}
        keys = list(missing)
        began = time.perf_counter()
        with (
            ThreadPoolExecutor(max_workers=2) as pool,
            progress_bar("Encoding images", len(keys)) as bar,
        ):
            for start, crops in self._crops(pool, [missing[key] for key in keys]):
                batch = keys[start : start + len(crops)]
                self._encode_batch(batch, crops, shard, patches, bar)
                done, seconds = start + len(crops), time.perf_counter() - began
                bar.describe(f"{done / seconds:.1f} images/s")
                if len(shard) >= _SHARD:
                    self._write(shard)
                    shard = {}
        if shard:
            self._write(shard)
        self.seconds += time.perf_counter() - began
        self._find_shards()

    def _crops(
        self, pool: ThreadPoolExecutor, items: Sequence[tuple[Path, str, View]]
    ) -> Iterator[tuple[int, list[NDArray[np.uint8]]]]:
        """Batches of crops, the next one decoded while this one is encoded."""
        starts = range(0, len(items), _BATCH)
        ahead = None
        for start in (*starts, None):
            upcoming = None
            if start is not None:
                batch = items[start : start + _BATCH]
                upcoming = (start, [pool.submit(self._crop, *item) for item in batch])
            if ahead is not None:
                yield ahead[0], [future.result() for future in ahead[1]]
            ahead = upcoming

    def _crop(self, path: Path, sha: str, view: View) -> NDArray[np.uint8]:
        image = read_image(path)
        if view.crop is None:
            return center_crop(image, self.backbone.preprocessing)
        # The crop depends on the image and the view alone, not on its neighbours or its name.
        rng = np.random.default_rng([view.seed, view.crop, int(sha[:15], 16)])
        return random_resized_crop(image, self.backbone.preprocessing, rng)

    def _encode_batch(
        self,
        keys: Sequence[str],
        crops: Sequence[NDArray[np.uint8]],
        shard: dict[str, Tensor],
        patches: bool,
        bar: Bar,
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
        bar.advance(len(keys))

    def _write(self, shard: dict[str, Tensor]) -> None:
        with write_atomically(self.folder / f"{uuid.uuid4().hex}.safetensors") as aside:
            aside.write_bytes(save(shard))  # a full disk is then an OSError
