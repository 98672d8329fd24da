"""Which images are learned from: pure functions of (items, shots, seed)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from ogkd.datasets.manifest import Item, Manifest, by_bag
from ogkd.errors import ConfigError
from ogkd.images import ImageRef

Sampling = Literal["released", "nested"]
MAX_SEED = 2**32 - 1  # what every generator takes
_VAL_SHOTS = 4  # the released code draws min(shots, 4) images per class to validate on


def check_seed(seed: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(
            f"seed must be a whole number from 0 to {MAX_SEED}, but is {seed}.", argument="seed"
        )


def few_shot(
    items: Sequence[Item], shots: int | None, seed: int, *, sampling: Sampling = "released"
) -> list[Item]:
    """`shots` images of each class; a class with fewer gives all it has. None keeps every image.

    Where images are in bags, `shots` bags.

    `released` draws what the released code draws (fidelity.md, 31): Python's generator, classes in
    the order of first appearance, so it depends on the order of the items and the sets of different
    shots are unrelated. `nested` depends on the paths alone, not on their order, and the images
    of K shots are among those of any larger number.
    """
    return support_and_val(items, (), shots, seed, sampling=sampling)[0]


def support_and_val(
    train: Sequence[Item],
    val: Sequence[Item],
    shots: int | None,
    seed: int,
    *,
    sampling: Sampling = "released",
) -> tuple[list[Item], list[Item]]:
    """`shots` images per class to learn from and at most 4 per class to validate on.

    The released draw of `val` continues with the generator where that of `train` stopped.
    """
    if sampling not in get_args(Sampling):
        known = ", ".join(get_args(Sampling))
        raise ConfigError(f"sampling must be one of {known}, but is '{sampling}'.")
    if shots is None:
        return list(train), list(val)
    if shots < 1:
        raise ConfigError(
            f"shots must be at least 1, but is {shots}. Leave it out to learn from all images; "
            "a zero-shot method needs none."
        )
    few = min(shots, _VAL_SHOTS)
    if train and train[0].findings is not None:
        return _of_findings(train, shots, seed), _of_findings(val, few, seed)
    if any(item.bag is not None for item in (*train, *val)):
        return _whole_bags(train, val, shots, seed, sampling)
    if sampling == "nested":
        return _nested(train, shots, seed), _nested(val, few, seed)
    rng = random.Random(seed)
    return _released(train, shots, rng), _released(val, few, rng)


def _whole_bags(
    train: Sequence[Item], val: Sequence[Item], shots: int, seed: int, sampling: Sampling
) -> tuple[list[Item], list[Item]]:
    """Draw bags as if each were its first picture; all pictures of those drawn."""
    ours, theirs = (
        {replace(mine[0], bag=None): mine for mine in by_bag(items).values()}
        for items in (train, val)
    )
    drawn, held = support_and_val(list(ours), list(theirs), shots, seed, sampling=sampling)
    support = [item for first in drawn for item in ours[first]]
    return support, [item for first in held for item in theirs[first]]


def _released(items: Sequence[Item], shots: int, rng: random.Random) -> list[Item]:
    drawn: list[Item] = []
    for mine in _by_label(items).values():
        # A class with exactly `shots` images is shuffled too, as released: it moves the generator.
        drawn += rng.sample(mine, shots) if len(mine) >= shots else mine
    return drawn


def _nested(items: Sequence[Item], shots: int, seed: int) -> list[Item]:
    drawn: list[Item] = []
    for label, mine in sorted(_by_label(items).items()):
        mine.sort(key=lambda item: item.image.as_posix())
        random.Random(f"nested {seed} {label}").shuffle(mine)
        drawn += mine[:shots]
    return drawn


def _of_findings(items: Sequence[Item], shots: int, seed: int) -> list[Item]:
    """Images until each finding has `shots` with it and as many without, the rarest first.

    An image is drawn once and tells about all of its findings, so that some get more. It depends
    on the paths alone, not on their order; the images of K shots are among those of more.
    """
    line = sorted(items, key=lambda item: item.image.as_posix())
    random.Random(f"findings {seed}").shuffle(line)
    by_mark: dict[int, list[Item]] = {}
    for item in line:
        for mark in item.marks:
            by_mark.setdefault(mark, []).append(item)
    drawn: dict[ImageRef, Item] = {}
    for mine in sorted(by_mark.values(), key=len):
        drawn |= {item.image: item for item in mine[:shots]}
    return list(drawn.values())


def _by_label(items: Sequence[Item]) -> dict[int, list[Item]]:
    by_label: dict[int, list[Item]] = {}
    for item in items:
        by_label.setdefault(item.label, []).append(item)
    return by_label


def shortfalls(
    class_names: Sequence[str], drawn: Sequence[Item], shots: int | None
) -> dict[str, int]:
    """The classes or findings with fewer images than `shots`, and how many they have."""
    counts = Counter(label for mine in by_bag(drawn).values() for label in mine[0].present)
    return {
        name: counts[label]
        for label, name in enumerate(class_names)
        if shots is not None and 0 < counts[label] < shots
    }


def base_and_novel(class_names: Sequence[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The labels of the base classes (the first half, rounded up) and of the novel ones.

    >>> base_and_novel(["cyst", "stone", "tumor", "normal", "other"])
    ((0, 1, 2), (3, 4))
    """
    if len(class_names) < 2:
        raise ConfigError(
            f"Base and novel classes need at least 2 classes, but there are {len(class_names)}."
        )
    base = (len(class_names) + 1) // 2
    return tuple(range(base)), tuple(range(base, len(class_names)))


def keep_classes(manifest: Manifest, labels: Sequence[int]) -> Manifest:
    """The dataset with these classes or findings only, numbered from 0 in their old order.

    The released code draws its shots from all classes first and keeps the base classes then.
    """
    kept = sorted(set(labels))
    count = len(manifest.class_names)
    if not kept or len(kept) < len(labels) or kept[0] < 0 or kept[-1] >= count:
        raise ConfigError(
            f"Classes to keep must be distinct labels from 0 to {count - 1}, not {list(labels)}."
        )
    new = {label: number for number, label in enumerate(kept)}
    items = tuple(
        replace(
            item, label=new[item.label], shows=new.get(-1 if item.shows is None else item.shows)
        )
        if item.findings is None
        else replace(item, findings=tuple(item.findings[f] for f in kept))
        for item in manifest.items
        if item.label in new or item.findings is not None
    )
    return Manifest(items, tuple(manifest.class_names[label] for label in kept))


def flip_labels(
    items: Sequence[Item], flips: int, seed: int, *, allowed: Sequence[int]
) -> list[Item]:
    """Give `flips` images of each class the label of another `allowed` class, at random.

    The paper's label noise (the released code has none): all classes are allowed in few-shot
    evaluation, the base classes in base-to-novel. A class with fewer images has all of them
    flipped. The order of the items is kept and does not matter; the flips of k are among those
    of k + 1.
    """
    counts = Counter(item.label for item in items)
    most = max(counts.values(), default=0)
    if not 0 <= flips <= most:
        raise ConfigError(f"flips must be 0 to {most} (the images per class), but is {flips}.")
    if flips == 0:
        return list(items)
    labels = sorted(set(allowed))
    if len(labels) < 2 or not counts.keys() <= set(labels):
        raise ConfigError(
            f"Labels can be flipped among {labels}, but the images have {sorted(counts)}. Allow at "
            "least two classes, and every class that has images."
        )
    new: dict[int, int] = {}
    for label in counts:
        rng = random.Random(f"flip {seed} {label}")
        # Places, not items: the same image may be there twice.
        mine = [place for place, item in enumerate(items) if item.label == label]
        mine.sort(key=lambda place: items[place].image.as_posix())
        rng.shuffle(mine)
        others = [other for other in labels if other != label]
        new.update({place: rng.choice(others) for place in mine[:flips]})
    return [replace(item, label=new.get(place, item.label)) for place, item in enumerate(items)]
