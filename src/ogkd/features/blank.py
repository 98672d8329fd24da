"""Blank pictures of bags: there is nothing in them, so they are left out, as blank slices are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ogkd.datasets.manifest import Item, by_bag, first_lines
from ogkd.errors import counted
from ogkd.features.store import FeatureStore
from ogkd.features.unreadable import decode_ahead
from ogkd.images import ImageRef, look_at
from ogkd.images.decode import BlankImage


def blank_pictures(store: FeatureStore, items: Sequence[Item]) -> tuple[set[ImageRef], str]:
    """Blank pictures of bags that have others, and a note that names them; "" if there are none.

    Parts of volumes and slides were chosen among those that are not blank, and what has features
    is not blank either: only new files are looked at.
    """

    def look(image: ImageRef) -> NDArray[np.uint8] | None:
        return None if store.has(image) else look_at(image, blank=False)

    images = dict.fromkeys(item.image for item in items if not item.image.part)
    found = itertools.chain.from_iterable(decode_ahead(look, images))
    blank = {image for image, error in found if isinstance(error, BlankImage)}
    bags = ({item.image for item in mine} for mine in by_bag(items).values())
    blank = blank.difference(*(mine for mine in bags if mine <= blank))
    names = first_lines(sorted(map(str, blank)))
    return blank, f"Left out {counted(len(blank), 'blank picture')}:\n{names}" if blank else ""
