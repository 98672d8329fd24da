"""LP++: a linear probe whose weights are visual prototypes plus multiples of the text."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from ogkd.methods import Head, LinearHead, TextSide, register
from ogkd.methods.feature_method import FeatureMethod, PriorConfig, RivalConfig, Rows, text_prior


class LPPlusPlusConfig(PriorConfig, RivalConfig):
    """The settings of the benchmark's code."""

    epochs: int = Field(default=300, ge=0)  # steps over all images
    every: int = Field(default=10, ge=1)  # steps of w for each step of alpha
    momentum: float = Field(default=0.9, ge=0, lt=1)  # of w; 0: the paper's plain descent
    alpha_scale: float = Field(default=250.0, ge=0)  # start of alpha, in similarities to the text


@register
class LPPlusPlus(FeatureMethod[LPPlusPlusConfig]):
    """l_ik = f_i' (w_k + alpha_k t_k), cross-entropy, block coordinate descent over w and alpha.

    Full batch. Step sizes from the data: N / (lambda_max(F'F) / 4) for w and
    N / (4 max_k sum_i (f_i' t_k)^2) for alpha. Start: w_k the sum of its class's features,
    alpha_k = 250 mean_c mean_{i in c} f_i' t_c. Ten steps of w, then one of alpha; with
    validation images the best epoch is kept (the later of equals), else the last.
    Named differences from the benchmark's code, unless fidelity is "released": alpha moves along
    its current gradient (there it is never cleared and accumulates from the first epoch on); no
    bias, as in the paper's formula; float32 throughout; an image with several views counts once in
    the start of w; the rows are whole images (there one augmented view).
    Kept from the released code, not from the paper: momentum 0.9 on w.
    """

    name = "lp++"
    summary = "linear probe blended with text by learned class-wise multipliers"
    citation = "Huang et al., LP++, CVPR 2024"
    uses_validation = True

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        config, released = self.config, self.as_benchmarked
        T = text_prior(text, config.prior)
        F, L, N = rows.features, rows.one_hot, len(rows.labels)
        near = F @ T.mT  # [R, C]: f_i' t_k
        step_w = 4 * N / float(torch.linalg.matrix_norm(F, ord=2)) ** 2
        step_alpha = N / (4 * float(near.square().sum(0).max().clamp_min(1e-12)))
        b = torch.zeros(rows.classes)
        w = L.mT @ F / rows.views
        if released:  # fidelity.md, 48: sums in half precision, and a linear layer's own bias
            w = (L.mT @ F.half().float()).half().float()
            bound = 1 / math.sqrt(F.shape[1])
            b.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
        start = ((L * near).sum(0) / L.sum(0)).mean()
        alpha = config.alpha_scale * start.expand(rows.classes).clone()
        speed, speed_b = torch.zeros_like(w), torch.zeros_like(b)
        slope = torch.zeros_like(alpha)
        best, kept = -1.0, (w, alpha, b)
        for epoch in range(1, config.epochs + 1):
            G = ((F @ w.mT + b + alpha * near).softmax(dim=-1) - L) / N  # [R, C]
            speed = config.momentum * speed + G.mT @ F
            w = w - step_w * speed
            if released:
                speed_b = config.momentum * speed_b + G.sum(0)
                b = b - step_w * speed_b
                slope = slope + (G * near).sum(0)  # of all epochs so far
            if epoch % config.every == 0:
                if not released:
                    G = ((F @ w.mT + alpha * near).softmax(dim=-1) - L) / N
                    slope = (G * near).sum(0)
                alpha = alpha - step_alpha * slope
            score = _score(rows, w + alpha.unsqueeze(1) * T, b)
            if score >= best:
                best, kept = score, (w, alpha, b)
        w, alpha, b = kept
        return LinearHead(w + alpha.unsqueeze(1) * T, b)


def _score(rows: Rows, W: Tensor, b: Tensor) -> float:
    """Accuracy on validation images; without them all epochs score the same."""
    if rows.validation is None or not len(rows.validation[1]):
        return 0.0
    features, labels = rows.validation
    v = torch.nn.functional.normalize(features.float(), dim=-1)
    return float(((v @ W.mT + b).argmax(dim=-1) == labels).float().mean())
