"""Fitting on bags: pictures are labelled, any method learns from them, held-out bags are pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ogkd.core.pooling import Pooling, fit_pooling
from ogkd.datasets.bags import BagRule
from ogkd.datasets.manifest import Item, by_bag
from ogkd.methods import Head, Method, Support, TextSide, TrainingFolder, find_carriers, folds
from ogkd.model.card import BagCard

_FOLDS = 4  # held-out bags that the pooling is chosen on
_SLOW_FOLDS = 2  # where a fit takes minutes
_MOST = 8  # pictures of a bag that a trained context learns from, and that a model folder keeps


@dataclass(frozen=True)
class BagSupport:
    """Pictures of bags to learn from."""

    support: Support  # labels are those of bags
    rows: Tensor  # [N, w] of whole pictures
    labels: Tensor  # [B] of bags
    shows: Tensor | None  # [N] of pictures; None: only bags are labelled

    @property
    def bag(self) -> Tensor:
        assert self.support.bag is not None
        return self.support.bag

    @classmethod
    def of(cls, support: Support, rows: Tensor, items: Sequence[Item]) -> BagSupport:
        """Add to a support what its items say about bags."""
        number = {name: place for place, name in enumerate(by_bag(items))}
        bag = torch.tensor([number[str(item.bag)] for item in items])
        labels = torch.tensor([mine[0].label for mine in by_bag(items).values()])
        own = [item.shows for item in items if item.shows is not None]
        shows = torch.tensor(own) if len(own) == len(items) else None
        return cls(replace(support, bag=bag), rows, labels, shows)

    def some(self, kept: Tensor) -> BagSupport:
        """Some of the bags, by a mask [B], numbered from 0 again."""
        numbers = kept.long().cumsum(0) - 1
        mine = kept[self.bag].nonzero().squeeze(1)
        shows = None if self.shows is None else self.shows[mine]
        support = replace(self.support.some(mine), bag=numbers[self.bag[mine]])
        return BagSupport(support, self.rows[mine], self.labels[kept], shows)


def learn(
    method: Method,
    given: BagSupport,
    text: TextSide,
    *,
    seed: int,
    folder: TrainingFolder | None = None,
) -> tuple[Head, Pooling]:
    """Fit a head for pictures and the pooling that makes bags of them.

    The pooling is chosen on bags that were held out, each by a head that has not seen it.
    """
    head = fit_head(method, given, text, seed, folder)
    z = held_out(method, given, text, seed=seed)
    if z is None:
        return head, Pooling(normal=text.normal)
    return head, fit_pooling(z, given.bag, given.labels, text.normal)


def held_out(method: Method, given: BagSupport, text: TextSide, *, seed: int) -> Tensor | None:
    """Logits [N, C] of pictures by heads that have not seen their bags; None with too few bags."""
    if not method.needs_images:
        return fit_head(method, given, text, seed).of_rows(given.rows).double()
    fold = folds(given.labels, _SLOW_FOLDS if method.needs_training else _FOLDS)
    if fold is None:
        return None
    z = torch.zeros(len(given.bag), len(text.class_names), dtype=torch.float64)
    for number in fold.unique().tolist():
        part = fit_head(method, given.some(fold != number), text, seed)
        out = (fold == number)[given.bag]
        z[out] = part.of_rows(given.rows[out].float()).double()
    return z


def bag_card(rule: BagRule, pictures: int) -> BagCard:
    """What a model folder says about bags, before their pooling is known."""
    slices = None if rule.slices is None else str(rule.slices)
    return BagCard(by=rule.by, slices=slices, pictures=pictures)


def with_pooling(card: BagCard | None, pooling: Pooling) -> BagCard:
    """The same with the pooling that was learned."""
    found = {name: getattr(pooling, name) for name in ("heat", "usual", "bias")}
    found["tau"] = None if math.isinf(pooling.tau) else pooling.tau
    return (card or BagCard()).model_copy(update=found)


def few_of_each(items: Sequence[Item]) -> list[Item]:
    """At most 8 pictures of each bag, evenly spaced; items without a bag as they are."""
    return [mine[place] for mine in by_bag(items).values() for place in _evenly(len(mine))]


def fit_head(
    method: Method,
    given: BagSupport,
    text: TextSide,
    seed: int,
    folder: TrainingFolder | None = None,
) -> Head:
    """Fit a head for pictures.

    Where only bags are labelled, on the pictures that seem to carry the class; a context, which
    is trained for long, on some of all pictures, with the labels of their bags.
    """
    if not method.needs_images:
        return method.fit([], text, seeds=[seed], folder=folder)[0]
    shows = given.shows
    if shows is None and method.needs_training:
        shows = given.labels[given.bag]
    elif shows is None:
        shows = find_carriers(given.rows, given.bag, given.labels, text)
    chosen = (shows >= 0).nonzero().squeeze(1)
    if method.needs_training:
        chosen = _few(chosen, given.bag, shows)
    support = replace(given.support.some(chosen), labels=shows[chosen])
    return method.fit([support], text, seeds=[seed], folder=folder)[0]


def _few(chosen: Tensor, bag: Tensor, shows: Tensor) -> Tensor:
    """At most 8 of the pictures of a bag that show the same, evenly spaced."""
    kept = []
    for pair in torch.stack([bag[chosen], shows[chosen]]).unique(dim=1).T:
        mine = chosen[(bag[chosen] == pair[0]) & (shows[chosen] == pair[1])]
        kept.append(mine[_evenly(len(mine))])
    return torch.cat(kept).sort().values


def _evenly(count: int) -> list[int]:
    some = min(count, _MOST)
    return [(2 * k + 1) * count // (2 * some) for k in range(some)]
