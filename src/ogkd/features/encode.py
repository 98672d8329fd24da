"""Images through a frozen image tower, batch by batch, with bad files set apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.backbones.catalog import local_folder
from ogkd.errors import BackboneError, DataError
from ogkd.features.unreadable import (
    BadFile,
    OnError,
    decode_ahead,
    list_reasons,
    unreadable,
    unreadable_error,
)
from ogkd.files import write_atomically
from ogkd.images import ImageRef, look_at
from ogkd.images.transforms import Preprocessing, center_crop, normalise
from ogkd.progress import progress_bar


@dataclass(frozen=True)
class EncodedBatch:
    """Features of the readable images of one batch, and why the others could not be read."""

    images: Sequence[ImageRef]  # all of the batch, in order
    features: ImageFeatures | None  # of the readable ones, in order; None if there are none
    errors: Mapping[int, str]  # position in the batch -> why it could not be read
    crops: Sequence[NDArray[np.uint8]] | None = None  # what the tower saw

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
    for results in decoded:
        batch = [image for image, _ in results]
        errors = {row: str(x) for row, (_, x) in enumerate(results) if isinstance(x, DataError)}
        crops = [crop for _, crop in results if not isinstance(crop, DataError)]
        features = None
        if crops:
            features = encode_crops(backbone, crops, patches=patches, deep=deep)
        yield EncodedBatch(batch, features, errors, crops)


def encode_now(backbone: Backbone, images: Sequence[ImageRef]) -> Tensor:
    """Features [N, d] that are not kept on the disk; DataError names images that are unreadable."""
    rows = []
    for batch in encode_files(backbone, images):
        if batch.features is None or batch.errors:
            raise unreadable_error(batch.bad)
        rows.append(batch.features.rows.cpu())
    return torch.cat(rows)


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
        "damaged, or its engine does not work on this machine."
    )


def whole_image(image: ImageRef, prep: Preprocessing, *, note: bool = False) -> NDArray[np.uint8]:
    """The image as the tower sees it: resized and cropped to a square, [size, size, 3].

    With `note`, the image remembers its pixels' fingerprint.
    """
    pixels = look_at(image, blank=False)
    if note:
        image.note_pixels(pixels)
    try:
        return center_crop(pixels, prep)
    except (ValueError, MemoryError) as error:
        height, width = pixels.shape[:2]
        raise DataError(
            f"{image} cannot be resized: {width} x {height} pixels ({error!r})."
        ) from error


def write_features(
    backbone: Backbone, images: Sequence[ImageRef], out: Path, *, on_error: OnError = "stop"
) -> list[BadFile]:
    """Write a safetensors file with `globals` [N, d], for use outside of ogkd.

    Its metadata has the names of the backbone and of the files, in row order. Returns the images
    that could not be read and were skipped.
    """
    files: list[str] = []
    rows, bad = [], list[BadFile]()
    with (
        write_atomically(out, suffixes=(".safetensors",)) as aside,
        progress_bar("Encoding images", len(images)) as bar,
    ):
        for batch in encode_files(backbone, images):
            bad += batch.bad
            if bad and on_error == "stop":
                # One bad file stops the work: find all the others first, to report them together.
                rest = images[len(files) + len(batch.images) :]
                raise unreadable_error([*bad, *unreadable(rest)])
            if batch.features is not None:
                files += [image.as_posix() for image in batch.readable]
                rows.append(batch.features.globals.cpu())
            bar.advance(len(batch.images))
        if not files:
            raise DataError(f"No file could be read:\n{list_reasons(bad)}")
        folder = local_folder(backbone.name)
        name = folder.name if folder else backbone.name
        facts = {"backbone": name, "digest": backbone.digest, "files": json.dumps(files)}
        aside.write_bytes(save({"globals": torch.cat(rows)}, facts))
    return bad
