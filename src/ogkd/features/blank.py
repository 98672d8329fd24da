"""Blank images of cases: there is nothing in them, so they are left out, as blank slices are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ogkd.datasets.case import Case, images_of
from ogkd.datasets.names import first_lines
from ogkd.errors import counted
from ogkd.features.store import FeatureStore
from ogkd.features.unreadable import decode_ahead
from ogkd.images import ImageRef, look_at
from ogkd.images.decode import BlankImage


def without_blank(store: FeatureStore, cases: Sequence[Case]) -> tuple[list[Case], str]:
    """The cases without blank images, and a note that names those; "" if there are none.

    A case that has no others keeps them: reading says what is wrong. Parts of volumes and slides
    were chosen among those that are not blank, and what has features is not blank either: only new
    files are looked at.
    """

    def look(image: ImageRef) -> NDArray[np.uint8] | None:
        return None if store.has(image) else look_at(image, blank=False)

    images = dict.fromkeys(image for image in images_of(cases) if not image.part)
    looked = itertools.chain.from_iterable(decode_ahead(look, images))
    blank = {image for image, error in looked if isinstance(error, BlankImage)}
    kept = [case.without(blank) or case for case in cases]
    gone = sorted(map(str, blank.difference(images_of(kept))))
    return (
        kept,
        f"Left out {counted(len(gone), 'blank image')}:\n{first_lines(gone)}" if gone else "",
    )
