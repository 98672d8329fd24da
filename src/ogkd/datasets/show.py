"""A dataset as text: images per class and split."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ogkd.cells import text_table

if TYPE_CHECKING:
    from ogkd.datasets.manifest import Manifest

_LINES = 30  # classes listed


def manifest_text(manifest: Manifest) -> str:
    return "\n".join([_title(manifest), *text_table(*_counts(manifest)), *_rest(manifest)])


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
