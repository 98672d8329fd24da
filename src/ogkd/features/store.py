"""Features on disk, addressed by what they are features of: nothing is encoded twice.

The key is the image's bytes, the backbone's digest, the preprocessing, the kind of device and the
view. Entries are kept in safetensors shards that are written whole. A shard is named by the SHA-256
of its bytes, which is checked before it is used; what fails is computed again. Text features are
kept by the list of texts and the backbone.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.backbones.engines import may_be_faster
from ogkd.data.case import Case, images_of
from ogkd.data.names import first_lines
from ogkd.errors import DataError, StorageError, pluralize
from ogkd.features.encode import EncodedBatch, encode_crops, whole_image
from ogkd.features.unreadable import decode_ahead, unreadable, unreadable_error
from ogkd.files import cache_dir, sha256_file, write_atomically
from ogkd.images import ImageRef, look_at
from ogkd.images.decode import BlankImage
from ogkd.images.transforms import ADAPTER_AREAS, random_resized_crop
from ogkd.progress import progress_bar

log = logging.getLogger("ogkd.features")
_BATCH = 32
_LONG = 120.0  # seconds of encoding after which a faster engine is mentioned
_NAME = f"{'[0-9a-f]' * 64}.safetensors"
_SHARD = 256  # entries written at once: what a kill can lose
_GLOBALS, _PATCHES, _DEEP = "", "/patches", "/deep"  # endings of the names of entries


@dataclass(frozen=True)
class View:
    """The whole image (`crop` None), or the crop of that number in the series of `seed`.

    With `adapter` it is one of the released adapters': larger, and flipped at random.
    """

    crop: int | None = None
    seed: int = 0
    adapter: bool = False

    @property
    def key(self) -> str:
        kind = "adapter" if self.adapter else "crop"
        return "whole" if self.crop is None else f"{kind}{self.seed}.{self.crop}"


WHOLE = View()


class _Damaged(Exception):
    def __init__(self, shard: Path) -> None:
        super().__init__(shard)
        self.shard = shard


class FeatureStore:
    """Features of images by one backbone; `patches` are kept in half precision."""

    def __init__(self, backbone: Backbone, *, root: Path | None = None) -> None:
        self.backbone = backbone
        parts = [backbone.digest, backbone.preprocessing.identity()]
        if backbone.device.type != "cpu":  # another kind of device rounds in another way
            parts.append(backbone.device.type)
        recipe = json.dumps(parts, sort_keys=True)
        name = hashlib.sha256(recipe.encode()).hexdigest()[:24]
        self.folder = (root or cache_dir() / "features") / name
        self.encoded = 0  # views computed, not found, since this object was made
        self.seconds = 0.0  # what that took, decoding included
        self.damaged: set[Path] = set()  # shards that were found changed, and not used
        self._checked: set[Path] = set()
        self._entries: dict[str, Path] = {}
        self._shards: set[Path] = set()
        self._find_shards()

    def get(
        self,
        images: Sequence[str | Path | ImageRef],
        views: Sequence[View] = (WHOLE,),
        *,
        patches: bool = False,
        deep: bool = False,
    ) -> ImageFeatures:
        """Features of every view of every image: globals [N, V, d], patches [N, V, P, d] (fp16).

        `deep` asks for deeper features [N, V, D] too. Unreadable images are one DataError that
        names all of them.
        """
        refs = [ImageRef.of(image) for image in images]
        shape = (len(images), len(views))
        kinds = [kind for kind, wanted in ((_PATCHES, patches), (_DEEP, deep)) if wanted]
        while True:
            self._find_shards()
            try:
                keys = self._complete(refs, views, kinds)
            except DataError:
                # One bad file stops the work: name all of them at once.
                if bad := unreadable(refs):
                    raise unreadable_error(bad) from None
                raise
            try:
                features = self._read(keys, kinds)
            except _Damaged as error:
                self._forget(error.shard)
                continue
            kept = {kind: tensor.unflatten(0, shape) for kind, tensor in features.items()}
            return ImageFeatures(kept[_GLOBALS], kept.get(_PATCHES), kept.get(_DEEP))

    def has(self, image: ImageRef) -> bool:
        """Whether features of the whole image are known."""
        return f"{image.key}-{WHOLE.key}{_GLOBALS}" in self._entries

    def _complete(
        self, images: Sequence[ImageRef], views: Sequence[View], kinds: Sequence[str]
    ) -> list[str]:
        """Encode what is missing; the keys of every view of every image."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(lambda image: image.key, images))  # each is hashed once
        jobs = [(image, view) for image in images for view in views]
        keys = [f"{image.key}-{view.key}" for image, view in jobs]
        missing = {
            key: job
            for key, job in zip(keys, jobs, strict=True)
            if not {f"{key}{kind}" for kind in (_GLOBALS, *kinds)} <= self._entries.keys()
        }
        if missing:
            self._encode(missing, kinds)
        return keys

    def _find_shards(self) -> None:
        """Read the headers of shards not seen yet (other processes may have added some)."""
        # The oldest first, so that results do not depend on what was added later.
        shards = sorted((path.stat().st_mtime_ns, path) for path in self.folder.glob(_NAME))
        for _, shard in shards:
            if shard in self._shards:
                continue
            with contextlib.suppress(SafetensorError, OSError), safe_open(shard, "pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a dict
                    self._entries.setdefault(key, shard)  # what was read once stays the same
            self._shards.add(shard)

    def _read(self, keys: Sequence[str], kinds: Sequence[str]) -> dict[str, Tensor]:
        backbone = self.backbone
        grid = backbone.patch_grid[0] * backbone.patch_grid[1]
        shapes = {
            _GLOBALS: (backbone.embed_dim,),
            _PATCHES: (grid, backbone.embed_dim),
            _DEEP: (sum(backbone.deep_parts),),
        }
        features = {
            kind: torch.empty(
                len(keys), *shapes[kind], dtype=torch.float16 if kind == _PATCHES else torch.float32
            )
            for kind in (_GLOBALS, *kinds)
        }
        by_shard: dict[Path, list[tuple[str, Tensor]]] = {}
        for kind, rows in features.items():
            for key, row in zip(keys, rows, strict=True):
                name = f"{key}{kind}"
                by_shard.setdefault(self._entries[name], []).append((name, row))
        for shard, wanted in by_shard.items():
            try:
                self._check(shard)
                with safe_open(shard, "pt") as file:
                    for name, row in wanted:
                        tensor = file.get_tensor(name)
                        if tensor.shape != row.shape:  # copy_ would stretch it
                            raise _Damaged(shard)
                        row.copy_(tensor)
            except (SafetensorError, OSError) as error:
                raise _Damaged(shard) from error
        return features

    def _check(self, shard: Path) -> None:
        """Compare a shard with its name, once."""
        if shard not in self._checked and sha256_file(shard) != shard.stem:
            raise _Damaged(shard)
        self._checked.add(shard)

    def _forget(self, shard: Path) -> None:
        self.damaged.add(shard)
        self._entries = {key: path for key, path in self._entries.items() if path != shard}
        # Deleted, so that what is computed now does not lose to it again.
        with contextlib.suppress(OSError):
            shard.unlink(missing_ok=True)

    def _encode(self, missing: dict[str, tuple[ImageRef, View]], kinds: Sequence[str]) -> None:
        shard: dict[str, Tensor] = {}
        keys = list(missing)
        done, began = 0, time.perf_counter()
        with progress_bar("Encoding images", len(keys)) as bar:
            for batch in decode_ahead(self._crop, list(missing.values()), batch_size=_BATCH):
                if errors := [outcome for _, outcome in batch if isinstance(outcome, DataError)]:
                    raise errors[0]
                crops = [outcome for _, outcome in batch if not isinstance(outcome, DataError)]
                self._encode_batch(keys[done : done + len(crops)], crops, shard, kinds)
                done += len(crops)
                bar.advance(len(crops))
                bar.describe(f"{done / (time.perf_counter() - began):.1f} images/s")
                if done == len(crops):  # the first batch
                    self._note_duration((len(keys) - done) * (time.perf_counter() - began) / done)
                if len(shard) >= _SHARD:
                    self._write(shard)
                    shard = {}
        if shard:
            self._write(shard)
        self.seconds += time.perf_counter() - began
        self._find_shards()

    def _note_duration(self, seconds: float) -> None:
        if seconds > _LONG and may_be_faster(self.backbone):
            log.info(
                f"Encoding takes about {seconds / 60:.0f} minutes. The engine 'auto' "
                "may shorten this: it tries half precision."
            )

    def _crop(self, job: tuple[ImageRef, View]) -> NDArray[np.uint8]:
        image, view = job
        prep = self.backbone.preprocessing
        if view.crop is None:
            return whole_image(image, prep, note=True)  # fits and evaluations ask for it
        # The crop depends on the image and the view alone, not on its neighbours or its name.
        rng = np.random.default_rng([view.seed, view.crop, int(image.key[:15], 16)])
        pixels = look_at(image, blank=False)
        if view.adapter:
            return random_resized_crop(pixels, prep, rng, areas=ADAPTER_AREAS, flip=True)
        return random_resized_crop(pixels, prep, rng)

    def _encode_batch(
        self,
        keys: Sequence[str],
        crops: Sequence[NDArray[np.uint8]],
        shard: dict[str, Tensor],
        kinds: Sequence[str],
    ) -> None:
        features = encode_crops(
            self.backbone, crops, patches=_PATCHES in kinds, deep=_DEEP in kinds
        )
        self.encoded += len(keys)
        for row, key in enumerate(keys):
            if key not in self._entries:
                # Where patches come later, the first globals stay: a tower that is asked for
                # patches rounds in another way, and results must not depend on the order.
                shard[key] = _own(features.globals[row])
            if features.patches is not None:
                shard[f"{key}{_PATCHES}"] = _own(features.patches[row].half())
            if features.deep is not None:
                shard[f"{key}{_DEEP}"] = _own(features.deep[row])

    def _write(self, shard: dict[str, Tensor]) -> None:
        content = save(shard)
        path = self.folder / f"{hashlib.sha256(content).hexdigest()}.safetensors"
        with write_atomically(path, ours=True) as aside:
            aside.write_bytes(content)  # a full disk is then an OSError
        self._shards.discard(path)  # a damaged one may have had its name


def stored_batches(
    store: FeatureStore, images: Iterable[ImageRef], *, deep: bool = False
) -> Iterator[EncodedBatch]:
    """Images in order with their features from the store, which encodes what it does not have."""
    rest = iter(images)
    while batch := list(itertools.islice(rest, _SHARD)):
        features = store.get(batch, deep=deep)
        parts = (features.globals, features.patches, features.deep)
        first = [None if part is None else part[:, 0] for part in parts]
        yield EncodedBatch(batch, ImageFeatures(*first), {})  # type: ignore[arg-type]


def given_batches(rows: Tensor, images: Iterable[ImageRef]) -> Iterator[EncodedBatch]:
    """Images in order with features [N, d] that the caller has."""
    refs = list(images)
    yield EncodedBatch(refs, ImageFeatures(rows), {})


def without_blank(store: FeatureStore, cases: Sequence[Case]) -> tuple[list[Case], str]:
    """The cases without blank images, and a note that names those; "" if there are none.

    A case that has no others keeps them: reading says what is wrong. Slices of volumes
    were chosen among those that are not blank, and what has features is not blank either: only new
    files are looked at.
    """

    def look(image: ImageRef) -> NDArray[np.uint8] | None:
        return None if store.has(image) else look_at(image, blank=False)

    images = dict.fromkeys(image for image in images_of(cases) if not image.part)
    looked = itertools.chain.from_iterable(decode_ahead(look, images))
    blank = {image for image, error in looked if isinstance(error, BlankImage)}
    kept = [case.without(blank) or case for case in cases]
    gone = sorted(map(str, blank.difference(images_of(kept))))
    note = f"Left out {pluralize(len(gone), 'blank image')}:\n{first_lines(gone)}"
    return kept, note if gone else ""


def text_features(backbone: Backbone, texts: Sequence[str], *, root: Path | None = None) -> Tensor:
    """Features [N, d] of `backbone.encode_texts(texts)`, found in the cache or kept there.

    One file for each list of texts, because a batch's rounding depends on all that is in it: a
    list that is encoded again has the same bits whatever else was encoded before.
    """
    address = hashlib.sha256(json.dumps([backbone.digest, *texts]).encode()).hexdigest()
    file = (root or cache_dir() / "texts") / address[:2] / f"{address}.safetensors"
    cached = _read_texts(file)
    if cached is not None and cached.shape == (len(texts), backbone.embed_dim):
        return cached
    features = backbone.encode_texts(texts)
    if features.isfinite().all():
        # A cache that cannot be written costs time, nothing else.
        with contextlib.suppress(StorageError), write_atomically(file, ours=True) as aside:
            aside.write_bytes(save({"features": _own(features)}, {"sha256": _digest(features)}))
    return features


def _read_texts(path: Path) -> Tensor | None:
    """What is kept there; None if there is nothing, or it is not what was written."""
    try:
        with safe_open(path, "pt") as file:
            features: Tensor = file.get_tensor("features").clone()  # not a map of the file
            digest = (file.metadata() or {}).get("sha256")
    except (SafetensorError, OSError):
        return None
    return features if digest == _digest(features) else None


def _own(rows: Tensor) -> Tensor:
    """A copy in memory of its own, in order, as safetensors stores it."""
    return rows.cpu().clone(memory_format=torch.contiguous_format)


def _digest(features: Tensor) -> str:
    return hashlib.sha256(features.contiguous().numpy().tobytes()).hexdigest()
