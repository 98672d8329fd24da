"""Which cases are learned from: pure functions of (cases, shots, seed)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ogkd.data.case import Case, Dataset
from ogkd.data.task import Task
from ogkd.errors import ConfigError

MAX_SEED = 2**32 - 1  # what every generator takes
_VAL_SHOTS = 4  # the released code draws min(shots, 4) images per class to validate on
_PRIORITY = {"train": 2, "val": 1}  # which split gives up cases of a shared group: the highest


def check_seed(seed: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(
            f"seed must be a whole number from 0 to {MAX_SEED}, but is {seed}.", argument="seed"
        )


def support_and_val(
    task: Task,
    train: Sequence[Case],
    val: Sequence[Case],
    shots: int | None,
    seed: int,
) -> tuple[list[Case], list[Case]]:
    """`shots` cases of each class to learn from, and at most 4 of each to validate on.

    A class with fewer gives all it has; None keeps every case. It draws what the released code
    draws (fidelity.md, 31): Python's generator, classes in the order of first appearance, so it
    depends on the order of the cases and the sets of different shots are unrelated; the draw of
    `val` continues with the generator where that of `train` stopped.
    """
    if shots is None:
        return list(train), list(val)
    if shots < 1:
        raise ConfigError(
            f"shots must be at least 1, but is {shots}. Leave it out to learn from all images; "
            "a zero-shot method needs none.",
            argument="shots",
        )
    few = min(shots, _VAL_SHOTS)
    rng = random.Random(seed)
    return task.draw(train, shots, seed, rng), task.draw(val, few, seed, rng)


def shortfalls(task: Task, drawn: Sequence[Case], shots: int | None) -> dict[str, int]:
    """The classes or findings with fewer cases than `shots`, and how many they have."""
    counts = task.support_counts([case.target for case in drawn])
    pairs = zip(task.names, counts, strict=True)
    return {name: count for name, count in pairs if shots is not None and 0 < count < shots}


def base_and_novel(class_names: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The labels of the base classes (the first half, rounded up) and of the novel ones.

    >>> base_and_novel(["cyst", "stone", "tumor", "normal", "other"])
    ((0, 1, 2), (3, 4))
    """
    base = (len(class_names) + 1) // 2
    return tuple(range(base)), tuple(range(base, len(class_names)))


def flip_labels(
    cases: Sequence[Case], flips: int, seed: int, *, allowed: Sequence[int]
) -> list[Case]:
    """Give `flips` cases of each class the label of another `allowed` class, at random.

    The paper's label noise (the released code has none): all classes are allowed in few-shot
    evaluation, the base classes in base-to-novel. A class with fewer cases has all of them
    flipped. The order of the cases is kept and does not matter; the flips of k are among those
    of k + 1.
    """
    new: dict[int, int] = {}
    for label in {case.target: None for case in cases}:
        rng = random.Random(f"flip {seed} {label}")
        # Positions, not cases: the same image may be there twice.
        members = [position for position, case in enumerate(cases) if case.target == label]
        members.sort(key=lambda position: cases[position].image.as_posix())
        rng.shuffle(members)
        others = sorted(set(allowed) - {label})
        new.update({position: rng.choice(others) for position in members[:flips]})
    return [replace(case, target=new[n]) if n in new else case for n, case in enumerate(cases)]


# Patients and lesions: a model must not learn from and be evaluated on cases of one group


def yields(case: Case) -> int:
    """How readily a split gives up cases of a group that it shares with others; 0: never."""
    return _PRIORITY.get(case.split, 0)


def separate_groups(dataset: Dataset) -> tuple[Dataset, tuple[Case, ...]]:
    """The dataset without the cases that would make its splits share a group, and those cases.

    Validation loses the cases of groups in test, training those of groups in either. Test cases,
    and cases without a known group, are never removed.
    """
    strictest: dict[str | None, int] = {}
    for case in dataset.cases:
        strictest[case.group] = min(strictest.get(case.group, yields(case)), yields(case))
    leaks = [
        case.group is not None and yields(case) > strictest[case.group] for case in dataset.cases
    ]
    kept = [case for case, leak in zip(dataset.cases, leaks, strict=True) if not leak]
    dropped = [case for case, leak in zip(dataset.cases, leaks, strict=True) if leak]
    return dataset.with_cases(kept), tuple(dropped)


def contradictory(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases that share the content of an image under different labels, content by content."""
    same: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        for image in case.images:
            same[image.key].append(case)
    return [group for group in same.values() if len({case.target for case in group}) > 1]
