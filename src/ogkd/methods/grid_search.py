"""Choosing one or two numbers without looking at test images.

On the validation images if there are any, else by cross-validation on the support: the images
of a class are dealt to folds in turn, all views of an image to the same fold. If no class has
two images, nothing can be held out, and a method falls back on its defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ogkd.methods.feature_method import Rows

_CHUNK = 4_000_000  # numbers of a grid in memory at once
_TIES = 4_000  # ties that are compared; of more, evenly spaced ones


@dataclass(frozen=True)
class Trial:
    """Rows to learn from, and other images to score on."""

    rows: Rows
    features: Tensor  # [M, d]
    labels: Tensor  # [M]


def deal(rows: Rows, most: int) -> Tensor | None:
    """The fold of each row: [R]; -1 for the only image of a class, which is never held out.

    None if no class has two cases. The folds depend only on the order of cases within a class, so
    they are the same whatever the order of classes.
    """
    folds = torch.full_like(rows.labels, -1)
    for label in range(rows.classes):
        of_class = rows.labels == label
        _, position = torch.unique(rows.case[of_class], return_inverse=True)
        if len(position) and int(position.max()) > 0:
            folds[of_class] = position
    largest = int(folds.max()) + 1
    return None if largest == 0 else torch.where(folds < 0, folds, folds % min(most, largest))


def trials(rows: Rows, *, most: int = 8) -> list[Trial]:
    """What a search is scored on: validation images, else at most `most` folds, else nothing."""
    if rows.validation is not None and len(rows.validation[1]):
        features, labels = rows.validation
        unit = torch.nn.functional.normalize(features.float().cpu(), dim=-1)
        return [Trial(rows, unit, labels.cpu())]
    folds = deal(rows, most)
    if folds is None:
        return []
    held = [folds == fold for fold in folds.unique().tolist() if fold >= 0]
    return [Trial(rows.keep(~out), rows.features[out], rows.labels[out]) for out in held]


def choose(
    rows: Rows,
    extra: Callable[[Trial], Tensor],
    weights: Sequence[float] = (1.0,),
    *,
    T: Tensor | None = None,
    scale: float = 1.0,
    most: int = 8,
    first: bool = False,
) -> tuple[int, int] | None:
    """Search on all trials of the rows together; None if there are none.

    `extra` gives [G, M, C] for a trial. Texts T [C, d] add scale * v T' to it. `first`: see
    `search`.
    """
    held_out = trials(rows, most=most)
    if not held_out:
        return None
    parts = torch.cat([extra(trial) for trial in held_out], dim=1)
    v = torch.cat([trial.features for trial in held_out]).to(parts)
    text = torch.zeros_like(parts[0]) if T is None else scale * v @ T.to(parts).mT
    labels = torch.cat([trial.labels for trial in held_out])
    return search(text, parts, weights, labels, first=first)


def search(
    text: Tensor,
    extra: Tensor,
    weights: Sequence[float],
    labels: Tensor,
    *,
    first: bool = False,
) -> tuple[int, int]:
    """Return the indices of the best g and weight in logits = text + weight * extra[g].

    text [M, C], extra [G, M, C], labels [M]. The best has the highest accuracy; among ties, which
    are many on few images, the lowest cross-entropy; then the first is taken. With `first` the
    first of the ties is taken at once, as in released code (fidelity.md, 45).
    """
    W = torch.tensor(weights, dtype=text.dtype)[:, None, None]  # [A, 1, 1]
    step = max(1, _CHUNK // text.numel())
    right = torch.cat([_accuracy(text, part, weights, labels) for part in extra.split(step)])
    ties = (right == right.max()).nonzero()  # [n, 2], the weights of the first g first
    if first:
        group, weight = ties[0].tolist()
        return group, weight
    ties = ties[:: -(-len(ties) // _TIES)]

    def cross_entropy(pairs: Tensor) -> Tensor:
        logits = text + W[pairs[:, 1]] * extra[pairs[:, 0]]  # [n, M, C]
        truth = labels.expand(len(pairs), -1).unsqueeze(-1)
        return -logits.double().log_softmax(dim=-1).gather(-1, truth).mean(dim=(1, 2))

    loss = torch.cat([cross_entropy(part) for part in ties.split(step)])
    group, weight = ties[int(loss.argmin())].tolist()
    return group, weight


def _accuracy(text: Tensor, extra: Tensor, weights: Sequence[float], labels: Tensor) -> Tensor:
    """The fraction of rows for which text + weight * extra is largest at the label: [G, A].

    The lead over another class is linear in the weight, so a row is right on one interval of
    weights. Counting the ends of intervals costs no more than a single weight does.
    """
    truth = labels.expand(len(extra), -1).unsqueeze(-1)
    slope = (extra.gather(-1, truth) - extra).double()  # [G, M, C]: lead per weight
    lead = (text.gather(-1, truth[0]) - text).double().expand_as(slope)
    other = torch.nn.functional.one_hot(labels, text.shape[1]) == 0
    turn = -lead / slope  # the weight at which the lead changes sign
    infinity = torch.tensor(float("inf"), dtype=torch.float64)
    low = torch.where(other & (slope > 0), turn, -infinity).amax(-1)  # [G, M]
    high = torch.where(other & (slope < 0), turn, infinity).amin(-1)
    never = (other & (slope == 0) & (lead <= 0)).any(-1)
    ordered, order = torch.tensor(weights, dtype=torch.float64).sort()
    first = torch.searchsorted(ordered, low, right=True)
    last = torch.searchsorted(ordered, high).maximum(first)
    ends = torch.zeros(len(extra), len(weights) + 1, dtype=torch.float64)
    count = (~never).double()
    ends.scatter_add_(1, first, count).scatter_add_(1, last, -count)
    right = ends.cumsum(1)[:, :-1].round() / len(labels)
    return torch.empty_like(right).scatter_(1, order.expand_as(right), right)
