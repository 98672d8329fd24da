"""GDA: Gaussian classes with one covariance, added to the text's logits."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from ogkd.methods import Head, LinearHead, TextSide, register
from ogkd.methods.feature_method import FeatureMethod, PriorConfig, Rows, text_prior
from ogkd.methods.grid_search import Trial, choose

GRID = tuple(math.pow(10, k / 2) for k in range(-8, 5))  # 1e-4 .. 100
DEFAULT = 0.03  # good at one shot on validation images of eleven real datasets


class GDAConfig(PriorConfig):
    """`alpha` is searched if None; at one shot without validation it is 0.03."""

    alpha: float | None = Field(default=None, ge=0)  # weight of the images; None: searched


@register
class GDA(FeatureMethod[GDAConfig]):
    """logits_k = scale v' t_k + alpha (w_k' v + b_k), w_k = P mu_k, b_k = -mu_k' P mu_k / 2.

    Classes have equal prior probability. P is the inverse covariance, estimated in closed
    form (Kubokawa and Srivastava 2008): P = d ((N - 1) S + tr(S) I)^-1, with S the covariance
    of the rows around their class means.
    Named differences from the released code: a Cholesky solve instead of a pseudo-inverse; whole
    images instead of ten augmented views; alpha from 13 values between 1e-4 and 100 (there 7), on
    validation images, else by cross-validation; ties in accuracy are broken by cross-entropy
    (there the first is taken). With one row per class S is zero; then P = d / tr(S0) I with S0
    around the common mean, which gives nearest means.
    """

    name = "gda"
    summary = "Gaussian classes with a shared covariance, fused with text; closed form"
    citation = "Wang et al., A Hard-to-Beat Baseline, ICLR 2024"
    uses_validation = True

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        config = self.config
        T, scale = text_prior(text, config.prior), text.backbone.logit_scale

        def visual(trial: Trial) -> Tensor:
            W, b = gaussian(trial.rows)
            return (trial.features.double() @ W.mT + b).unsqueeze(0)

        alpha = config.alpha
        if alpha is None:
            best = choose(rows, visual, GRID, T=T, scale=scale)
            alpha = DEFAULT if best is None else GRID[best[1]]
        W, b = gaussian(rows)
        return LinearHead((scale * T + alpha * W).float(), (alpha * b).float())


def gaussian(rows: Rows) -> tuple[Tensor, Tensor]:
    """Weights W [C, d] and biases b [C] of Gaussian classes with one covariance, in float64."""
    F, L = rows.features.double(), rows.one_hot.double()
    mu = L.mT @ F / L.sum(0).unsqueeze(1)  # [C, d]
    N, d = F.shape
    centred = F - mu[rows.labels]
    trace = float(centred.square().sum()) / max(1, N - 1)
    if trace > 1e-12:
        M = centred.mT @ centred  # (N - 1) S
        M.diagonal().add_(trace)
        W = d * torch.cholesky_solve(mu.mT, torch.linalg.cholesky(M)).mT
    else:
        spread = float((F - F.mean(0)).square().sum()) / max(1, N - 1)
        W = d / max(spread, 1e-6) * mu
    return W, -(W * mu).sum(1) / 2
