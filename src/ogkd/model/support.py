"""Features of the images that a model learned from, kept in its folder: no image, no name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as array_bytes

from ogkd.errors import ConfigError
from ogkd.images.address import content_key

__all__ = ["SUPPORT", "SupportFeatures", "image_keys"]

SUPPORT = "support.safetensors"


@dataclass(frozen=True)
class SupportFeatures:
    """Global features of whole support images, rows of unit length, and their labels."""

    features: NDArray[np.float32]  # [N, d]
    labels: NDArray[np.int64]  # [N]

    def to_bytes(self) -> bytes:
        """A safetensors file; features in half precision."""
        arrays = {"features": self.features.astype(np.float16), "labels": self.labels}
        content: bytes = array_bytes({name: np.ascontiguousarray(a) for name, a in arrays.items()})
        return content

    @classmethod
    def read(cls, path: Path, *, classes: int, width: int) -> SupportFeatures | None:
        """Read and check against the model's shape; None where there is no such file."""
        try:
            arrays = read_arrays(path.read_bytes())
            rows, labels = arrays["features"].astype(np.float32), arrays["labels"].astype(np.int64)
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise _damaged(path, str(error)) from error
        if rows.ndim != 2 or rows.shape[1] != width or labels.shape != rows.shape[:1]:
            raise _damaged(path, f"shapes {rows.shape} and {labels.shape}, width {width} expected")
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not np.all(np.isfinite(lengths) & (lengths > 0)):
            raise _damaged(path, "features that are not numbers")
        if labels.size and not 0 <= labels.min() <= labels.max() < classes:
            raise _damaged(path, f"labels outside the {classes} classes")
        return cls(rows / lengths, labels)


def image_keys(paths: Sequence[Path]) -> list[str]:
    """16 hex digits for each image that say which it is by its content, and nothing else of it."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = pool.map(content_key, paths)
        return [hashlib.sha256(key.encode()).hexdigest()[:16] for key in found]


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is damaged or of another model ({why}). Copy the model folder again, fit again, "
        "or delete this file: predictions do not need it."
    )
