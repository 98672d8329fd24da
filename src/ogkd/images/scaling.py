"""Numbers of any depth to bytes: one rule for every format.

Bytes stay as they are. Anything deeper is stretched from its own smallest to its own largest
value, so that no image turns white or black for the bits it was stored in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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
    found = np.empty(rgb.shape, np.uint8)
    for channel in range(3):  # five times as fast as a copy of all three
        found[:, :, channel] = rgb[:, :, 0]
    return found
