"""Unlabelled images for a fit: found, checked and encoded; what cannot help is left out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ogkd.data.case import Case
from ogkd.errors import DataError, pluralize
from ogkd.features.store import FeatureStore
from ogkd.features.unreadable import decode_ahead
from ogkd.fitting.request import FitRequest
from ogkd.images import ImageRef
from ogkd.images.decode import find_images
from ogkd.model.familiarity import SupportFeatures, is_in_distribution
from ogkd.progress import progress_bar

log = logging.getLogger("ogkd.fit")
PER_CLASS = 2  # unlabelled images below which there is too little to learn from


@dataclass(frozen=True)
class Pool:
    """Unlabelled images and their features."""

    images: list[ImageRef]
    rows: Tensor  # [U, d]

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The images by content and by pixels, in no order that means anything."""
        marks = {mark for ref in self.images for mark in (ref.fingerprint, ref.pixel_fingerprint)}
        return tuple(sorted(marks))


def read_pool(
    request: FitRequest, store: FeatureStore, *, deep: bool, judged: Sequence[Case]
) -> Pool:
    """Every readable unlabelled image once, without copies of the images that judge a model."""
    given = request.unlabelled
    assert given is not None  # asked for by the caller
    paths = [given] if isinstance(given, str | Path) else list(given)
    refs = [ref.sliced(request.grouping.slice) for ref in find_images(paths)]
    known = {mark for case in judged for mark in case.marks}
    kept: dict[str, ImageRef] = {}
    unreadable: list[str] = []
    tests = 0
    with progress_bar("Reading unlabelled images", len(refs)) as bar:
        for batch in decode_ahead(_marks, refs):
            bar.advance(len(batch))
            for ref, marks in batch:
                if isinstance(marks, DataError):
                    unreadable.append(str(marks))
                elif known & set(marks):
                    tests += 1
                else:
                    kept.setdefault(marks[1], ref)
    if unreadable:
        log.warning(
            f"Note: {pluralize(len(unreadable), 'unlabelled file')} left out, unreadable. The "
            f"first: {unreadable[0]}"
        )
    if tests:
        log.warning(
            f"Note: {pluralize(tests, 'unlabelled image')} left out: copies of images in the "
            "data's own val or test part, on which the model could then not be judged."
        )
    images = list(kept.values())
    if not images:
        return Pool([], torch.empty(0, 0))
    return Pool(images, store.get(images, deep=deep).rows[:, 0].float())


def pool_for(
    request: FitRequest,
    pool: Pool,
    support: Sequence[Case],
    known: SupportFeatures,
    classes: int,
    width: int,
) -> Pool | None:
    """The images of the pool that this support can learn from; None, with a note, if too few."""
    labelled = {mark for case in support for mark in case.marks}
    fresh = np.array([not labelled & set(_marks(ref)) for ref in pool.images], dtype=bool)
    near = fresh
    if len(fresh):
        near = fresh & is_in_distribution(known, pool.rows.numpy(), width)
    count, left_out = int(near.sum()), ""
    if count < len(fresh):
        left_out = (
            f" Left out: {(~fresh).sum()} copies of labelled images, {fresh.sum() - count} unlike "
            "the labelled images."
        )
    if count < PER_CLASS * classes:
        log.warning(
            f"Note: the unlabelled images are not used: {count} of {len(fresh)} can be, and "
            f"{pluralize(classes, 'class')} need at least {PER_CLASS * classes}.{left_out}"
        )
        return None
    log.info(f"Found {pluralize(count, 'unlabelled image')} to learn from.{left_out}")
    rows = np.flatnonzero(near)
    return Pool([pool.images[row] for row in rows], pool.rows[torch.from_numpy(rows)])


def _marks(image: ImageRef) -> tuple[str, str]:
    """What recognises an image again: by content and by pixels."""
    return image.fingerprint, image.pixel_fingerprint
