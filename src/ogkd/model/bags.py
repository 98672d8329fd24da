"""Decisions about bags: the pictures of a bag are seen one after the other, then it is answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ogkd.core.pooling import Pooling
from ogkd.datasets.bags import BagRule, Named, grouped
from ogkd.datasets.manifest import Manifest
from ogkd.errors import counted
from ogkd.features.encode import EncodedBatch
from ogkd.images import ImageRef, Images, image_refs
from ogkd.model.decide import Decider, Decision, Share, a_file
from ogkd.model.prior import equal, reweighted
from ogkd.model.temperature import softmax

DECIDING = 3  # pictures at most that are named as those that decided
_LITTLE = 0.01  # share in the answer below which a picture has not decided it
Bags = Images | Manifest | Mapping[str, Images]


def named_pictures(images: Bags, rule: BagRule) -> list[Named]:
    """Pictures with the names of their bags, bag by bag; a mapping names the bags itself."""
    if isinstance(images, Mapping):
        return grouped(
            [(ref, name) for name, some in images.items() for ref in image_refs(some)], rule
        )
    if isinstance(images, Manifest):
        return grouped([(item.image, item.bag) for item in images.items], rule)
    return grouped(list(zip(image_refs(images), repeat(None))), rule)


@dataclass
class OpenBag:
    """A bag of which not all pictures may have been seen yet."""

    name: str
    images: list[ImageRef] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)  # [C] of each
    strange: list[bool] = field(default_factory=list)
    real: list[bool] = field(default_factory=list)
    errors: list[tuple[ImageRef, str]] = field(default_factory=list)

    def add(
        self,
        image: ImageRef,
        z: NDArray[np.float32],
        strange: bool | None = None,
        real: bool | None = None,
    ) -> None:
        """One more picture, with what is known about it."""
        self.images.append(image)
        self.logits.append(z)
        self.strange += [] if strange is None else [strange]
        self.real += [] if real is None else [real]

    @property
    def z(self) -> Tensor:
        """Logits of the pictures [N, C]."""
        return torch.from_numpy(np.array(self.logits))

    def pooled(self, pooling: Pooling) -> NDArray[np.float64]:
        """Logits of the bag [1, C]."""
        found: NDArray[np.float64] = pooling.logits(
            self.z, torch.zeros(len(self.logits), dtype=torch.long)
        ).numpy()
        return found

    def weights(self, pooling: Pooling, label: int) -> NDArray[np.float64]:
        """The share of each picture in the answer `label`: [N]."""
        found: NDArray[np.float64] = pooling.weights(self.z, label).numpy()
        return found


def decide_bags(
    decider: Decider,
    batches: Iterable[EncodedBatch],
    names: Iterable[str],
    *,
    pictures: bool = False,
) -> Iterator[Decision]:
    """Decide for bags; `names` has one for each picture, those of a bag next to each other.

    With `pictures`, the pictures of a bag follow it. Memory grows with the pictures of one bag,
    by their logits alone.
    """
    rest, bag = iter(names), OpenBag("")
    for batch in batches:
        rows: Iterator[tuple[NDArray[np.float32], bool | None, bool | None]] = iter(())
        if batch.features is not None:
            features = batch.features.rows.detach().cpu().float().numpy()
            unknown = [None] * len(features)
            odd = [unknown if mask is None else mask.tolist() for mask in decider.odd(features)]
            rows = zip(decider.classifier.logits(features), *odd, strict=True)
        for place, image in enumerate(batch.images):
            name = next(rest)
            if bag.name != name:
                yield from _closed(decider, bag, pictures)
                bag = OpenBag(name)
            if place in batch.errors:
                bag.errors.append((image, batch.errors[place]))
            else:
                bag.add(image, *next(rows))
    yield from _closed(decider, bag, pictures)


def _closed(decider: Decider, bag: OpenBag, pictures: bool) -> Iterator[Decision]:
    """The answer for a bag whose pictures have all been seen, and perhaps for those."""
    unread = [Decision(a_file(image), error=error, bag=bag.name) for image, error in bag.errors]
    if bag.images:
        answer, weights = _answer(decider, bag)
        lost = (f"{counted(len(unread), 'picture')} could not be read.",) if unread else ()
        yield replace(answer, reasons=(*answer.reasons, *lost))
        if pictures:
            odd = [np.array(known) if known else None for known in (bag.strange, bag.real)]
            found = decider.answers(softmax(bag.z.numpy()), None, *odd)
            for one, image, weight in zip(found, bag.images, weights, strict=True):
                own = replace(one, image=a_file(image), bag=bag.name, weight=float(weight))
                yield replace(own, abstain=None, reasons=())  # promised of bags alone
    elif unread:
        error = unread[0].error
        if len(unread) > 1:
            error = f"None of its {len(unread)} pictures can be read. The first: {error}"
        yield Decision(bag=bag.name, pictures=0, error=error)
    if pictures:
        yield from unread


def _answer(decider: Decider, bag: OpenBag) -> tuple[Decision, NDArray[np.float64]]:
    model = decider.classifier
    found = model.class_calibration
    p = softmax(bag.pooled(model.pooling), 1.0 if found is None else found.temperature)
    if decider.prior is not None:
        p = reweighted(p, decider.prior, equal(p.shape[1]))
    [said] = decider.answers(p, decider.sets(p), _most(bag.strange), _most(bag.real))
    weights = bag.weights(model.pooling, said.label or 0)
    deciding = tuple(Share(a_file(bag.images[n]), share) for n, share in deciding_of(weights))
    answer = replace(said, bag=bag.name, pictures=len(bag.images), decided_by=deciding)
    return replace(answer, image=deciding[0].image), weights


def deciding_of(weights: NDArray[np.float64]) -> list[tuple[int, float]]:
    """The numbers and weights of the few pictures that decided, the first most."""
    best = np.argsort(-weights, kind="stable")[:DECIDING].tolist()
    return [(n, float(weights[n])) for n in best if n == best[0] or weights[n] >= _LITTLE]


def _most(known: Sequence[bool]) -> NDArray[np.bool_] | None:
    """Whether most pictures of a bag are so, as an array of one; None if that is not known."""
    return np.array([sum(known) > len(known) / 2]) if known else None
