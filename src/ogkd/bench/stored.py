"""The records of a finished run as they are stored, checked when they are read.

Readers rely on it: a metric is a finite number or None, a probability is one, labels and shapes
agree. Nothing here knows which runs there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ogkd.errors import DataError
from ogkd.evaluation.names import METRICS
from ogkd.records import Record, read_record

SCHEMA = 1


@dataclass(frozen=True)
class Predictions:
    """A run's predictions for one part of the test images."""

    labels: NDArray[np.int64]  # [N]
    probabilities: NDArray[np.float32]  # [N, C]
    W: NDArray[np.float32]  # [C, C], the class graph of these classes

    def check(self, classes: int) -> None:
        """Raise a ValueError unless they are probabilities and labels of so many classes."""
        p, y, W = self.probabilities, self.labels, self.W
        if p.ndim != 2 or p.shape[1] != classes or y.shape != p.shape[:1] or not len(y):
            raise ValueError(f"labels {y.shape} and probabilities {p.shape} of {classes} classes")
        if W.shape != (classes, classes):
            raise ValueError(f"a class graph of shape {W.shape} for {classes} classes")
        if y.dtype.kind not in "iu" or {p.dtype.kind, W.dtype.kind} != {"f"}:
            raise ValueError(f"labels of type {y.dtype}, numbers of type {p.dtype} and {W.dtype}")
        if y.min() < 0 or y.max() >= classes:
            raise ValueError(f"labels from {y.min()} to {y.max()} for {classes} classes")
        if not (np.isfinite(p).all() and np.isfinite(W).all()):
            raise ValueError("values that are not numbers")
        if p.min() < 0 or (abs(p.sum(axis=1, dtype=np.float64) - 1) > 1e-3).any():
            raise ValueError("probabilities that are negative or do not sum to 1")


_Number = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
_Positive = Annotated[_Number, Field(ge=0)]


class Result(BaseModel):
    """result.json: everything that readers use; there may be more."""

    model_config = ConfigDict(extra="allow", strict=True)
    metrics: dict[str, dict[str, _Number | None]]  # of each part; None: not defined
    class_names: dict[str, Annotated[list[str], Field(min_length=1)]]
    normal: dict[str, list[int]]
    seconds: dict[str, _Positive]
    together: int | None = None
    peak_mib: _Positive | None = None
    device: str | None = None  # its kind; older results have none
    gpu: str | None = None
    gpu_peak_mib: _Positive | None = None
    engine: str | None = None  # that encoded the images
    images_per_class: list[Annotated[int, Field(ge=0)]] | None = None
    config: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    backbone_digest: str | None = None
    data_sha256: str | None = None
    bank_sha256: str | None = None
    run: str | None = None  # the specification's hash
    predictions_sha256: str | None = None  # older results have neither

    @model_validator(mode="after")
    def _check(self) -> Self:
        for part, metrics in self.metrics.items():
            for name, value in metrics.items():
                fraction = name in METRICS and METRICS[name].percent
                if fraction and value is not None and not -1e-6 <= value <= 1 + 1e-6:
                    raise ValueError(f"{name} of {value:g}, which is not from 0 to 1")
            labels = range(len(self.class_names.get(part, ())))
            if not set(self.normal.get(part, ())) <= set(labels):
                raise ValueError("normal classes that are not among the classes")
        return self

    def check(self, run: str, parts: Sequence[str]) -> None:
        """Raise a ValueError unless this is the result of the run with this hash and parts."""
        for name in ("metrics", "class_names", "normal"):
            if set(getattr(self, name)) != set(parts):
                raise ValueError(f"{name} are not of the parts {', '.join(parts)}")
        if self.run not in (None, run):
            raise ValueError("it is the result of another run")


def read_stored(path: Path, kind: type[Record], advice: str = "") -> Record:
    """A record from a file; ConfigError if a newer version of ogkd wrote it."""
    try:
        return read_record(path, kind, newest=SCHEMA)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is missing or damaged ({error}).{advice}") from error


def sha256_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
