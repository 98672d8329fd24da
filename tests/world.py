"""What tests of several rooms fit and judge: one way to each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import ogkd
from ogkd.data.case import Case
from ogkd.data.task import Task
from ogkd.data.tasks import OneOf
from ogkd.evaluation import LabelledPredictions
from ogkd.images import ImageRef
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decision
from tiny_data import FAST


class Keyed(ImageRef):
    """An image without a file, recognised by its address."""

    @property
    def fingerprint(self) -> str:
        return str(self)

    @property
    def pixel_fingerprint(self) -> str:
        return f"pixels of {self}"


def fit(data: Any, backbone: Any, **options: Any) -> Classifier:
    """A classifier; a method that trains is over at once."""
    if options.get("method") in ("ogkd", "coop"):
        options.setdefault("settings", FAST)
    return ogkd.fit(data, backbone=backbone, **options)


def predictions(
    labels: ArrayLike,
    logits: ArrayLike,
    *,
    task: Task | None = None,
    groups: Sequence[str | None] | None = None,
    normal: tuple[int, ...] = (),
) -> LabelledPredictions:
    """Predictions whose logits [N, C] a test chooses; cases are 0, 1, 2, ..."""
    z = np.asarray(logits, dtype=np.float32)
    y = np.asarray(labels, dtype=np.int64)
    names = task or OneOf(tuple("abcdefgh"[: z.shape[1]]), normal)
    patients = groups or [None] * len(z)
    images = [Keyed(Path(f"{row:04}")) for row in range(len(z))]
    targets = [tuple(row) if isinstance(row, list) else row for row in y.tolist()]
    cases = [
        Case.single(image, target, group=patient)
        for image, target, patient in zip(images, targets, patients, strict=True)
    ]
    return LabelledPredictions(
        task=names,
        cases=cases,
        labels=y,
        logits=z,
        features=np.zeros((len(z), 2), np.float32),
        images=list(images),
        decisions=[Decision(case) for case in cases],
    )
