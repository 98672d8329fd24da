"""Is a new image like those that the model learned from? Judged by their features alone.

A model folder keeps the features of its support images in half precision: no image, no name.

The novelty of an image is the share of its feature v that no mixture of the support features
S explains: r = rho v' (S'S + rho I)^-1 v, from 0 (a support image) to 1 (nothing in common). It is
compared with the novelty of each support image to the others. docs/evidence/trust.md has
measured rates of false alarms and of images of other modalities that are found.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as array_bytes

from ogkd.data.task import Task
from ogkd.errors import ConfigError
from ogkd.files import read_bytes

SUPPORT = "support.safetensors"
FEWEST = 8  # support images below which there is too little to judge by
_MOST = 1 << 32  # bytes of a file
_RHO = 0.02  # the ridge: how closely a mixture has to fit
_QUANTILE = 0.9  # so that a few odd support images do not make everything familiar
_MARGIN = 1.4  # times that novelty_score is still familiar


@dataclass(frozen=True)
class SupportFeatures:
    """Features of whole support images, rows of unit length, and their labels."""

    features: NDArray[np.float32]  # [N, d]
    labels: NDArray[np.int64]  # [N]; with several findings [N, F]

    def to_bytes(self) -> bytes:
        """A safetensors file; features in half precision."""
        arrays = {"features": self.features.astype(np.float16), "labels": self.labels}
        content: bytes = array_bytes({name: np.ascontiguousarray(a) for name, a in arrays.items()})
        return content

    @classmethod
    def read(
        cls, path: Path, task: Task, *, width: int, sha256: str | None = None
    ) -> SupportFeatures | None:
        """Read and check against the model's card; None if there is no such file."""
        try:
            content = read_bytes(path, most=_MOST)
            if sha256 not in (None, hashlib.sha256(content).hexdigest()):
                raise ValueError("it does not match its checksum")
            arrays = read_arrays(content)
            rows, labels = arrays["features"].astype(np.float32), arrays["labels"].astype(np.int64)
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise _damaged(path, str(error)) from error
        shape = (len(rows), *task.label_shape)
        if rows.ndim != 2 or rows.shape[1] != width or labels.shape != shape:
            raise _damaged(path, f"shapes {rows.shape} and {labels.shape}, width {width} expected")
        least, most = task.label_range
        if labels.size and not least <= labels.min() <= labels.max() <= most:
            raise _damaged(path, f"labels outside the {len(task.names)} {task.plural}")
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not np.all(np.isfinite(lengths) & (lengths > 0)):
            raise _damaged(path, "features that are not numbers")
        return cls(rows / lengths, labels)


class Familiarity:
    """What the support says about how strange an image may be; computed once, asked often."""

    def __init__(self, support: SupportFeatures, width: int | None = None) -> None:
        """Only the first `width` numbers of a row, its global feature, are compared."""
        self._width = width
        S = _unit(support.features[:, :width])  # [M, d]
        P = np.linalg.inv(S.T @ S + _RHO * np.eye(S.shape[1]))
        self._P: NDArray[np.float64] = P.astype(np.float64)  # [d, d]
        self.limit = np.inf  # too little to judge by: nothing is unfamiliar
        if can_judge(support):
            h = ((S @ self._P) * S).sum(axis=1)  # v' P v of each row
            # Sherman-Morrison gives each image's novelty_score to all the others without a loop.
            self.limit = _MARGIN * float(np.quantile(_RHO * h / (1.0 - h), _QUANTILE))

    def novelty_score(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """The share of each row of features [N, d] that the support does not explain: [N]."""
        rows = _unit(np.atleast_2d(features)[:, : self._width])
        return np.asarray(_RHO * ((rows @ self._P) * rows).sum(axis=1))

    def unfamiliar(self, features: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Whether each row of features [N, d] is unlike everything that was learned from: [N].

        True means: of another modality, another organ, or no medical image at all. It does not
        mean that the prediction is wrong, nor False that it is right.
        """
        return np.asarray(self.novelty_score(features) > self.limit)


def can_judge(support: SupportFeatures | None) -> bool:
    """Whether there are enough support images to call another image unfamiliar."""
    return support is not None and len(support.features) >= FEWEST


def is_in_distribution(
    support: SupportFeatures, features: NDArray[np.float32], width: int
) -> NDArray[np.bool_]:
    """Whether each row is as near to a support image as most of these are to each other: [N].

    Stricter than `unfamiliar`, for images to learn from, and possible from two support images on:
    a row's nearest support image has at least the cosine that all but a tenth of the support
    images have to theirs. `width` numbers of a row, its global feature, are compared.
    """
    S, rows = _unit(support.features[:, :width]), _unit(np.atleast_2d(features)[:, :width])
    among = S @ S.T
    np.fill_diagonal(among, -1.0)
    limit = np.quantile(among.max(axis=1), 1 - _QUANTILE)
    return np.asarray((rows @ S.T).max(axis=1) >= limit)


def _unit(features: NDArray[np.float32]) -> NDArray[np.float64]:
    rows = np.atleast_2d(np.asarray(features, dtype=np.float64))
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float64] = rows / np.maximum(length, 1e-12)
    return unit


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is damaged or of another model ({why}). Copy the model folder again, fit again, "
        "or delete this file: predictions do not need it."
    )
