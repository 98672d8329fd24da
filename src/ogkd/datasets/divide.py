"""Dividing a dataset into train, val and test: stratified by class, whole group by group."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ogkd.datasets.groups import components, separate_groups, weakness
from ogkd.datasets.manifest import Item, Manifest, split_name
from ogkd.errors import ConfigError, DataError


def split_items(
    manifest: Manifest,
    fractions: Mapping[str, float],
    seed: int,
    *,
    together: Iterable[Sequence[int]] = (),
) -> Manifest:
    """Divide a dataset that has no splits, such as by {"train": 0.7, "val": 0.1, "test": 0.2}.

    Groups stay whole where they are known, and so do images whose numbers `together` lists in one
    row, such as copies. Every class is divided in the same proportions as far as that allows
    (without groups: to within one image); where it has few images, train gets the first and test
    the second. Neither the order of the items nor the folder they are in matters.
    """
    if manifest.has_splits:
        raise DataError("This dataset already has splits. Use them, or clear them first.")
    items = _assign(manifest.items, fractions, seed, together)
    return Manifest(tuple(items), manifest.class_names)


def complete_splits(
    manifest: Manifest,
    fractions: Mapping[str, float],
    seed: int,
    *,
    together: Sequence[Sequence[int]] = (),
) -> tuple[Manifest, tuple[Item, ...]]:
    """Give a dataset the splits that it lacks; also the items that had to be left out for it.

    Without splits: see `split_items`. Splits that exist stay, except for what would leak: see
    `separate_groups`, where a row of `together` counts as a group too. Splits that are missing
    are taken from train.
    """
    if not manifest.has_splits:
        return split_items(manifest, fractions, seed, together=together), ()
    items = manifest.items
    leaks = set(separate_groups(manifest)[1])
    for row in together:
        strictest = min(weakness(items[number]) for number in row)
        leaks |= {items[number] for number in row if weakness(items[number]) > strictest}
    present = {item.split for item in items if item not in leaks}
    wanted = {name: share for name, share in _shares(fractions).items() if name not in present}
    parts: dict[int, Item] = {}
    if wanted and "train" in present:
        share = _shares(fractions).get("train", max(fractions.values()))
        total = share + sum(wanted.values())
        wanted = {part: one / total for part, one in {"train": share, **wanted}.items()}
        train = [n for n, item in enumerate(items) if item.split == "train" and item not in leaks]
        place = {number: row for row, number in enumerate(train)}
        rows = [[place[number] for number in row if number in place] for row in together]
        found = _assign([items[number] for number in train], wanted, seed, filter(None, rows))
        parts = dict(zip(train, found, strict=True))
    kept = (parts.get(n, item) for n, item in enumerate(items) if item not in leaks)
    dropped = tuple(item for item in items if item in leaks)
    return Manifest(tuple(kept), manifest.class_names), dropped


class _Parts:
    """Units of images that must stay together, and the part that each is put into."""

    def __init__(self, units: Mapping[str, Counter[int]], shares: Mapping[str, float]) -> None:
        self.units = units  # images of each class in a unit
        self.total: Counter[int] = sum(units.values(), Counter())
        self.part: dict[str, str] = {}
        self.missing = {  # images of each class that a part still wants
            part: {label: share * self.total[label] for label in sorted(self.total)}
            for part, share in shares.items()
        }

    def put(self, unit: str, part: str) -> None:
        for label, number in self.units[unit].items():
            if unit in self.part:
                self.missing[self.part[unit]][label] += number
            self.missing[part][label] -= number
        self.part[unit] = part

    def need(self, unit: str, part: str) -> tuple[float, float]:
        """How much closer a unit brings a part to the counts it wants, classes weighted alike.

        If that is equal, what the part lacks in total.
        """
        wants, counts = self.missing[part], self.units[unit].items()
        gain = sum(number * wants[label] / self.total[label] for label, number in counts)
        return gain, sum(wants.values())

    def sources(self, part: str, label: int) -> int:
        """How many units of a part have images of a class."""
        return sum(label in self.units[unit] for unit, mine in self.part.items() if mine == part)

    def cover(self, part: str, label: int) -> None:
        """Move a unit with images of a class into a part that has none, if another can spare it."""
        able = [unit for unit, counts in self.units.items() if label in counts]
        if self.sources(part, label):
            return
        if part != "train":
            able = [unit for unit in able if self._spare(unit, label)]
        if able:
            self.put(min(able, key=lambda one: (self.missing[self.part[one]][label], one)), part)

    def _spare(self, unit: str, label: int) -> bool:
        """Whether the unit's part has too much of a class, and keeps what it needs without it."""
        mine = self.part[unit]
        if self.missing[mine][label] >= 0 or list(self.part.values()).count(mine) < 2:
            return False
        return mine != "train" or all(self.sources(mine, one) > 1 for one in self.units[unit])


def _assign(
    items: Sequence[Item],
    fractions: Mapping[str, float],
    seed: int,
    together: Iterable[Sequence[int]] = (),
) -> list[Item]:
    shares = _shares(fractions)
    names = _unit_names(items, together)
    units: dict[str, Counter[int]] = defaultdict(Counter)
    for name, marks in sorted(zip(names, (item.marks for item in items), strict=True)):
        units[name].update(marks)
    order = list(units)
    random.Random(f"split {seed}").shuffle(order)
    order.sort(key=lambda unit: -units[unit].total())  # the large ones while there is room for them
    parts = _Parts(units, shares)
    for unit in order:
        parts.put(unit, max(shares, key=lambda part: parts.need(unit, part)))
    for part in [name for name in ("train", "test") if name in shares]:
        for label in sorted(parts.total):
            parts.cover(part, label)
    if empty := [part for part in shares if part not in parts.part.values()]:
        raise DataError(
            f"{len(items)} images in {len(units)} groups or single images cannot fill the split(s) "
            f"{', '.join(empty)}. Ask for larger fractions, or add images of other patients."
        )
    return [replace(item, split=parts.part[name]) for item, name in zip(items, names, strict=True)]


def _unit_names(items: Sequence[Item], together: Iterable[Sequence[int]]) -> list[str]:
    """What each item must stay with: a name that these items share, and no other."""
    links: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        for kind, name in (("group", item.group), ("bag", item.bag)):
            if name is not None:
                links[kind, name].append(number)
    found = components(len(items), [*links.values(), *together])
    first: dict[int, str] = {}
    addresses = [item.image.as_posix() for item in items]
    for address, unit in sorted(zip(addresses, found, strict=True)):
        first.setdefault(unit, address)
    return [first[unit] for unit in found]


def _shares(fractions: Mapping[str, float]) -> dict[str, float]:
    shares = {split_name(name): share for name, share in fractions.items()}
    right = len(shares) >= 2 and len(shares) == len(fractions) and "" not in shares
    # Written so that a NaN fails.
    if not right or not all(share > 0 for share in shares.values()):
        raise ConfigError(
            f"Fractions must give two or more splits a share above 0, but got {fractions}."
        )
    if not abs(sum(shares.values()) - 1) < 1e-6:
        raise ConfigError(
            f"Fractions must add up to 1, but {fractions} add up to {sum(shares.values()):g}."
        )
    return shares
