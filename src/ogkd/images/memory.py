"""Images that are not files: bytes, PIL images, arrays, tensors, and collections of them."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ogkd.errors import DataError
from ogkd.images.plain import gray_to_rgb, to_bytes
from ogkd.images.ref import ImageRef, SliceRule

ImageLike = str | Path | ImageRef | bytes | Image.Image | NDArray[Any] | Tensor
Images = ImageLike | Iterable[Any] | Dataset[Any]
"""One image, a batch, or a collection whose items are images or (image, label)."""

_LAST = ((1,), (3,), (4,))  # gray, RGB, RGBA: the last axis of an array
_FIRST = ((1,), (3,))  # the first one of a tensor
_DEEP = ("uint16", "int16", "uint32", "int32")  # scaled by their own range, as in files
_BYTES = bytes | bytearray | memoryview


@dataclass(frozen=True)
class InMemory(ImageRef):
    """An image that is not a file; `file` is what messages call it."""

    content: Any = field(default=None, repr=False, compare=False)
    rule: SliceRule | None = None  # which slice of a volume, if the content is one

    def sliced(self, rule: SliceRule | None) -> ImageRef:
        return replace(self, rule=rule)

    @cached_property
    def key(self) -> str:
        """Of the bytes of a file, that of the file itself."""
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        return super().key


def as_ref(image: object, name: str = "The image") -> ImageRef:
    """The address of a file, or anything else by this name."""
    if isinstance(image, ImageRef):
        return image
    if isinstance(image, str | os.PathLike):
        return ImageRef.of(os.fspath(image))
    return InMemory(Path(name), content=image)


def image_refs(images: Images) -> Iterator[ImageRef]:
    """Every image of a collection, in order; it is read as it is used, so nothing accumulates."""
    for number, image in enumerate(_each(images)):
        yield as_ref(image, f"Image {number}")


def is_one_image(images: object) -> bool:
    """Whether this is a single image, not a batch or a collection; its values may still be wrong.

    Arrays have their channels last. Tensors may also have them first, as torch has.
    """
    if isinstance(images, str | os.PathLike | ImageRef | Image.Image | _BYTES):
        return True
    if isinstance(images, np.ndarray) and images.dtype.kind in "OUS":
        return False
    if isinstance(images, np.ndarray | Tensor):
        first = isinstance(images, Tensor) and images.shape[:1] in _FIRST
        return images.ndim == 2 or (images.ndim == 3 and (first or images.shape[2:] in _LAST))
    return False


def _each(images: Any) -> Iterator[Any]:
    if is_one_image(images):
        yield images
    elif isinstance(images, np.ndarray | Tensor):
        if images.ndim not in (1, 3, 4):
            raise DataError(f"An array of shape {tuple(images.shape)} is not a batch of images.")
        yield from images
    elif isinstance(images, Dataset) and hasattr(images, "__len__"):
        # Not every dataset ends its iteration, so count.
        yield from (_of_item(images[number]) for number in range(len(images)))
    elif isinstance(images, Iterable) and not isinstance(images, Mapping | DataLoader):
        yield from map(_of_item, images)
    else:
        raise DataError(f"{type(images).__name__} is not an image or a collection of images.")


def _of_item(item: Any) -> Any:
    """The image of an item, which may have a label."""
    if isinstance(item, Mapping):
        if "image" not in item:
            raise DataError(f"An item has no 'image'. It has: {', '.join(map(str, item))}.")
        return item["image"]
    return item[0] if isinstance(item, tuple | list) and item else item


def array_to_rgb(image: Any, name: str) -> NDArray[np.uint8]:
    """An array or tensor as RGB [H, W, 3]; a DataError calls it `name`.

    Bytes stay as they are, floats from 0 to 1 become bytes, integers of 16 and 32 bits are scaled
    by their own range, as those of files are. Transparency is left out.
    """
    if isinstance(image, Tensor):
        image = image.detach().cpu()
        image = image.float() if image.dtype == torch.bfloat16 else image
        if image.ndim == 3 and image.shape[:1] in _FIRST:
            image = image.permute(1, 2, 0)
        image = image.numpy()
    if not isinstance(image, np.ndarray):
        raise DataError(f"{name} is of type {type(image).__name__}, not an image.")
    if image.ndim not in (2, 3) or image.shape[2:] not in ((), *_LAST) or image.size == 0:
        raise DataError(f"{name} is an array of shape {image.shape}, not an image.")
    if image.ndim == 3:
        image = image[:, :, :3] if image.shape[2] >= 3 else image[:, :, 0]
    low, high = image.min(), image.max()
    if image.dtype == np.bool_ or (image.dtype.kind == "f" and 0 <= low <= high <= 1):
        pixels = np.rint(image.astype(np.float64) * 255).astype(np.uint8)
    elif image.dtype == np.uint8 or image.dtype.name in _DEEP:
        pixels = to_bytes(image)
    else:
        raise DataError(
            f"{name} has {image.dtype} values from {low:.3g} to {high:.3g}, but "
            "must have uint8 from 0 to 255 or floats from 0 to 1, not normalised."
        )
    return gray_to_rgb(pixels) if pixels.ndim == 2 else pixels


def data_uri(image: Image.Image, *, most: int | None = None) -> str:
    """An image as a JPEG inside a page, at most `most` pixels a side, so that no file is served."""
    copy = image.convert("RGB")
    if most is not None:
        copy.thumbnail((most, most))
    memory = io.BytesIO()
    copy.save(memory, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(memory.getvalue()).decode()
