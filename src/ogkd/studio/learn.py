"""From features and labels to a head, and what it says of each label when it has not seen it.

The one place where the studio meets a method: whatever is registered as METHOD is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.backbones.base import ImageFeatures
from ogkd.features.views import FixedViews
from ogkd.fitting.prepare import default_preset
from ogkd.methods import Head, Support, TextSide, make_method
from ogkd.model.temperature import softmax

METHOD = "fused"
TEXT_METHOD = "zero-shot-ensemble"  # until each class has an image
_REFITS = 32  # most refits of one check: with more labels several are held out together

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


def fit_head(features: Rows, labels: Labels, text: TextSide) -> Head:
    """The head of labelled images [N, d]; of the texts alone while a class has no image."""
    if set(labels.tolist()) != set(range(len(text.class_names))):
        return make_method(TEXT_METHOD).fit([], text, seeds=[1])[0]
    method = make_method(METHOD, preset=default_preset(METHOD))
    return method.fit([support_of(features, labels)], text, seeds=[1])[0]


def support_of(features: Rows, labels: Labels) -> Support:
    rows = torch.from_numpy(np.ascontiguousarray(features)).unsqueeze(1)
    return Support(FixedViews(ImageFeatures(rows)), torch.from_numpy(labels))


def logits_of(head: Head, features: Rows) -> Rows:
    found: Rows = head.of_rows(torch.from_numpy(features)).numpy()
    return found


@dataclass(frozen=True)
class HeldOut:
    """Logits [M, C] of labelled images, each from a head that has not seen it."""

    rows: NDArray[np.int64]  # [M]: which of the labelled images
    logits: Rows

    @property
    def probabilities(self) -> Rows:
        return softmax(self.logits, 1.0)


def hold_out(
    features: Rows, labels: Labels, text: TextSide, groups: Sequence[str | None] | None = None
) -> HeldOut:
    """Refit without each image in turn; images of one group (patient) are held out together.

    An image whose class has no other image (or no other patient) is not judged: without it there
    is no such class. Beyond _REFITS labels, folds of images take the place of single ones.
    """
    classes = len(text.class_names)
    names = list(groups) if groups is not None else [None] * len(labels)
    units: dict[object, list[int]] = {}
    for row, group in enumerate(names):
        units.setdefault(row if group is None else group, []).append(row)
    # Dealt by class, so that no fold takes all images of one class if that can be avoided.
    ordered = sorted(units.values(), key=lambda unit: (int(labels[unit[0]]), unit[0]))
    count = min(_REFITS, len(ordered))
    folds = [[row for unit in ordered[fold::count] for row in unit] for fold in range(count)]
    judged: list[int] = []
    parts: list[Rows] = []
    for fold in folds:
        kept = np.setdiff1d(np.arange(len(labels)), fold)
        if len(set(labels[kept].tolist())) < classes:
            continue
        judged += fold
        parts.append(logits_of(fit_head(features[kept], labels[kept], text), features[fold]))
    logits = np.concatenate(parts) if parts else np.empty((0, classes), np.float32)
    order = np.argsort(judged)
    return HeldOut(np.asarray(judged, np.int64)[order], logits[order])
