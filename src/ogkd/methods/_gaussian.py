"""Two linear experts on the same images, and what they say together (docs/fused.md).

The visual expert is Gaussian: classes with one covariance. The textual expert is the zero-shot
head, centred on the support. Pure functions, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Experts", "experts", "fuse", "textual", "visual"]


@dataclass(frozen=True)
class Experts:
    """Weights [C, d] and biases [C] of both experts, and the images per class n [C]."""

    W_visual: Tensor
    b_visual: Tensor
    W_text: Tensor
    b_text: Tensor
    n: Tensor


def experts(
    X: Tensor, y: Tensor, T: Tensor, *, scale: float, views: int, rho: float, nu: float
) -> Experts:
    """Both experts from rows X [R, d] with labels y [R], `views` rows per image.

    T [C, d] are the class texts. Every class needs at least one row.
    """
    X, T = X.double(), T.double()
    one_hot = torch.nn.functional.one_hot(y, len(T)).double()  # [R, C]
    rows = one_hot.sum(0)
    means = one_hot.mT @ X / rows.unsqueeze(1)  # [C, d]
    n = rows / views
    W_visual, b_visual = visual(X, y, means, n, rho=rho)
    W_text, b_text = textual(T, means.mean(0), scale=scale, trust=float(n.sum() / (n.sum() + nu)))
    return Experts(W_visual, b_visual, W_text, b_text, n)


def visual(X: Tensor, y: Tensor, means: Tensor, n: Tensor, *, rho: float) -> tuple[Tensor, Tensor]:
    """Linear discriminants P (x_c - m) of Gaussian classes with one covariance.

    The scatter counts how far rows lie from their class mean, and n_c / (1 + n_c) of how far
    class means lie from the common mean m: so there is a covariance even with one image per
    class. The ridge is rho tr / N, as in GDA: it fades as images come in.
    """
    N = n.sum()
    m = means.mean(0)
    delta = means - m  # [C, d]
    inner = X - means[y]
    S = inner.mT @ inner * (N / len(X)) + (delta * (n / (1 + n)).unsqueeze(1)).mT @ delta
    S = S / N
    S.diagonal().add_((rho * S.trace() / N).clamp_min(1e-8))
    W = torch.cholesky_solve(delta.mT, torch.linalg.cholesky(S)).mT  # [C, d]
    return W, -(W * delta).sum(1) / 2 - W @ m


def textual(T: Tensor, m: Tensor, *, scale: float, trust: float) -> tuple[Tensor, Tensor]:
    """The zero-shot head without its preference for classes, as far as the support shows it.

    Image and text features live apart, so some class texts are nearer to all images. Logits are
    taken relative to those of the mean image m; `trust` from 0 (not at all) to 1 says how far.
    """
    W = scale * (T - T.mean(0))
    return W, -trust * (W @ m)


def fuse(both: Experts, kappa: float) -> tuple[Tensor, Tensor]:
    """Text counts as `kappa` images: weights kappa / (kappa + n_c) and n_c / (kappa + n_c).

    This is the posterior of class means whose prior means are placed where Gaussian classes
    would give the zero-shot head.
    """
    share = both.n / (kappa + both.n)  # [C]
    W = share.unsqueeze(1) * both.W_visual + (1 - share).unsqueeze(1) * both.W_text
    return W, share * both.b_visual + (1 - share) * both.b_text
