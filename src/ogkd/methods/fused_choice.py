"""The numbers of `fused` that the support decides, and whether unlabelled images are used.

Held-out images of the support judge: no validation image, no test image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from ogkd.methods.base import MethodConfig
from ogkd.methods.experts import Experts, Space, Texts, experts, totals, with_unlabelled
from ogkd.methods.feature_method import Rows
from ogkd.methods.grid_search import deal

KAPPAS = tuple(2.0**k for k in range(-2, 7))  # 1/4 .. 64 images
HEATS = tuple(math.exp(k / 8) for k in range(-12, 13))  # 0.22 .. 4.5
_KAPPA_SPREAD = 0.35  # prior standard deviation of log kappa around log kappa0
# Prior of the log of the factor on logits: spread, and mean 0.5 - 0.25 log2(images per class).
_HEAT_SPREAD, _HEAT_START, _HEAT_FALL = 0.3, 0.5, 0.25
FOLDS = 8  # at most, to choose by; each holds out some images of every class
_ROUNDS = 3  # of expectation-maximisation where no image can be held out; else one
_BALANCE = 0.5  # power that draws the classes' shares together; not where none can be held out
_MOST = 16.0  # images per class that a whole pool counts as, however large it is
POOL_FOLDS = 4  # at most with unlabelled images, where a fold costs more
RHO = {True: 0.3, False: 1.0}  # the ridge, with deeper features and without


def case_weights(shown: Tensor, case: Tensor, classes: int) -> Tensor:
    """Weights [N, C] of rows: those of a case with the same class are one image together.

    `shown` [N] are their classes, -1 for none; case [N] numbers their cases.
    """
    Z = one_hot(shown.clamp_min(0), classes).double() * (shown >= 0).unsqueeze(1)
    per_case = Z.new_zeros(int(case.max()) + 1, classes).index_add(0, case, Z)
    return Z / per_case[case].clamp_min(1)


class FusedConfig(MethodConfig):
    """The numbers of docs/concepts/fused.md, chosen there on training and validation images."""

    text: Literal["bank", "single"] = "bank"  # class texts: the prompt bank, or one template
    kappa: float | None = Field(default=None, gt=0)  # images a text counts as; None: cross-fit
    kappa0: float = Field(default=8.0, gt=0)  # its prior value
    # With a smaller ridge, covariances have no inverse in float64.
    rho: float | None = Field(default=None, ge=1e-6)  # ridge of the covariance; None: by features
    nu: float = Field(default=16.0, ge=0)  # how many images the zero-shot biases count as
    features: Literal["auto", "global"] = "auto"  # auto: deeper ones if the backbone has them
    beta: float = Field(default=0.2, gt=0, le=1)  # how many images an unlabelled one counts as
    rounds: int | None = Field(default=None, ge=1, le=100)  # of EM; None: 3 at one shot, else 1
    balance: float | None = Field(default=None, ge=0, le=1)  # in EM; None: 0 at one shot, else 0.5


def weights(rows: Rows) -> Tensor:
    """What each row counts for its class [R, C]: views of an image, and images of a case, are one.

    Only rows of the same class count together.
    """
    return case_weights(rows.labels, rows.case, rows.classes)


@dataclass(frozen=True)
class Choice:
    """The worth of text in images, and the factor on logits.

    `held` [M] is the log-likelihood of each held-out row with them; empty if none was held out.
    """

    kappa: float
    heat: float
    held: Tensor = field(default_factory=lambda: torch.empty(0), repr=False, compare=False)


def choose(
    rows: Rows, space: Space, texts: Texts, config: FusedConfig, *, folds: int = FOLDS
) -> Choice:
    """Choose the weight kappa and the factor on logits on held-out support images.

    With one image per class nothing can be held out: they are then the usual ones.
    """

    def fit(kept: Tensor) -> Experts:
        return experts(space.rows(kept), weights(rows)[kept], texts, rho=ridge(config))

    fixed = config.kappa
    kappas = KAPPAS if fixed is None else (fixed,)
    choice = _best(rows, space, fit, kappas, config, folds=folds)
    return choice or Choice(fixed or config.kappa0, usual_heat(rows))


def learn_from_pool(
    rows: Rows,
    pool: Tensor,
    alone: Space,
    texts: Texts,
    config: FusedConfig,
    split: Callable[[Tensor], Space],
) -> tuple[Choice, Space, Experts] | None:
    """Learn from unlabelled rows [U, w], too; the factor on logits is chosen again.

    None if held-out support images are less likely with them. `alone` is the space of the labelled
    rows, `split` makes that of all.
    """
    space, known = split(torch.cat([rows.features, pool])), len(rows.labels)
    labelled = space.rows(torch.arange(len(space.v)) < known)
    without = choose(rows, alone, texts, config, folds=POOL_FOLDS)
    chosen = len(without.held) > 0
    beta = min(config.beta, _MOST * rows.classes / len(pool))
    w = weights(rows).sum(1)  # what each labelled row counts in images
    sums = totals(space, torch.cat([w, w.new_full((len(pool),), beta)]))
    unlabelled = torch.ones(len(pool), dtype=torch.bool)

    def fit(kept: Tensor) -> Experts:
        # Cheaper than starting again: the totals without the rows that are held out.
        gone = totals(labelled.rows(~kept), w[~kept])
        return with_unlabelled(
            space.rows(torch.cat([kept, unlabelled])),
            weights(rows)[kept],
            texts,
            rho=ridge(config),
            kappa=without.kappa,
            heat=without.heat,
            beta=beta,
            rounds=config.rounds or (1 if chosen else _ROUNDS),
            balance=config.balance if config.balance is not None else _BALANCE * chosen,
            known=[total - part for total, part in zip(sums, gone, strict=True)],
        )

    choice = _best(rows, labelled, fit, (without.kappa,), config, folds=POOL_FOLDS) or Choice(
        without.kappa, 1.0
    )
    if chosen and float((choice.held - without.held).mean()) < 0:  # the same images are held out
        return None
    return choice, space, fit(torch.ones(known, dtype=torch.bool))


def _best(
    rows: Rows,
    space: Space,
    fit: Callable[[Tensor], Experts],
    kappas: Sequence[float],
    config: FusedConfig,
    *,
    folds: int,
) -> Choice | None:
    """The best numbers for held-out rows; None if no class has two images."""
    dealt = deal(rows, folds)
    if dealt is None:
        return None
    out = [dealt == fold for fold in dealt.unique().tolist() if fold >= 0]
    held = [(fit(~mask), space.rows(mask)) for mask in out]
    labels = torch.cat([rows.labels[mask] for mask in out])
    heats = torch.tensor(HEATS, dtype=torch.float64)
    counts = torch.cat([weights(rows)[mask].sum(1) for mask in out])
    best, least = None, math.inf
    for kappa in kappas:
        logits = torch.cat([both.logits(part, kappa) for both, part in held])
        log_p = (heats[:, None, None] * logits).log_softmax(-1)  # [H, M, C]
        picked = log_p.gather(-1, labels.expand(len(heats), -1).unsqueeze(-1)).squeeze(-1)
        # Views of one image are not independent: together they count as one.
        total = picked @ counts
        cost = _prior_cost(heats / usual_heat(rows), kappa, config) - total
        position = int(cost.argmin())
        if float(cost[position]) < least:
            least, best = float(cost[position]), Choice(kappa, HEATS[position], picked[position])
    return best


def _prior_cost(heats: Tensor, kappa: float, config: FusedConfig) -> Tensor:
    """-log of the prior of kappa, if it is free, and of factors relative to the usual one."""
    cost = (heats.log() / _HEAT_SPREAD).square() / 2
    if config.kappa is None:
        cost = cost + (math.log(kappa / config.kappa0) / _KAPPA_SPREAD) ** 2 / 2
    return cost


def usual_heat(rows: Rows) -> float:
    """The factor on logits that is likeliest before any image is held out.

    With few images logits are too small, with many too large, as the ridge vanishes.
    """
    per_class = float(weights(rows).sum()) / rows.classes
    return math.exp(_HEAT_START - _HEAT_FALL * math.log2(per_class))


def ridge(config: FusedConfig) -> float:
    return config.rho or RHO[False]
