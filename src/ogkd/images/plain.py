"""PNG, JPEG, TIFF, BMP and WebP to RGB, and numbers of any depth to bytes, for every format.

Bytes stay as they are. Anything deeper is stretched from its own smallest to its own largest
value, so that no image turns white or black for the bits it was stored in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from ogkd.errors import DataError
from ogkd.images.ref import STORED

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
_DEEP_GRAY = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
# Colour PNGs of 16 bits: read as little-endian, the byte that Pillow keeps is the low one.
_LOW_BYTES = {"RGB;16B": "RGB;16L", "RGBA;16B": "RGBA;16L", "LA;16B": "RGBA"}
TIFF_MARKS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_BITS, _PHOTOMETRIC, _FORMAT = 258, 262, 339  # TIFF tags
_WHITE_IS_ZERO = 0
_ORIENTATION = 0x0112  # EXIF tag
_PLAIN_COLOURS = (_WHITE_IS_ZERO, 1, 2)  # also: black is zero, RGB
_AXES = ("YX", "YXS", "SYX")  # one picture, gray or colour


def read_plain(file: Path, part: str = "", *, max_pixels: int) -> NDArray[np.uint8]:
    """The first image of the file as RGB [H, W, 3]; transparency is left out.

    Its EXIF orientation is applied, but not to the part "stored".
    """
    if part not in ("", STORED):
        raise DataError(f"{file} is a single image, so '#{part}' has no meaning.")
    upright = part != STORED
    try:
        # Pillow's own limit would only warn at this size.
        with Image.open(file, formats=FORMATS) as image:
            check_size(file, image.width, image.height, max_pixels)
            if image.format == "TIFF" and _beyond_pillow(image):
                return _read_tiff(file, max_pixels)
            if image.format == "PNG" and image.tile and image.tile[0].args in _LOW_BYTES:
                return _read_deep_png(file, image, upright)
            return rgb_of(image, upright=upright)
    except UnidentifiedImageError:
        with file.open("rb") as stream:
            if stream.read(4) not in TIFF_MARKS:
                raise
        return _read_tiff(file, max_pixels)


def check_size(file: Path, width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise DataError(
            f"{file} has {width} x {height} pixels, more than the limit of {max_pixels:,}."
        )


def is_turned(file: Path) -> bool:
    """Whether the picture has an EXIF orientation by which it must be rotated."""
    try:
        with Image.open(file, formats=FORMATS) as image:
            return bool(image.getexif().get(_ORIENTATION, 1) != 1)
    except Exception:  # whatever is wrong with it, reading it will tell
        return False


def rgb_of(image: Image.Image, *, upright: bool = True) -> NDArray[np.uint8]:
    """A PIL image as RGB [H, W, 3]."""
    image.load()
    turned = image
    if upright and image.getexif().get(_ORIENTATION, 1) != 1:
        turned = ImageOps.exif_transpose(image)
    if turned.mode == "L":
        return gray_to_rgb(np.asarray(turned))
    if turned.mode not in _DEEP_GRAY:
        return np.asarray(turned if turned.mode == "RGB" else turned.convert("RGB"))
    gray = stretch(np.asarray(turned))
    tags: Any = getattr(image, "tag_v2", {})
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        gray = 255 - gray
    return gray_to_rgb(gray)


def _read_deep_png(file: Path, image: ImageFile.ImageFile, upright: bool) -> NDArray[np.uint8]:
    """Colour PNGs of 16 bits: Pillow keeps the high byte, so a second reading fetches the low."""

    def numbers(picture: Image.Image) -> NDArray[np.uint16]:
        return np.asarray(ImageOps.exif_transpose(picture) if upright else picture).astype(
            np.uint16
        )

    raw = str(image.tile[0].args)
    with Image.open(file, formats=("PNG",)) as again:
        again.tile = [again.tile[0]._replace(args=_LOW_BYTES[raw])]
        again.load()
        other = numbers(again)
    if raw == "LA;16B":  # the four bytes of a pixel, as they are: gray twice, alpha twice
        return gray_to_rgb(stretch(other[:, :, 0] * 256 + other[:, :, 1]))
    image.load()
    high = numbers(image)
    return stretch(high[:, :, :3] * 256 + other[:, :, :3])


def _beyond_pillow(image: Image.Image) -> bool:
    """Whether Pillow would drop bits: deep colour, and numbers that its modes cannot represent."""
    tags: Any = getattr(image, "tag_v2", {})
    bits = tags.get(_BITS, (1,))
    kinds = tags.get(_FORMAT, (1,))
    if max(bits) <= 8 or tags.get(_PHOTOMETRIC) not in _PLAIN_COLOURS:
        return False
    return len(bits) > 1 or bits[0] > 32 or (bits[0] == 32 and kinds[0] == 1)


def _read_tiff(file: Path, max_pixels: int) -> NDArray[np.uint8]:
    import tifffile

    with tifffile.TiffFile(file) as tiff:
        page = tiff.pages[0]
        check_size(file, page.imagewidth, page.imagelength, max_pixels)
        cut = np.prod(page.chunked, dtype=float) > len(page.dataoffsets)  # some are not there
        if cut or page.imagedepth != 1 or page.samplesperpixel > 8 or page.axes not in _AXES:
            raise DataError(f"{file} is a TIFF of shape {page.shape}, not a single whole image.")
        white_is_zero = page.photometric == _WHITE_IS_ZERO
        values = page.asarray()
    if page.axes == "SYX":
        values = np.moveaxis(values, 0, 2)
    if values.ndim == 3:
        values = values[:, :, :3] if values.shape[2] >= 3 else values[:, :, 0]
    scaled = to_bytes(values)
    if white_is_zero:
        scaled = 255 - scaled
    return gray_to_rgb(scaled) if scaled.ndim == 2 else scaled


def to_bytes(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """uint8 as it is; other numbers stretched by their own range."""
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values, np.uint8)
    return stretch(values)


def stretch(
    values: NDArray[np.generic], *, valid: NDArray[np.bool_] | None = None
) -> NDArray[np.uint8]:
    """Map the values' own range to 0-255; what is not a number, or not `valid`, becomes black.

    +inf is white. A constant image is black: it has no range.
    """
    if values.dtype.kind not in "uifb":
        raise ValueError(f"values of type {values.dtype} are not gray levels")
    deep = values.astype(np.float64)
    usable = np.isfinite(deep) if valid is None else np.isfinite(deep) & valid
    if not usable.any():
        return np.zeros(deep.shape, np.uint8)
    low, high = deep[usable].min(), deep[usable].max()
    if high == low:
        return np.zeros(deep.shape, np.uint8)
    if high / 2 - low / 2 > np.finfo(np.float64).max / 2:  # the range itself would overflow
        deep, low, high = deep / 2, low / 2, high / 2
    deep = np.nan_to_num(deep, nan=low, posinf=high, neginf=low)
    shares = np.clip((deep - low) / (high - low), 0.0, 1.0)
    if valid is not None:
        shares[~valid] = 0.0
    return np.asarray(np.rint(shares * 255.0), np.uint8)


def gray_to_rgb(gray: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[H, W] -> [H, W, 3], a view that shows the same numbers three times."""
    return np.broadcast_to(gray[:, :, None], (*gray.shape, 3))


def is_gray_view(rgb: NDArray[np.uint8]) -> bool:
    """Whether the three channels are the same memory, as `gray_to_rgb` leaves them."""
    return rgb.strides[2] == 0


def own_pixels(rgb: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same as an array that can be written to."""
    if not is_gray_view(rgb):
        return np.require(rgb, requirements=["C", "W"])
    pixels = np.empty(rgb.shape, np.uint8)
    for channel in range(3):  # five times as fast as a copy of all three
        pixels[:, :, channel] = rgb[:, :, 0]
    return pixels
