"""How a learner sees its support images: cached crops, or a fresh crop each time."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.features.encode import encode_crops
from ogkd.features.store import WHOLE, FeatureStore, View
from ogkd.features.unreadable import read_all
from ogkd.images import ImageRef
from ogkd.images.transforms import random_resized_crop

_AT_ONCE = 64  # crops in one pass of the image tower
# Decoded images that some run holds, by content: runs that see the same ones share them.
_DECODED: WeakValueDictionary[str, NDArray[np.uint8]] = WeakValueDictionary()


class FixedViews:
    """V views of each of N images, computed once; each look takes one of them at random."""

    def __init__(self, features: ImageFeatures) -> None:
        self.features = features  # globals [N, V, d], patches [N, V, P, d], deep [N, V, D] or None
        self.still = features.globals.shape[1] == 1  # every look is the same

    def __len__(self) -> int:
        return self.features.globals.shape[0]

    def look(self, images: NDArray[np.int64], rng: np.random.Generator) -> ImageFeatures:
        """One view of each image: globals [B, d], patches [B, P, d]."""
        rows = torch.from_numpy(images)
        views = torch.from_numpy(rng.integers(self.features.globals.shape[1], size=len(images)))
        patches = self.features.patches
        return ImageFeatures(
            self.features.globals[rows, views],
            None if patches is None else patches[rows, views].float(),
        )


class OnlineViews:
    """A new random crop of each image at each look, as the paper trains (slow: it encodes)."""

    def __init__(self, backbone: Backbone, images: Sequence[ImageRef], *, patches: bool) -> None:
        self.backbone = backbone
        self.patches = patches
        held = {image.key: _DECODED.get(image.key) for image in images}
        missing = {image.key: image for image in images if held[image.key] is None}
        held |= dict(zip(missing, read_all(list(missing.values())), strict=True))
        self.images = [pixels for image in images if (pixels := held[image.key]) is not None]
        _DECODED.update(
            {image.key: pixels for image, pixels in zip(images, self.images, strict=True)}
        )

    def __len__(self) -> int:
        return len(self.images)

    def look(self, images: NDArray[np.int64], rng: np.random.Generator) -> ImageFeatures:
        """A fresh crop of each image through the image tower."""
        return self.encode(self.crops(images, rng))

    def crops(self, images: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.uint8]]:
        prep = self.backbone.preprocessing
        return [random_resized_crop(self.images[row], prep, rng) for row in images]

    def encode(self, crops: Sequence[NDArray[np.uint8]]) -> ImageFeatures:
        """Crops of this or of other runs' images through the image tower, a few passes for all."""
        found = [
            encode_crops(self.backbone, crops[start : start + _AT_ONCE], patches=self.patches)
            for start in range(0, len(crops), _AT_ONCE)
        ]
        patches = [some.patches for some in found if some.patches is not None]
        return ImageFeatures(
            torch.cat([some.globals for some in found]), torch.cat(patches) if patches else None
        )


def cached_views(
    store: FeatureStore,
    images: Sequence[ImageRef],
    *,
    count: int,
    seed: int,
    patches: bool,
    deep: bool = False,
    adapter: bool = False,
) -> FixedViews:
    """`count` random crops of each image from the store; 0 means the whole image alone.

    With `adapter` they are those of the released adapters.
    """
    views = [View(crop, seed, adapter) for crop in range(count)] or [WHOLE]
    return FixedViews(store.get(images, views, patches=patches, deep=deep))
