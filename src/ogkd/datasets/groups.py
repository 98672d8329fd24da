"""Patients and lesions: images of one group must not be both learned from and judged on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ogkd.datasets.manifest import Item, Manifest

_WEAKNESS = {"train": 2, "val": 1}


@dataclass(frozen=True)
class GroupFacts:
    """What is known about groups; `shared` names the splits of each group that is in several."""

    images: int
    images_with_group: int
    groups: int
    shared: Mapping[str, tuple[str, ...]]


def group_facts(manifest: Manifest) -> GroupFacts:
    """Facts to warn with: no group known, some images without one, groups across splits."""
    known = [item.group for item in manifest.items if item.group is not None]
    return GroupFacts(len(manifest.items), len(known), len(set(known)), shared_groups(manifest))


def shared_groups(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Each group with images in more than one split, and those splits."""
    splits: dict[str, dict[str, None]] = {}
    for item in manifest.items:
        if item.group is not None:
            splits.setdefault(item.group, {})[item.split] = None
    return {group: tuple(found) for group, found in splits.items() if len(found) > 1}


def weakness(item: Item) -> int:
    """Whose images go where a group is in several splits: 0 for what is judged on, and stays."""
    return _WEAKNESS.get(item.split, 0)


def separate_groups(manifest: Manifest) -> tuple[Manifest, tuple[Item, ...]]:
    """The dataset without the images that would make its splits share a group, and those images.

    Validation loses the images of groups in test, training those of groups in either. What is
    judged on stays whole, and so do images without a known group.
    """
    strictest: dict[str, int] = {}
    for item in manifest.items:
        if item.group is not None:
            mine = weakness(item)
            strictest[item.group] = min(strictest.get(item.group, mine), mine)
    kept: list[Item] = []
    dropped: list[Item] = []
    for item in manifest.items:
        known = item.group is not None
        loses = known and weakness(item) > strictest[str(item.group)]
        (dropped if loses else kept).append(item)
    return Manifest(tuple(kept), manifest.class_names), tuple(dropped)


def components(count: int, links: Iterable[Sequence[int]]) -> list[int]:
    """A number for each of `count` nodes, the same for nodes that a chain of links connects."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = [(members[0], other) for members in links for other in members[1:]]
    first, second = np.array(pairs, np.intp).reshape(-1, 2).T
    graph = coo_array((np.ones(len(pairs)), (first, second)), shape=(count, count))
    return list(connected_components(graph, directed=False)[1].tolist())
