"""ProKeR: kernel ridge regression that stays near zero-shot."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from ogkd.methods import Head, KernelHead, TextSide, register
from ogkd.methods.feature_method import FeatureMethod, PriorConfig, Rows, text_prior
from ogkd.methods.grid_search import Trial, choose

BETAS = tuple(0.5 + 0.5 * k for k in range(20))  # 0.5 .. 10
LAMBDAS = tuple(math.pow(10, k / 2) for k in range(-4, 5))  # 0.01 .. 100
DEFAULT = (3.0, 3.0)  # good at one shot on validation images of eleven real datasets


class ProKeRConfig(PriorConfig):
    """`beta` and `lam` are searched if None; at one shot without validation both are 3."""

    beta: float | None = Field(default=None, gt=0)  # sharpness of the kernel; None: searched
    lam: float | None = Field(default=None, gt=0)  # ridge; None: searched


@register
class ProKeR(FeatureMethod[ProKeRConfig]):
    """f = argmin sum_i |f(v_i) - y_i|^2 + lambda |f - f_0|^2_H, f_0(v) = v T' (zero-shot).

    H has the kernel k(v, u) = exp(-beta (1 - v' u)). In closed form
    f(v) = v T' + k(v, S) (K + lambda I)^-1 (Y - S T'); logits are scale * f(v).
    Named differences from the released code: that solves (K / lambda + I) and leaves out the factor
    1 / lambda, so its correction is lambda times larger; the first of equally good pairs is taken
    there; it sees one augmented view; the grid reaches to lambda = 100, and beta to 10 (there each
    dataset has its own); logits have the backbone's scale, so that probabilities are not nearly
    uniform; a Cholesky solve in float64.
    """

    name = "proker"
    summary = "kernel ridge regression on the errors of zero-shot; closed form"
    citation = "Bendou et al., ProKeR, CVPR 2025"
    uses_validation = True

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        T, scale = text_prior(text, self.config.prior), text.backbone.logit_scale
        beta, lam = self._choose(rows, T, scale)
        A = scale * ridge(rows, T, beta, lam)
        return KernelHead(T, scale, rows.features.contiguous(), A.float().contiguous(), beta)

    def _choose(self, rows: Rows, T: Tensor, scale: float) -> tuple[float, float]:
        beta, lam = self.config.beta, self.config.lam
        if beta is not None and lam is not None:
            return beta, lam
        betas = BETAS if beta is None else (beta,)
        lambdas = LAMBDAS if lam is None else (lam,)

        def corrections(trial: Trial) -> Tensor:
            return _corrections(trial.rows, trial.features, T, betas, lambdas)

        best = choose(rows, corrections, (scale,), T=T, scale=scale)
        if best is None:
            return beta or DEFAULT[0], lam or DEFAULT[1]
        return betas[best[0] // len(lambdas)], lambdas[best[0] % len(lambdas)]


def ridge(rows: Rows, T: Tensor, beta: float, lam: float) -> Tensor:
    """(K + lambda I)^-1 (Y - S T') in float64: [R, C]."""
    K = _kernel(rows.features, rows.features, beta)
    K.diagonal().add_(lam)
    return torch.cholesky_solve(_residual(rows, T), torch.linalg.cholesky(K))


def _kernel(v: Tensor, u: Tensor, beta: float) -> Tensor:
    return (-beta * (1 - v.double() @ u.double().mT)).exp()


def _residual(rows: Rows, T: Tensor) -> Tensor:
    return rows.one_hot.double() - rows.features.double() @ T.double().mT


def _corrections(
    rows: Rows, features: Tensor, T: Tensor, betas: Sequence[float], lambdas: Sequence[float]
) -> Tensor:
    """k(v, S) (K + lambda I)^-1 (Y - S T') for all pairs: [B * L, M, C], one eigh per beta."""
    R = _residual(rows, T)
    lam = torch.tensor(lambdas, dtype=torch.float64)
    corrections = []
    for beta in betas:
        s, U = torch.linalg.eigh(_kernel(rows.features, rows.features, beta))
        near = _kernel(features, rows.features, beta) @ U  # [M, R]
        shrunk = near / (s.clamp_min(0) + lam[:, None, None])  # [L, M, R]
        corrections.append(shrunk @ (U.mT @ R))
    return torch.cat(corrections)
