"""Image files through a frozen image tower, batch by batch, with bad files set apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.errors import DataError
from ogkd.features.unreadable import BadFile, decode_ahead
from ogkd.images import ImageRef, read_image
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
    backbone: Backbone, images: Sequence[ImageRef], *, patches: bool = False, batch_size: int = 32
) -> Iterator[EncodedBatch]:
    """Encode images in order; memory does not grow with their number."""
    prep = backbone.preprocessing
    decoded = decode_ahead(lambda image: whole_image(image, prep), images, batch_size=batch_size)
    start = 0
    for found in decoded:
        batch = images[start : start + len(found)]
        start += len(found)
        errors = {row: str(x) for row, x in enumerate(found) if isinstance(x, DataError)}
        crops = [crop for crop in found if not isinstance(crop, DataError)]
        features = None
        if crops:
            pixels = normalise(crops, prep).to(backbone.device)
            features = backbone.encode_images(pixels, patches=patches)
        yield EncodedBatch(batch, features, errors, crops)


def whole_image(image: ImageRef, prep: Preprocessing) -> NDArray[np.uint8]:
    """The image as the tower sees it: resized and cropped to a square, [size, size, 3]."""
    pixels = read_image(image)
    try:
        return center_crop(pixels, prep)
    except (ValueError, MemoryError) as error:
        height, width = pixels.shape[:2]
        raise DataError(
            f"{image} cannot be resized: {width} x {height} pixels ({error!r}). Crop it first."
        ) from error
