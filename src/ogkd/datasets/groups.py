"""Patients and lesions: images of one group must not be both learned from and judged on.

Also the split of a dataset that has none, stratified by class and whole group by group.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ogkd.datasets.manifest import Item, Manifest, split_name
from ogkd.errors import ConfigError, DataError

# Whose images go where a group is in several splits. All others are judged on, and stay whole.
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


def separate_groups(manifest: Manifest) -> tuple[Manifest, tuple[Item, ...]]:
    """The dataset without the images that would make its splits share a group, and those images.

    Validation loses the images of groups in test, training those of groups in either. What is
    judged on stays whole, and so do images without a known group.
    """
    strictest: dict[str, int] = {}
    for item in manifest.items:
        if item.group is not None:
            weakness = _WEAKNESS.get(item.split, 0)
            strictest[item.group] = min(strictest.get(item.group, weakness), weakness)
    kept: list[Item] = []
    dropped: list[Item] = []
    for item in manifest.items:
        known = item.group is not None
        loses = known and _WEAKNESS.get(item.split, 0) > strictest[str(item.group)]
        (dropped if loses else kept).append(item)
    return Manifest(tuple(kept), manifest.class_names), tuple(dropped)


def split_by_group(items: Sequence[Item], fractions: Mapping[str, float], seed: int) -> list[Item]:
    """Give every item a split so that no group is in two; see `split_items`."""
    if not any(item.group is not None for item in items):
        raise DataError(
            "No image has a group. Add a column patient (or group, lesion) to the table, or "
            "split image by image with split_items."
        )
    return _assign(items, fractions, seed)


def split_items(manifest: Manifest, fractions: Mapping[str, float], seed: int) -> Manifest:
    """Divide a dataset that has no splits, such as by {"train": 0.7, "val": 0.1, "test": 0.2}.

    Groups stay whole where they are known; every class is divided alike as well as they allow
    (without groups: to within one image). Neither the order of the items nor the folder they
    are in matters.
    """
    if manifest.has_splits:
        raise DataError("This dataset has splits already. Use them, or clear them first.")
    return Manifest(tuple(_assign(manifest.items, fractions, seed)), manifest.class_names)


def _assign(items: Sequence[Item], fractions: Mapping[str, float], seed: int) -> list[Item]:
    shares = _shares(fractions)
    units: dict[tuple[bool, str], list[int]] = {}  # labels of what must stay together
    for item in items:
        units.setdefault(_unit(item), []).append(item.label)
    order = sorted(units)
    random.Random(f"split {seed}").shuffle(order)
    order.sort(key=lambda unit: -len(units[unit]))  # the large ones while there is room for them
    total = Counter(sorted(item.label for item in items))
    missing = {  # images of each class that a split still wants
        split: {label: share * count for label, count in total.items()}
        for split, share in shares.items()
    }
    chosen: dict[tuple[bool, str], str] = {}
    for unit in order:
        counts = Counter(sorted(units[unit]))

        def need(split: str, counts: Mapping[int, int] = counts) -> tuple[float, float]:
            # How much closer it comes to its wanted counts, each class weighted alike;
            # if that is equal, what it lacks in total.
            wants = missing[split]
            gain = sum(number * wants[label] / total[label] for label, number in counts.items())
            return gain, sum(wants.values())

        chosen[unit] = max(shares, key=need)
        for label, number in counts.items():
            missing[chosen[unit]][label] -= number
    empty = [split for split in shares if split not in chosen.values()]
    if empty:
        raise DataError(
            f"{len(items)} images in {len(units)} groups or single images cannot fill the split(s) "
            f"{', '.join(empty)}. Ask for larger fractions, or add images of other patients."
        )
    return [replace(item, split=chosen[_unit(item)]) for item in items]


def _unit(item: Item) -> tuple[bool, str]:
    """An item's group; an item without one is a group by itself."""
    return (False, item.image.as_posix()) if item.group is None else (True, item.group)


def _shares(fractions: Mapping[str, float]) -> dict[str, float]:
    shares = {split_name(name): share for name, share in fractions.items()}
    right = len(shares) >= 2 and len(shares) == len(fractions) and "" not in shares
    # Written so that a NaN fails.
    if not right or not all(share > 0 for share in shares.values()):
        raise ConfigError(
            f"Fractions are two or more splits with a share above 0 each, but got {fractions}."
        )
    if not abs(sum(shares.values()) - 1) < 1e-6:
        raise ConfigError(
            f"Fractions must add up to 1, but {fractions} add up to {sum(shares.values()):g}."
        )
    return shares
