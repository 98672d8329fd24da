"""Which pictures of a bag carry its class, where only bags are labelled: a few rounds of EM.

Zero-shot logits start. Texts may mislead, so a second start does without: there all pictures carry
the class of their bag at first. Each round fits the experts of `fused` to what the pictures are
thought to show, and asks them about the bags that they have not learned from, so that a first
guess does not confirm itself. Both are done twice: with the features as they are, and relative to
the mean of their bag, from which a carrier differs unless all pictures carry the class. The end
with the likeliest labels of such bags is taken (docs/concepts/bags.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.core.geometry import prototypes
from ogkd.core.pooling import best_pooling, relative, usual
from ogkd.methods.base import TextSide
from ogkd.methods.experts import Space, Texts, experts
from ogkd.methods.fused_choice import RHO, FusedConfig, bag_weights

_ROUNDS = 4
_FOLDS = 4  # at most
_QUANTILE = 0.95  # of the pictures of normal bags that a carrier has to stand out more than
_USUAL = 0.25  # quantile of a bag that its pictures stand out from: most may carry the class


def find_carriers(rows: Tensor, bag: Tensor, labels: Tensor, text: TextSide) -> Tensor:
    """What each picture shows, by the labels [B] of bags: [N]; -1 if that cannot be said.

    Rows [N, w] are features of pictures, bag [N] numbers their bags.
    """
    config, d = FusedConfig(), text.backbone.embed_dim
    deep = rows.shape[1] > d
    space = Space.of(normalize(rows.float(), dim=-1), d, text.backbone.deep_parts if deep else ())
    texts = Texts(prototypes(text.bank).cpu(), text.backbone.logit_scale, config.nu)
    W, b = texts.expert(space.v.mean(0), torch.tensor(float(len(labels))))
    by_text = _shown(space.v @ W.mT + b, bag, labels, text.normal)
    fold = folds(labels, _FOLDS)
    if fold is None:
        return by_text

    def ask(space: Space, shown: Tensor, kappa: float) -> Tensor:
        """Logits [N, C] of pictures by experts that have not learned from their bags."""
        z = torch.zeros(len(rows), len(text.class_names), dtype=torch.float64)
        Z = bag_weights(shown, bag, len(text.class_names))
        for number in fold.unique().tolist():
            out = fold[bag] == number
            found = experts(space.rows(~out), Z[~out], texts, rho=RHO[deep])
            z[out] = found.logits(space.rows(out), kappa)
        return z

    apart = replace(space, compared=tuple(X - usual(X, bag)[bag] for X in space.compared))
    best, least = by_text, torch.inf
    starts = ((by_text, config.kappa0), (labels[bag], 0.0))
    for where, (start, kappa) in product((apart, space), starts):
        shown, z = start, ask(where, start, kappa)
        for _ in range(_ROUNDS):
            before, shown = shown, _shown(z, bag, labels, text.normal)
            if bool((shown == before).all()):
                break
            z = ask(where, shown, kappa)
        loss = best_pooling(z, bag, labels, text.normal)[1]
        if loss < least:
            best, least = shown, loss
    return best


def folds(labels: Tensor, most: int) -> Tensor | None:
    """The fold of each bag [B], every class dealt in turn; None if a class has only one bag."""
    counts = torch.bincount(labels)
    fewest = int(counts[counts > 0].min())
    if fewest < 2:
        return None
    found = torch.zeros_like(labels)
    for label in labels.unique().tolist():
        mine = labels == label
        found[mine] = torch.arange(int(mine.sum())) % min(most, fewest)
    return found


def _shown(z: Tensor, bag: Tensor, labels: Tensor, normal: Sequence[int]) -> Tensor:
    """What pictures show by logits z [N, C]: the class of their bag, nothing of it, or -1.

    Pictures of one bag have much in common, so they are compared with each other: a picture
    carries the class if it stands out from its bag more than nearly all pictures of normal bags
    from theirs, and at least half way from there to the best picture of most bags; without normal
    classes, if it is more like it than like all others together. The best picture of a bag always
    does. The others show nothing if they are no more like the class than most pictures of normal
    bags; between the two, nothing is said.
    """
    own, findings = labels[bag], [c for c in labels.unique().tolist() if c not in normal]
    if not normal:
        near = z - _others(z)
        score = near.gather(1, own.unsqueeze(1)).squeeze(1)
        return torch.where((score > 0) | _best(score, bag), own, -1)
    near = relative(z, normal)
    low = torch.stack([mine.quantile(_USUAL, dim=0) for mine in near.split(_sizes(bag))])
    out = near - low[bag]  # how far a picture stands out
    of_normal = torch.isin(own, torch.tensor(list(normal)))
    nothing = torch.tensor(list(normal))[z[:, list(normal)].argmax(1)]
    shown = own.clone()
    for c in findings:
        mine = own == c
        limits = out.new_tensor([0.0, 0.0])
        if bool(of_normal.any()):
            limits = torch.stack(
                [out[of_normal, c].quantile(_QUANTILE), near[of_normal, c].median()]
            )
        best = _best(out[:, c], bag)
        half_way = (limits[0] + out[best & mine, c].median()) / 2
        carries = (out[:, c] > torch.maximum(limits[0], half_way)) | best
        rest = torch.where(near[:, c] < limits[1], nothing, -1)
        shown = torch.where(mine & ~carries, rest, shown)
    return shown


def _sizes(bag: Tensor) -> list[int]:
    """The pictures of each bag, which are next to each other."""
    return list(torch.bincount(bag).tolist())


def _best(score: Tensor, bag: Tensor) -> Tensor:
    """Which pictures [N] have the highest score of their bag."""
    top = torch.stack([mine.max() for mine in score.split(_sizes(bag))])
    return score >= top[bag]


def _others(z: Tensor) -> Tensor:
    """For each class, the log of the mean exponential of the others: [N, C]."""
    alone = torch.eye(z.shape[1], dtype=torch.bool)
    rest = z.unsqueeze(1).expand(-1, z.shape[1], -1).masked_fill(alone, -torch.inf)
    return rest.logsumexp(2)
