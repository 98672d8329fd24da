"""Dividing a dataset into train, val and test: stratified by class, whole group by group."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ogkd.data.case import Case, Dataset
from ogkd.data.names import split_name
from ogkd.data.splits import separate_groups, yields
from ogkd.data.task import Task
from ogkd.errors import ConfigError, DataError


def complete_splits(
    dataset: Dataset,
    fractions: Mapping[str, float],
    seed: int,
    *,
    together: Sequence[Sequence[int]] = (),
) -> tuple[Dataset, tuple[Case, ...]]:
    """Give a dataset the splits that it lacks; also the cases that had to be left out for it.

    `fractions` are such as {"train": 0.7, "val": 0.1, "test": 0.2}. Groups stay whole where they
    are known, and so do images whose numbers `together` lists in one row, such as copies. Every
    class is divided in the same proportions as far as that allows (without groups: to within one
    image); where it has few images, train gets the first and test the second. Neither the order of
    the cases nor the folder they are in matters. Splits that exist stay, except for what would
    leak: see `separate_groups`, where a row of `together` counts as a group too. Splits that are
    missing are taken from train.
    """
    cases, shares = dataset.cases, _shares(fractions)
    if not dataset.has_splits:
        return dataset.with_cases(_assign(cases, dataset.task, shares, seed, together)), ()
    leaks = _leaks(dataset, together)
    parts = {number: case for number, case in enumerate(cases) if case not in leaks}
    train = [number for number, case in parts.items() if case.split == "train"]
    present = {case.split for case in parts.values()}
    wanted = {name: share for name, share in shares.items() if name not in present}
    if wanted and train:
        share = shares.get("train", max(shares.values()))
        total = share + sum(wanted.values())
        wanted = {part: weight / total for part, weight in {"train": share, **wanted}.items()}
        position = {number: row for row, number in enumerate(train)}
        rows = [[position[n] for n in row if n in position] for row in together]
        divided = _assign([cases[n] for n in train], dataset.task, wanted, seed, filter(None, rows))
        parts |= dict(zip(train, divided, strict=True))
    return dataset.with_cases(parts.values()), tuple(case for case in cases if case in leaks)


def _leaks(dataset: Dataset, together: Iterable[Sequence[int]]) -> set[Case]:
    """Cases to learn from that share a group, or a row of `together`, with a stricter split."""
    cases = dataset.cases
    leaks = set(separate_groups(dataset)[1])
    for row in together:
        strictest = min(yields(cases[number]) for number in row)
        leaks |= {cases[number] for number in row if yields(cases[number]) > strictest}
    return leaks


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
        return sum(label in self.units[unit] for unit, other in self.part.items() if other == part)

    def cover(self, part: str, label: int) -> None:
        """Move a unit with images of a class into a part that has none, if another can spare it."""
        able = [unit for unit, counts in self.units.items() if label in counts]
        if self.sources(part, label):
            return
        if part != "train":
            able = [unit for unit in able if self._spare(unit, label)]
        if able:
            self.put(min(able, key=lambda unit: (self.missing[self.part[unit]][label], unit)), part)

    def _spare(self, unit: str, label: int) -> bool:
        """Whether the unit's part has too much of a class, and keeps what it needs without it."""
        part = self.part[unit]
        if self.missing[part][label] >= 0 or list(self.part.values()).count(part) < 2:
            return False
        return part != "train" or all(self.sources(part, other) > 1 for other in self.units[unit])


def _assign(
    cases: Sequence[Case],
    task: Task,
    shares: Mapping[str, float],
    seed: int,
    together: Iterable[Sequence[int]],
) -> list[Case]:
    names = _unit_names(cases, together)
    units: dict[str, Counter[int]] = defaultdict(Counter)
    for name, strata in sorted(
        zip(names, (task.strata(case.target) for case in cases), strict=True)
    ):
        units[name].update(strata)
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
            f"{len(cases)} images in {len(units)} groups or single images cannot fill the split(s) "
            f"{', '.join(empty)}. Ask for larger fractions, or add images of other patients."
        )
    return [replace(case, split=parts.part[name]) for case, name in zip(cases, names, strict=True)]


def _unit_names(cases: Sequence[Case], together: Iterable[Sequence[int]]) -> list[str]:
    """What each case must stay with: a name that these cases share, and no other.

    Cases of one name are images of one case.
    """
    links: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, case in enumerate(cases):
        links["case", case.name].append(number)
        if case.group is not None:
            links["group", case.group].append(number)
    unit_of = components(len(cases), [*links.values(), *together])
    first: dict[int, str] = {}
    addresses = [case.image.as_posix() for case in cases]
    for address, unit in sorted(zip(addresses, unit_of, strict=True)):
        first.setdefault(unit, address)
    return [first[unit] for unit in unit_of]


def _shares(fractions: Mapping[str, float]) -> dict[str, float]:
    shares = {split_name(name): share for name, share in fractions.items()}
    right = len(shares) >= 2 and len(shares) == len(fractions) and "" not in shares
    # Written so that a NaN fails.
    if not (right and min(shares.values()) > 0 and abs(sum(shares.values()) - 1) < 1e-6):
        raise ConfigError(
            "Fractions must give two or more splits a share above 0 and add up to 1, but are "
            f"{dict(fractions)}."
        )
    return shares


def components(count: int, links: Iterable[Sequence[int]]) -> list[int]:
    """A number for each of `count` nodes, the same for nodes that a chain of links connects."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = [(members[0], other) for members in links for other in members[1:]]
    first, second = np.array(pairs, np.intp).reshape(-1, 2).T
    graph = coo_array((np.ones(len(pairs)), (first, second)), shape=(count, count))
    return list(connected_components(graph, directed=False)[1].tolist())
