"""Weights that a key and a shape determine, so that no fixture has to contain them.

Only numpy: `tools/make_backbone_fixtures.py` uses it, too, in an environment without ogkd.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

PIXEL_SCALE = 30.0  # `made` takes pixels for a matrix with as many inputs


def made(key: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """Numbers of the size that trained ones have; RandomState's never change."""
    noise = np.random.RandomState(zlib.crc32(key.encode())).standard_normal(tuple(shape))
    if key.endswith("logit_scale"):
        return np.full(tuple(shape), 3.0, np.float32)
    if key.endswith("running_var"):
        return np.asarray(1.5 + noise**2, np.float32)
    if len(shape) >= 2 and min(shape) > 1 and "embed" not in key and key.split(".")[-1] != "query":
        return np.asarray(noise / np.prod(shape[1:]) ** 0.5, np.float32)
    is_factor = key.endswith("weight") and len(shape) == 1
    return np.asarray(0.3 * noise + is_factor, np.float32)


def made_state(shapes: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.float32]]:
    return {key: made(key, shape) for key, shape in shapes.items()}
