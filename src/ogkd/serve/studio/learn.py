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
from ogkd.fitting.pool import PER_CLASS
from ogkd.fitting.prepare import default_preset
from ogkd.methods import Head, Support, TextSide, make_method
from ogkd.model.familiarity import SupportFeatures, is_in_distribution

METHOD = "fused"
SEED = 1
TEXT_METHOD = "zero-shot-ensemble"  # until two classes have images
POOL = 500  # most unlabelled images that are learned from: more take longer than a click may
_FOLDS = 10  # of a check: with more labels several are held out together

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


def fit_head(features: Rows, labels: Labels, text: TextSide, rest: Rows | None = None) -> Head:
    """The head of labelled images [N, d] and of others [U, d] whose labels are not known.

    A class without an image is known by its texts; while fewer than two have one, all are.
    """
    if len(set(labels.tolist())) < 2:
        return make_method(TEXT_METHOD).fit(None, text, seed=SEED)
    method = make_method(METHOD, preset=default_preset(METHOD))
    return method.fit(support_of(features, labels, text, rest), text, seed=SEED)


def support_of(features: Rows, labels: Labels, text: TextSide, rest: Rows | None = None) -> Support:
    rows = torch.from_numpy(np.ascontiguousarray(features)).unsqueeze(1)
    pool = None
    if rest is not None and len(near := rest[learnable(features, labels, text, rest)]):
        pool = torch.from_numpy(near)
    views = FixedViews(ImageFeatures(rows))
    return Support(views, torch.from_numpy(labels), unlabelled=pool, allow_missing_classes=True)


def learnable(features: Rows, labels: Labels, text: TextSide, rest: Rows) -> NDArray[np.bool_]:
    """Which unlabelled images [U, d] are like the labelled ones; none of them if too few are."""
    if not len(rest):
        return np.zeros(0, bool)
    width = text.backbone.embed_dim
    near = is_in_distribution(SupportFeatures(features, labels), rest, width)
    enough = int(near.sum()) >= PER_CLASS * len(text.class_names)
    return near if enough else np.zeros(len(rest), bool)


def logits_of(head: Head, features: Rows) -> Rows:
    logits: Rows = head.of_rows(torch.from_numpy(features)).numpy()
    return logits


@dataclass(frozen=True)
class HeldOut:
    """Logits [M, C] of labelled images, each from a head that has not seen its label."""

    rows: NDArray[np.int64]  # [M]: which of the labelled images
    logits: Rows


def hold_out(
    features: Rows,
    labels: Labels,
    text: TextSide,
    groups: Sequence[str | None] | None = None,
    rest: Rows | None = None,
) -> HeldOut:
    """Refit without each image's label in turn, those of one group (patient) together.

    An image whose class has no other image (or no other patient) is not judged. Beyond _FOLDS
    labels, folds of images take the place of single ones. The images held out are then among the
    unlabelled ones, if there are any: so are all images that the studio is asked about.
    """
    classes = len(text.class_names)
    names = list(groups) if groups is not None else [None] * len(labels)
    units: dict[object, list[int]] = {}
    for row, group in enumerate(names):
        units.setdefault(row if group is None else group, []).append(row)
    # Dealt by class, so that no fold takes all images of one class if that can be avoided.
    ordered = sorted(units.values(), key=lambda unit: (int(labels[unit[0]]), unit[0]))
    count = min(_FOLDS, len(ordered))
    folds = [[row for unit in ordered[fold::count] for row in unit] for fold in range(count)]
    judged: list[int] = []
    parts: list[Rows] = []
    for fold in folds:
        kept = np.setdiff1d(np.arange(len(labels)), fold)
        known = set(labels[kept].tolist())
        able = [row for row in fold if labels[row] in known]
        if len(known) < 2 or not able:
            continue
        judged += able
        more = None if rest is None else np.concatenate([rest, features[fold]])
        head = fit_head(features[kept], labels[kept], text, more)
        parts.append(logits_of(head, features[able]))
    logits = np.concatenate(parts) if parts else np.empty((0, classes), np.float32)
    order = np.argsort(judged)
    return HeldOut(np.asarray(judged, np.int64)[order], logits[order])
