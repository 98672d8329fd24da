"""Images through a frozen image tower, batch by batch, with bad files set apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.errors import BackboneError, DataError
from ogkd.features.unreadable import BadFile, decode_ahead, unreadable_error
from ogkd.images import ImageRef, look_at
from ogkd.images.transforms import Preprocessing, center_crop, normalise


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


class SafetensorsStream:
    """Write one float32 tensor of unknown length row by row, and small ones at the end.

    The format is a length, a JSON header and raw bytes; a header may end in spaces, so room is
    left for it first and it is filled in when the number of rows is known.
    """

    def __init__(self, file: BinaryIO, name: str, *, header_room: int) -> None:
        self._file = file
        self._name = name
        # Tensors should start at a multiple of eight bytes.
        self._room = (header_room + 4096 + 7) // 8 * 8
        self._shape: list[int] | None = None
        self._rows = 0
        file.write(self._room.to_bytes(8, "little") + b" " * self._room)

    def append(self, rows: Tensor) -> None:
        """Add rows [n, ...]; every call has the same trailing shape."""
        count, *self._shape = rows.shape
        self._rows += count
        self._file.write(raw(rows))

    def finish(self, small: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write the small tensors, then the header."""
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        start = 0
        if self._shape is not None:
            start = self._entry(header, self._name, [self._rows, *self._shape], 0)
        for name, tensor in small.items():
            start = self._entry(header, name, list(tensor.shape), start)
            self._file.write(raw(tensor))
        text = json.dumps(header, ensure_ascii=True).encode()
        assert len(text) <= self._room
        self._file.seek(8)
        self._file.write(text.ljust(self._room))
        self._file.flush()

    @staticmethod
    def _entry(header: dict[str, object], name: str, shape: list[int], start: int) -> int:
        end = start + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
        return end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def raw(tensor: Tensor) -> bytes:
    """The numbers of a tensor as float32."""
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
