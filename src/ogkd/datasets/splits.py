"""Which images are learned from: pure functions of (items, shots, seed)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ogkd.datasets.manifest import Item
from ogkd.errors import ConfigError

__all__ = ["few_shot"]


def few_shot(items: Sequence[Item], shots: int | None, seed: int) -> list[Item]:
    """`shots` images of each class, drawn as the released code draws them (AUDIT #31).

    Classes are taken in the order of first appearance; a class with fewer images gives all
    it has. `shots` None keeps every image.
    """
    if shots is None:
        return list(items)
    if shots < 1:
        raise ConfigError(f"shots must be at least 1, but is {shots}.")
    by_label: dict[int, list[Item]] = {}
    for item in items:
        by_label.setdefault(item.label, []).append(item)
    rng = random.Random(seed)
    drawn: list[Item] = []
    for group in by_label.values():
        # A class with exactly `shots` images is shuffled too, as released: it moves the generator.
        drawn += rng.sample(group, shots) if len(group) >= shots else group
    return drawn
