"""A dataset in a terminal and in a notebook: images per class and split, and a few of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from ogkd.errors import OgkdError
from ogkd.images import data_uri, read_image
from ogkd.notebook import Html, panel, pictures, table, text_table

if TYPE_CHECKING:
    from ogkd.datasets.manifest import Manifest

_LINES = 30  # classes listed
_DRAWN = 12  # classes with thumbnails
_EACH = 4  # thumbnails of a class
_SIDE = 96  # pixels of one; the page shows it smaller


def manifest_text(manifest: Manifest) -> str:
    return "\n".join([_title(manifest), *text_table(*_counts(manifest)), *_rest(manifest)])


def manifest_html(manifest: Manifest) -> str:
    """The counts and thumbnails; a file that cannot be read is counted, nothing else."""
    head, rows = _counts(manifest)
    drawn = [
        [*row, _thumbnails(manifest, label) if label < _DRAWN else ""]
        for label, row in enumerate(rows)
    ]
    return panel(_title(manifest), table([*head, ""], drawn), *_rest(manifest))


def _title(manifest: Manifest) -> str:
    groups = len({item.group for item in manifest.items if item.group is not None})
    patients = f" of {groups} patients or groups" if groups else ""
    what = "with {} findings" if manifest.has_findings else "in {} classes"
    return f"{len(manifest.items)} images{patients} {what.format(len(manifest.class_names))}"


def _rest(manifest: Manifest) -> list[str]:
    more = len(manifest.class_names) - _LINES
    names = "findings" if manifest.has_findings else "classes"
    return [f"... and {more} more {names}"] if more > 0 else []


def _counts(manifest: Manifest) -> tuple[list[str], list[list[object]]]:
    """Headings and one row per class: its name, and its images in each split."""
    splits = list(dict.fromkeys(item.split for item in manifest.items))
    counts = Counter((label, item.split) for item in manifest.items for label in item.present)
    rows = [
        [name, *(counts[label, split] for split in splits)]
        for label, name in enumerate(manifest.class_names[:_LINES])
    ]
    kind = "finding" if manifest.has_findings else "class"
    return [kind, *(split or "images" for split in splits)], rows


def _thumbnails(manifest: Manifest, label: int) -> Html:
    images = [item.image for item in manifest.items if label in item.present]
    chosen = np.linspace(0, len(images) - 1, min(_EACH, len(images))).astype(int)
    thumbnails, lost = [], 0
    for number in chosen:
        try:
            thumbnails.append(data_uri(Image.fromarray(read_image(images[number])), most=_SIDE))
        except OgkdError:
            lost += 1
    return pictures(thumbnails, lost=lost)
