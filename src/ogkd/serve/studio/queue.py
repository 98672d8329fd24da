"""Which images to label next: a pure function of features, labels and the current model.

The objective is coverage: an image is covered as well as the most similar image with a label
covers it. At first each image counts the same, so that the choice is that of medoids: one typical
image of each kind. Once each class has images, an image counts as much as the model is unsure of
it: a typical image of each uncertain region is asked for, and not ten neighbours on a border.
Constants were chosen on training and validation images (docs/evidence/fused.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# In place of a label: to be asked for; never to be asked for; given to another window now.
UNLABELLED, EXCLUDED, ASSIGNED = -1, -2, -3
CHECK = 4  # every so many images one is random, to measure the accuracy on
_MOST = 3000  # images that are to be covered; of more, evenly spaced ones
_WIDTH = 0.8  # of the kernel exp((cosine - 1) / _WIDTH) on centred features
_COVERED = 2  # labels per class before the model's uncertainty counts


def next_images(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    classes: int,
    probabilities: NDArray[np.float32] | None = None,
    groups: Sequence[str | None] | None = None,
    n: int = 20,
) -> list[int]:
    """Rows of the `n` images to label next, the most useful first.

    Args:
        features: [N, d], of all images.
        labels: [N]: a class from 0 on, UNLABELLED, EXCLUDED or ASSIGNED.
        classes: how many there are.
        probabilities: [N, C] of the current model, if there is one.
        groups: the patient of each image, if known: the next patient comes before a second image
            of one, as long as there is another patient.
        n: how many rows to give; fewer if fewer are open.
    """
    open_rows = np.flatnonzero(labels == UNLABELLED)
    if not len(open_rows) or n < 1:
        return []
    known = np.flatnonzero(labels >= 0)
    claimed = np.flatnonzero((labels >= 0) | (labels == ASSIGNED))
    pool = np.flatnonzero(labels != EXCLUDED)
    pool = pool[np.linspace(0, len(pool) - 1, min(len(pool), _MOST)).astype(np.intp)]
    unit = _centred(features, pool)
    K = np.exp((unit[pool] @ unit[open_rows].T - 1) / _WIDTH)  # [P, U]
    best = np.zeros(len(pool), np.float32)  # how well each image of the pool is covered
    for labelled_row in claimed:
        np.maximum(best, np.exp((unit[pool] @ unit[labelled_row] - 1) / _WIDTH), out=best)
    weights = np.ones(len(pool), np.float32)
    seen = {int(label) for label in labels[known]}
    if probabilities is not None and len(known) >= _COVERED * classes and len(seen) == classes:
        weights = uncertainty(probabilities[pool])
    asked = Counter(_group(groups, int(row)) for row in claimed)
    chosen: list[int] = []
    gains = np.empty(len(open_rows), np.float32)
    free = np.ones(len(open_rows), bool)
    for _ in range(min(n, len(open_rows))):
        gains[:] = weights @ np.maximum(K - best[:, None], 0)
        counts = np.array([asked[_group(groups, int(row))] for row in open_rows])
        allowed = free & (counts == counts[free].min()) if groups is not None else free
        column = int(np.where(allowed, gains, -1.0).argmax())
        free[column] = False
        row = int(open_rows[column])
        chosen.append(row)
        asked[_group(groups, row)] += 1
        np.maximum(best, K[:, column], out=best)
    return chosen


def with_checks(
    queue: Sequence[int], order: Sequence[int], labels: NDArray[np.int64], *, every: int = CHECK
) -> list[int]:
    """The queue with every `every`-th image taken from a random order instead.

    `order` are all rows in an order that was drawn once. What the queue asks for is harder than
    the rest, so accuracy is measured on images of the random order: see `checked`.
    """
    answered = int(((labels != UNLABELLED) & (labels != ASSIGNED)).sum())
    checks = (row for row in order if labels[row] == UNLABELLED)
    mixed: dict[int, None] = {}
    rest = iter(queue)
    for position in range(len(queue)):
        source = checks if (answered + position) % every == every - 1 else rest
        row = next((row for row in source if row not in mixed), None)
        if row is not None:
            mixed[row] = None
    return list(mixed)


def checked(order: Sequence[int], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which labelled images are a random sample: those before the first open one of the order."""
    sample = np.zeros(len(labels), bool)
    for row in order:
        if labels[row] == UNLABELLED:
            break
        sample[row] = labels[row] >= 0
    return sample


def uncertainty(probabilities: NDArray[np.float32]) -> NDArray[np.float32]:
    """One minus the lead of the most probable class over the second, [N]."""
    first_two = np.sort(probabilities, axis=1)[:, -2:]
    doubt: NDArray[np.float32] = 1 - (first_two[:, 1] - first_two[:, 0])
    return doubt


def _centred(features: NDArray[np.float32], pool: NDArray[np.intp]) -> NDArray[np.float32]:
    """Directions from the mean image: without it all images of one modality look alike."""
    moved = features - features[pool].mean(axis=0)
    length = np.linalg.norm(moved, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (moved / np.maximum(length, 1e-12)).astype(np.float32)
    return unit


def _group(groups: Sequence[str | None] | None, row: int) -> object:
    """An image without a known patient is a patient of its own."""
    name = None if groups is None else groups[row]
    return row if name is None else name
