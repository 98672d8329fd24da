"""Images through a frozen image tower, batch by batch, with bad files set apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.errors import BackboneError, DataError
from ogkd.features.unreadable import BadFile, decode_ahead
from ogkd.images import ImageRef, look_at
from ogkd.images.transforms import Preprocessing, center_crop, normalise


@dataclass(frozen=True)
class EncodedBatch:
    """Features of the readable images of one batch, and why the others could not be read."""

    images: Sequence[ImageRef]  # all of the batch, in order
    features: ImageFeatures | None  # of the readable ones, in order; None if there are none
    errors: Mapping[int, str]  # position in the batch -> why it could not be read
    crops: Sequence[NDArray[np.uint8]] | None = None  # what the tower saw; None if made elsewhere

    @property
    def readable(self) -> list[ImageRef]:
        """The images that have features, in the order of those."""
        return [image for row, image in enumerate(self.images) if row not in self.errors]

    @property
    def bad(self) -> list[BadFile]:
        """The images that could not be read."""
        return [BadFile(self.images[row], reason) for row, reason in self.errors.items()]


def encode_files(
    backbone: Backbone,
    images: Iterable[ImageRef],
    *,
    patches: bool = False,
    deep: bool = False,
    batch_size: int = 32,
) -> Iterator[EncodedBatch]:
    """Encode images in order; memory does not grow with their number."""
    prep = backbone.preprocessing
    decoded = decode_ahead(lambda image: whole_image(image, prep), images, batch_size=batch_size)
    for found in decoded:
        batch = [image for image, _ in found]
        errors = {row: str(x) for row, (_, x) in enumerate(found) if isinstance(x, DataError)}
        crops = [crop for _, crop in found if not isinstance(crop, DataError)]
        features = None
        if crops:
            features = encode_crops(backbone, crops, patches=patches, deep=deep)
        yield EncodedBatch(batch, features, errors, crops)


def encode_crops(
    backbone: Backbone, crops: Sequence[NDArray[np.uint8]], *, patches: bool, deep: bool = False
) -> ImageFeatures:
    """Features of crops that have the tower's size; they are numbers, or it is an error."""
    pixels = normalise(crops, backbone.preprocessing, backbone.device)
    # Backbones of other packages may not know the argument: they are never asked.
    features = backbone.encode_images(pixels, patches=patches, **({"deep": True} if deep else {}))
    if bool(features.rows.isfinite().all()):
        return features
    raise BackboneError(
        f"The backbone '{backbone.name}' gives features that are not numbers: its weights are "
        "damaged, or its engine does not work on this machine. Fetch or copy it again, or use the "
        "engine torch."
    )


def whole_image(image: ImageRef, prep: Preprocessing) -> NDArray[np.uint8]:
    """The image as the tower sees it: resized and cropped to a square, [size, size, 3]."""
    pixels = look_at(image, blank=False)
    try:
        return center_crop(pixels, prep)
    except (ValueError, MemoryError) as error:
        height, width = pixels.shape[:2]
        raise DataError(
            f"{image} cannot be resized: {width} x {height} pixels ({error!r}). Crop it first."
        ) from error
