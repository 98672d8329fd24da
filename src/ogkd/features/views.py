"""How a learner sees its support images: cached crops, or a fresh crop each time."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.errors import OgkdWarning
from ogkd.features.encode import encode_crops
from ogkd.features.store import WHOLE, FeatureStore, View
from ogkd.features.unreadable import read_each
from ogkd.images import ImageRef, look_at
from ogkd.images.transforms import Box, center_crop, cut_crop, draw_crop, normalise

_AT_ONCE = 64  # crops in one pass of the image tower
_SHARE = 0.5  # of the free memory, for decoded images
# Decoded images that some run holds, by content: runs that see the same ones share them.
_DECODED: WeakValueDictionary[str, _Picture] = WeakValueDictionary()


class FixedViews:
    """V views of each of N images, computed once; each look takes one of them at random."""

    def __init__(self, features: ImageFeatures) -> None:
        self.features = features  # globals [N, V, d], patches [N, V, P, d], deep [N, V, D] or None
        self.still = features.globals.shape[1] == 1  # every look is the same

    def __len__(self) -> int:
        return self.features.globals.shape[0]

    def some(self, images: Tensor) -> FixedViews:
        """The views of some of the images."""
        both = self.features
        patches = None if both.patches is None else both.patches[images]
        deep = None if both.deep is None else both.deep[images]
        return FixedViews(ImageFeatures(both.globals[images], patches, deep))

    def look(self, images: NDArray[np.int64], rng: np.random.Generator) -> ImageFeatures:
        """One view of each image: globals [B, d], patches [B, P, d] as precise as they are kept."""
        views = self.features.globals.shape[1]
        rows = torch.from_numpy(images * views + rng.integers(views, size=len(images)))

        def seen(kept: Tensor) -> Tensor:
            return kept.flatten(0, 1).index_select(0, rows)  # copies whole rows: faster than [..]

        patches = self.features.patches
        return ImageFeatures(
            seen(self.features.globals), None if patches is None else seen(patches)
        )


@dataclass(frozen=True, eq=False)
class _Picture:
    """An image to cut from; decoded for each cut where memory does not suffice to keep it."""

    image: ImageRef
    height: int
    width: int
    pixels: NDArray[np.uint8] | None


@dataclass(frozen=True)
class Cut:
    """A part of an image: equal if it is the same part of the same content."""

    key: str
    box: Box
    flip: bool = field(default=False, kw_only=True)
    picture: _Picture = field(compare=False)


class OnlineViews:
    """A new random crop of each image at each look, as the paper trains (slow: it encodes)."""

    def __init__(self, backbone: Backbone, images: Sequence[ImageRef], *, patches: bool) -> None:
        self.backbone = backbone
        self.patches = patches
        held = {image.key: picture for image in images if (picture := _DECODED.get(image.key))}
        missing = {image.key: image for image in images if image.key not in held}
        room = psutil.virtual_memory().available * _SHARE
        for image, pixels in read_each(list(missing.values())):
            room -= pixels.nbytes
            kept = pixels if room >= 0 else None
            height, width = pixels.shape[:2]
            held[image.key] = _Picture(image, height, width, kept)
        _DECODED.update(held)
        self.pictures = [held[image.key] for image in images]
        if again := sum(picture.pixels is None for picture in self.pictures):
            warnings.warn(
                f"{again} of {len(images)} images to cut crops from do not fit into memory: they "
                "are decoded again for each crop, which is slower.",
                OgkdWarning,
                stacklevel=2,
            )

    def __len__(self) -> int:
        return len(self.pictures)

    def some(self, images: Tensor) -> OnlineViews:
        """The views of some of the images."""
        subset = copy.copy(self)
        subset.pictures = [self.pictures[number] for number in images.tolist()]
        return subset

    def look(self, images: NDArray[np.int64], rng: np.random.Generator) -> ImageFeatures:
        """A fresh crop of each image through the image tower."""
        return self.encode([self.cut(drawn) for drawn in self.draw(images, rng)])

    def draw(self, images: NDArray[np.int64], rng: np.random.Generator) -> list[Cut]:
        """Which part of each image is seen next."""
        chosen = [self.pictures[row] for row in images]
        return [
            Cut(picture.image.key, draw_crop(picture.height, picture.width, rng), picture)
            for picture in chosen
        ]

    def cut(self, drawn: Cut) -> NDArray[np.uint8]:
        """The pixels of a crop, at the model's size."""
        picture = drawn.picture
        pixels = look_at(picture.image) if picture.pixels is None else picture.pixels
        crop = cut_crop(pixels, drawn.box, self.backbone.preprocessing)
        return np.ascontiguousarray(crop[:, ::-1]) if drawn.flip else crop

    def encode(self, crops: Sequence[NDArray[np.uint8]]) -> ImageFeatures:
        """Crops of this or of other runs' images through the image tower, a few passes for all."""
        parts = [
            encode_crops(self.backbone, crops[start : start + _AT_ONCE], patches=self.patches)
            for start in range(0, len(crops), _AT_ONCE)
        ]
        patches = [part.patches for part in parts if part.patches is not None]
        return ImageFeatures(
            torch.cat([part.globals for part in parts]), torch.cat(patches) if patches else None
        )


class PixelViews(OnlineViews):
    """The crops themselves, every second one mirrored: [B, 3, H, W] in place of features."""

    def draw(self, images: NDArray[np.int64], rng: np.random.Generator) -> list[Cut]:
        return [replace(cut, flip=bool(rng.random() < 0.5)) for cut in super().draw(images, rng)]

    def encode(self, crops: Sequence[NDArray[np.uint8]]) -> ImageFeatures:
        """The pixels as the image tower takes them, without the tower."""
        prep = self.backbone.preprocessing
        return ImageFeatures(normalise(crops, prep, torch.device("cpu")))


def pixel_views(
    backbone: Backbone, images: Sequence[ImageRef], *, crops: bool
) -> FixedViews | OnlineViews:
    """Pixels of images for methods that tune the image tower: fresh crops, or the whole images."""
    if crops:
        return PixelViews(backbone, images, patches=False)
    prep = backbone.preprocessing
    whole = [center_crop(pixels, prep) for _, pixels in read_each(images)]
    pixels = normalise(whole, prep, torch.device("cpu"))
    return FixedViews(ImageFeatures(pixels.unsqueeze(1)))


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
