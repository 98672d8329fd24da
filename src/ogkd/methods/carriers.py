"""Which images of a case carry its class, where only cases are labelled: a few rounds of EM.

Zero-shot logits start. Texts may mislead, so a second start does without: there all images carry
the class of their case at first. Each round fits the experts of `fused` to what the images are
thought to show, and asks them about the cases that they have not learned from, so that a first
guess does not confirm itself. Both are done twice: with the features as they are, and relative to
the mean of their case, from which a carrier differs unless all images carry the class. The end
with the likeliest labels of such cases is taken (docs/concepts/cases.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.core.geometry import prototypes
from ogkd.core.pooling import best_pooling, common_part, pooled, relative
from ogkd.methods.base import TextSide
from ogkd.methods.experts import Space, Texts, experts, totals
from ogkd.methods.fused_choice import RHO, FusedConfig, case_weights

_ROUNDS = 4
_FOLDS = 4  # at most
_QUANTILE = 0.95  # of the images of normal cases that a carrier has to stand out more than
_USUAL = 0.25  # quantile of a case that its images stand out from: most may carry the class


def find_carriers(rows: Tensor, case: Tensor, labels: Tensor, text: TextSide) -> Tensor:
    """What each image shows, by the labels [B] of cases: [N]; -1 if that cannot be said.

    Rows [N, w] are features of images, case [N] numbers their cases.
    """
    config, d, classes = FusedConfig(), text.backbone.embed_dim, len(text.class_names)
    deep = rows.shape[1] > d
    space = Space.of(normalize(rows.float(), dim=-1), d, text.backbone.deep_parts if deep else ())
    texts = Texts(prototypes(text.bank).cpu(), text.backbone.logit_scale, config.nu)
    W, b = texts.expert(space.v.mean(0), torch.tensor(float(len(labels))))
    by_text = _shown(space.v @ W.mT + b, case, labels, text.normal)
    fold = folds(labels, _FOLDS)
    if fold is None:
        return by_text

    apart = replace(space, compared=tuple(X - common_part(X, case)[case] for X in space.compared))
    crossed = [_CrossFit(where, texts, RHO[deep], fold[case]) for where in (apart, space)]
    best, least = by_text, torch.inf
    starts = ((by_text, config.kappa0), (labels[case], 0.0))
    for cross, (start, kappa) in product(crossed, starts):
        shown, z = start, cross.logits(case_weights(start, case, classes), kappa)
        for _ in range(_ROUNDS):
            before, shown = shown, _shown(z, case, labels, text.normal)
            if bool((shown == before).all()):
                break
            z = cross.logits(case_weights(shown, case, classes), kappa)
        loss = best_pooling(z, case, labels, text.normal)[1]
        if loss < least:
            best, least = shown, loss
    return best


class _CrossFit:
    """Experts that have not learned from the rows they are asked about.

    Their sums of squares change with the weights of few rows from one round to the next.
    """

    def __init__(self, space: Space, texts: Texts, rho: float, fold: Tensor) -> None:
        self._space, self._texts, self._rho = space, texts, rho
        self._parts = [(fold == number).nonzero().squeeze(1) for number in fold.unique().tolist()]
        self._held = [space.rows(part) for part in self._parts]
        self._w = space.v.new_zeros(len(fold))
        widths = [X.shape[1] for X in space.compared]
        self._whole, *self._sums = (
            [space.v.new_zeros(d, d) for d in widths] for _ in range(len(self._parts) + 1)
        )

    def logits(self, Z: Tensor, kappa: float) -> Tensor:
        """Logits [N, C] of all rows by the experts of the others, with weights Z [N, C]."""
        w = Z.sum(1)
        for (held, part), sums in zip(self._pairs(), self._sums, strict=True):
            change = (w - self._w)[part]
            changed = change.nonzero().squeeze(1)
            more = totals(held.rows(changed), change[changed])
            for total, part_total, change_of in zip(self._whole, sums, more, strict=True):
                total += change_of
                part_total += change_of
        self._w = w
        z = torch.empty_like(Z)
        for (held, part), sums in zip(self._pairs(), self._sums, strict=True):
            known = [total - gone for total, gone in zip(self._whole, sums, strict=True)]
            kept = Z.index_fill(0, part, 0.0)
            fitted = experts(self._space, kept, self._texts, rho=self._rho, known=known)
            z[part] = fitted.logits(held, kappa)
        return z

    def _pairs(self) -> Iterator[tuple[Space, Tensor]]:
        return zip(self._held, self._parts, strict=True)


def folds(labels: Tensor, most: int) -> Tensor | None:
    """The fold of each case [B], every class dealt in turn; None if a class has only one case."""
    counts = torch.bincount(labels)
    fewest = int(counts[counts > 0].min())
    if fewest < 2:
        return None
    assigned = torch.zeros_like(labels)
    for label in labels.unique().tolist():
        members = labels == label
        assigned[members] = torch.arange(int(members.sum())) % min(most, fewest)
    return assigned


def _shown(z: Tensor, case: Tensor, labels: Tensor, normal: Sequence[int]) -> Tensor:
    """What images show by logits z [N, C]: the class of their case, nothing of it, or -1.

    Pictures of one case have much in common, so they are compared with each other: an image
    carries the class if it stands out from its case more than nearly all images of normal cases
    from theirs, and at least half way from there to the best image of most cases; without normal
    classes, if it is more like it than like all others together. The best image of a case always
    does. The others show nothing if they are no more like the class than most images of normal
    cases; between the two, nothing is said.
    """
    case_label, findings = labels[case], [c for c in labels.unique().tolist() if c not in normal]
    if not normal:
        near = z - _others(z)
        score = near.gather(1, case_label.unsqueeze(1)).squeeze(1)
        return torch.where((score > 0) | _best(score, case), case_label, -1)
    near = relative(z, normal)
    low = _usual(near, case)
    out = near - low[case]  # how far an image stands out
    of_normal = torch.isin(case_label, torch.tensor(list(normal)))
    nothing = torch.tensor(list(normal))[z[:, list(normal)].argmax(1)]
    shown = case_label.clone()
    for c in findings:
        of_class = case_label == c
        limits = out.new_tensor([0.0, 0.0])
        if bool(of_normal.any()):
            limits = torch.stack(
                [out[of_normal, c].quantile(_QUANTILE), near[of_normal, c].median()]
            )
        best = _best(out[:, c], case)
        half_way = (limits[0] + out[best & of_class, c].median()) / 2
        carries = (out[:, c] > torch.maximum(limits[0], half_way)) | best
        rest = torch.where(near[:, c] < limits[1], nothing, -1)
        shown = torch.where(of_class & ~carries, rest, shown)
    return shown


def _usual(near: Tensor, case: Tensor) -> Tensor:
    """The quantile of each case [B, C] that its images, next to each other, stand out from."""
    sizes = torch.bincount(case)
    usual = near.new_empty(len(sizes), near.shape[1])
    for size in sizes.unique().tolist():  # cases of equal size at once
        chosen = sizes == size
        together = near[chosen[case]].view(-1, size, near.shape[1])
        usual[chosen] = together.quantile(_USUAL, dim=1)
    return usual


def _best(score: Tensor, case: Tensor) -> Tensor:
    """Which images [N] have the highest score of their case."""
    return score >= pooled(score.unsqueeze(1), case, 0.0).squeeze(1)[case]


def _others(z: Tensor) -> Tensor:
    """For each class, the log of the mean exponential of the others: [N, C]."""
    alone = torch.eye(z.shape[1], dtype=torch.bool)
    rest = z.unsqueeze(1).expand(-1, z.shape[1], -1).masked_fill(alone, -torch.inf)
    return rest.logsumexp(2)
