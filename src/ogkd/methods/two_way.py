"""The equations of `fused` where an image may show several findings, in float64.

Each finding f is a question of its own, whose answer may be unknown: Y [R, F] is 1, 0 or -1. Its
log-odds are those of two Gaussian classes,

    z_f = heat (s_f (x - c_f)' P_f (mean_f1 - mean_f0) + (1 - s_f) text_f)
          + log (n_f1 + 1)/(n_f0 + 1)

where c_f is halfway between its means, s_f = n_f / (kappa + n_f) and n_f the harmonic mean of its
counts n_f1 and n_f0. All findings share kappa and heat. They do not share the covariance: what one
finding changes lies within both answers of another, so that a common one would hide each from
itself (docs/evidence/findings.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ogkd.methods.experts import Experts, Linear, Space, visual
from ogkd.methods.fused_choice import (
    FOLDS,
    HEATS,
    KAPPAS,
    Choice,
    FusedConfig,
    prior_cost,
    ridge,
)


@dataclass(frozen=True)
class Pairs:
    """Texts of presence and absence, each [F, d], the scale, and what centring is worth."""

    present: Tensor
    absent: Tensor
    scale: float
    nu: float


def sides(Y: Tensor, weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """What each row counts for presence and for absence of each finding: [R, F] each."""
    return (Y == 1).double() * weight, (Y == 0).double() * weight


def two_way(space: Space, Y: Tensor, texts: Pairs, *, rho: float, weight: float = 1.0) -> Experts:
    """Experts whose logits are log-odds; each finding needs a row with it and one without.

    `weight` is what a row counts: less than 1 if it is one of several views of an image.
    """
    yes, no = sides(Y, weight)
    n1, n0 = yes.sum(0), no.sum(0)
    middle = (_mean(space.v, yes) + _mean(space.v, no)) / 2  # [F, d]
    W = texts.scale * (texts.present.double() - texts.absent.double())
    # As in Texts.expert: centred on the images, the more the more there are.
    b = -((n1 + n0) / (n1 + n0 + texts.nu)) * (W * middle).sum(1)
    seen = tuple(_gaussian(X, yes, no, rho=rho) for X in space.compared)
    return Experts(seen, (W, b), 2 * n1 * n0 / (n1 + n0))


def _gaussian(X: Tensor, yes: Tensor, no: Tensor, *, rho: float) -> Linear:
    """Log-odds (x - c_f)' P_f (mean_f1 - mean_f0) of every finding: `visual` of its two answers."""
    found = []
    for f in range(yes.shape[1]):
        Z = torch.stack([no[:, f], yes[:, f]], dim=1)
        found.append(visual(X, Z, (X * Z.sum(1, keepdim=True)).mT @ X, rho=rho))
    W, b = (torch.stack(each) for each in zip(*found, strict=True))
    return W[:, 1] - W[:, 0], b[:, 1] - b[:, 0]


def _mean(X: Tensor, weights: Tensor) -> Tensor:
    return weights.mT @ X / weights.sum(0).unsqueeze(1)


def prior_odds(Y: Tensor, weight: float = 1.0) -> Tensor:
    """Log-odds of each finding before an image is seen: as frequent as among those learned from."""
    yes, no = sides(Y, weight)
    return (yes.sum(0) + 1).log() - (no.sum(0) + 1).log()


def deal(Y: Tensor, most: int) -> Tensor:
    """The fold of each image [N]: those that show a finding in turn, the rarest finding first."""
    folds = torch.full((len(Y),), -1)
    counts = (Y == 1).sum(0)
    turn = 0
    for f in [*counts.argsort(stable=True).tolist(), None]:
        mine = (folds < 0) & ((Y[:, f] == 1) if f is not None else (Y >= 0).any(1))
        number = int(mine.sum())
        folds[mine] = (turn + torch.arange(number)) % most
        turn += number
    return folds


def choose(
    space: Space, Y: Tensor, images: Tensor, texts: Pairs, config: FusedConfig, *, weight: float
) -> Choice:
    """Choose kappa and heat for all findings together, on held-out images; see fused_choice.

    `images` [R] says which image a row is a view of. Findings that the other images do not show,
    or all show, are not asked for in a fold; if nothing can be held out, they are kappa0 and 1.
    """
    first = torch.unique(images, return_inverse=True)[1]
    one = torch.stack([Y[first == number][0] for number in range(int(first.max()) + 1)])
    folds = deal(one, min(FOLDS, len(one)))[first]
    held: list[tuple[Experts, Space, Tensor, Tensor]] = []
    for fold in folds.unique().tolist():
        out = folds == fold
        rest = Y[~out]
        able = ((rest == 1).any(0) & (rest == 0).any(0)).nonzero()[:, 0]
        if fold < 0 or not len(able) or not (Y[out][:, able] >= 0).any():
            continue
        few = Pairs(texts.present[able], texts.absent[able], texts.scale, texts.nu)
        fitted = two_way(space.rows(~out), rest[:, able], few, rho=ridge(config), weight=weight)
        prior = prior_odds(rest[:, able], weight)
        held.append((fitted, space.rows(out), Y[out][:, able], prior))
    fixed = config.kappa
    best, least = Choice(fixed or config.kappa0, 1.0), math.inf
    heats = torch.tensor(HEATS, dtype=torch.float64)
    for kappa in (KAPPAS if fixed is None else (fixed,)) if held else ():
        fits = heats.new_zeros(len(heats))
        for fitted, rows, said, prior in held:
            z = heats[:, None, None] * fitted.logits(rows, kappa) + prior  # [H, M, F]
            sign = 2.0 * (said == 1).double() - 1
            fits += (logsigmoid(sign * z) * (said >= 0)).sum((1, 2))
        cost = prior_cost(heats, kappa, config) - fits * weight
        place = int(cost.argmin())
        if float(cost[place]) < least:
            least, best = float(cost[place]), Choice(kappa, HEATS[place])
    return best
