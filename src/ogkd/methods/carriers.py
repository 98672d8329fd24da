"""Which images of a case carry its class, where only cases are labelled: a few rounds of EM.

Zero-shot logits start. Texts may mislead, so a second start does without: there all images carry
the class of their case at first. Each round fits the experts of `fused` to what the images are
thought to show, and asks them about the cases that they have not learned from, so that a first
guess does not confirm itself. Both are done twice: with the features as they are, and relative to
the mean of their case, from which a carrier differs unless all images carry the class. The end
with the likeliest labels of such cases is taken (docs/concepts/cases.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.core.geometry import prototypes
from ogkd.core.pooling import best_pooling, common_part, relative
from ogkd.methods.base import TextSide
from ogkd.methods.experts import Space, Texts, experts
from ogkd.methods.fused_choice import RHO, FusedConfig, case_weights

_ROUNDS = 4
_FOLDS = 4  # at most
_QUANTILE = 0.95  # of the images of normal cases that a carrier has to stand out more than
_USUAL = 0.25  # quantile of a case that its images stand out from: most may carry the class


def find_carriers(rows: Tensor, case: Tensor, labels: Tensor, text: TextSide) -> Tensor:
    """What each image shows, by the labels [B] of cases: [N]; -1 if that cannot be said.

    Rows [N, w] are features of images, case [N] numbers their cases.
    """
    config, d = FusedConfig(), text.backbone.embed_dim
    deep = rows.shape[1] > d
    space = Space.of(normalize(rows.float(), dim=-1), d, text.backbone.deep_parts if deep else ())
    texts = Texts(prototypes(text.bank).cpu(), text.backbone.logit_scale, config.nu)
    W, b = texts.expert(space.v.mean(0), torch.tensor(float(len(labels))))
    by_text = _shown(space.v @ W.mT + b, case, labels, text.normal)
    fold = folds(labels, _FOLDS)
    if fold is None:
        return by_text

    def ask(space: Space, shown: Tensor, kappa: float) -> Tensor:
        """Logits [N, C] of images by experts that have not learned from their cases."""
        z = torch.zeros(len(rows), len(text.class_names), dtype=torch.float64)
        Z = case_weights(shown, case, len(text.class_names))
        for number in fold.unique().tolist():
            out = fold[case] == number
            fitted = experts(space.rows(~out), Z[~out], texts, rho=RHO[deep])
            z[out] = fitted.logits(space.rows(out), kappa)
        return z

    apart = replace(space, compared=tuple(X - common_part(X, case)[case] for X in space.compared))
    best, least = by_text, torch.inf
    starts = ((by_text, config.kappa0), (labels[case], 0.0))
    for where, (start, kappa) in product((apart, space), starts):
        shown, z = start, ask(where, start, kappa)
        for _ in range(_ROUNDS):
            before, shown = shown, _shown(z, case, labels, text.normal)
            if bool((shown == before).all()):
                break
            z = ask(where, shown, kappa)
        loss = best_pooling(z, case, labels, text.normal)[1]
        if loss < least:
            best, least = shown, loss
    return best


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
    low = torch.stack([part.quantile(_USUAL, dim=0) for part in near.split(_sizes(case))])
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


def _sizes(case: Tensor) -> list[int]:
    """The images of each case, which are next to each other."""
    return list(torch.bincount(case).tolist())


def _best(score: Tensor, case: Tensor) -> Tensor:
    """Which images [N] have the highest score of their case."""
    top = torch.stack([part.max() for part in score.split(_sizes(case))])
    return score >= top[case]


def _others(z: Tensor) -> Tensor:
    """For each class, the log of the mean exponential of the others: [N, C]."""
    alone = torch.eye(z.shape[1], dtype=torch.bool)
    rest = z.unsqueeze(1).expand(-1, z.shape[1], -1).masked_fill(alone, -torch.inf)
    return rest.logsumexp(2)
