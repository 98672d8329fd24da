"""Patients and lesions: a model must not learn from and be evaluated on images of one group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from ogkd.datasets.manifest import Item, Manifest

_WEAKNESS = {"train": 2, "val": 1}


def shared_groups(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Each group with images in more than one split, and those splits."""
    splits: dict[str, dict[str, None]] = {}
    for item in manifest.items:
        if item.group is not None:
            splits.setdefault(item.group, {})[item.split] = None
    return {group: tuple(found) for group, found in splits.items() if len(found) > 1}


def weakness(item: Item) -> int:
    """How readily a split gives up images of a group that it shares with others; 0: never."""
    return _WEAKNESS.get(item.split, 0)


def separate_groups(manifest: Manifest) -> tuple[Manifest, tuple[Item, ...]]:
    """The dataset without the images that would make its splits share a group, and those images.

    Validation loses the images of groups in test, training those of groups in either. Test
    images, and images without a known group, are never removed.
    """
    strictest: dict[str | None, int] = {}
    for item in manifest.items:
        mine = weakness(item)
        strictest[item.group] = min(strictest.get(item.group, mine), mine)
    kept: list[Item] = []
    dropped: list[Item] = []
    for item in manifest.items:
        leaks = item.group is not None and weakness(item) > strictest[item.group]
        (dropped if leaks else kept).append(item)
    return Manifest(tuple(kept), manifest.class_names), tuple(dropped)


def components(count: int, links: Iterable[Sequence[int]]) -> list[int]:
    """A number for each of `count` nodes, the same for nodes that a chain of links connects."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = [(members[0], other) for members in links for other in members[1:]]
    first, second = np.array(pairs, np.intp).reshape(-1, 2).T
    graph = coo_array((np.ones(len(pairs)), (first, second)), shape=(count, count))
    return list(connected_components(graph, directed=False)[1].tolist())


def contradictory(items: Sequence[Item]) -> list[list[Item]]:
    """Items that are the same file content under different labels, content by content."""
    same: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        same[item.image.key].append(item)
    return [found for found in same.values() if len({item.answer for item in found}) > 1]
