"""How a learner sees its support images: cached crops, or a fresh crop each time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.features.store import WHOLE, FeatureStore, View
from ogkd.features.unreadable import read_all
from ogkd.images import ImageRef
from ogkd.images.transforms import normalise, random_resized_crop


class FixedViews:
    """V views of each of N images, computed once; each look takes one of them at random."""

    def __init__(self, features: ImageFeatures) -> None:
        self.features = features  # globals [N, V, d], patches [N, V, P, d] or None

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
        self.images = read_all(images)

    def __len__(self) -> int:
        return len(self.images)

    def look(self, images: NDArray[np.int64], rng: np.random.Generator) -> ImageFeatures:
        """A fresh crop of each image through the image tower."""
        prep = self.backbone.preprocessing
        crops = [random_resized_crop(self.images[row], prep, rng) for row in images]
        pixels = normalise(crops, prep).to(self.backbone.device)
        return self.backbone.encode_images(pixels, patches=self.patches)


def cached_views(
    store: FeatureStore, images: Sequence[ImageRef], *, count: int, seed: int, patches: bool
) -> FixedViews:
    """`count` random crops of each image from the store; 0 means the whole image alone."""
    views = [View(crop, seed) for crop in range(count)] or [WHOLE]
    return FixedViews(store.get(images, views, patches=patches))
