"""ZS-LP and CLAP: a linear probe that starts at the class text, free or kept near it."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import TypeVar

from ogkd.core.optimisers import TrainConfig, learning_rate
from ogkd.methods import Head, LinearHead, TextSide, register
from ogkd.methods.feature_method import FeatureMethod, PriorConfig, Rows, text_prior


class ZeroShotProbeConfig(PriorConfig):
    """`text_norm` is the initial length of w: learning rate and penalty are relative to it.

    CLIP's own text features, for which the released settings were tuned, have a length of about
    10 before they are normalised; ours are normalised.
    """

    epochs: int = Field(default=300, ge=0)  # passes over the images
    batch_size: int = Field(default=256, ge=1)  # images in each step
    lr: float = Field(default=0.1, gt=0)  # learning rate, relative to text_norm
    momentum: float = Field(default=0.9, ge=0, lt=1)  # of sgd
    text_norm: float = Field(default=10.0, gt=0)  # length of the weights at the start


class CLAPConfig(ZeroShotProbeConfig):
    """The penalty of CLAP, beside the probe."""

    penalty: float = Field(default=1.0, ge=0)  # multiplies the pull to the text of every class


ProbeT = TypeVar("ProbeT", bound=ZeroShotProbeConfig, default=ZeroShotProbeConfig, covariant=True)


@register
class ZSLP(FeatureMethod[ProbeT]):
    """logits = scale cos(v, w_c), w_c starts at t_c and learns by cross-entropy.

    SGD with momentum 0.9, one warm-up epoch at 1e-5, cosine per epoch, 300 epochs of batches
    of 256. Named differences from the released code: w starts at `text_norm` times the
    normalised text (there at the raw text feature); views are the support's (there 20
    augmented copies of each image).
    """

    name = "zs-lp"
    summary = "linear probe that starts at the class text"
    citation = "Silva-Rodriguez et al., A Closer Look (CLAP), CVPR 2024"

    def pull(self, rows: Rows, T: Tensor, scale: float) -> Tensor:
        """Return lambda_c [C], the weight of |w_c - t_c|^2 in the loss."""
        return torch.zeros(rows.classes)

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        config = self.config
        T, scale = text_prior(text, config.prior), text.backbone.logit_scale
        start = config.text_norm * T
        pull = 2 * self.pull(rows, T, scale).unsqueeze(1) / rows.classes
        generator = torch.Generator().manual_seed(seed)
        schedule = TrainConfig(epochs=max(1, config.epochs), lr=config.lr)
        w, speed = start.clone(), torch.zeros_like(start)
        for epoch, batch in rows.batches(config.epochs, config.batch_size, generator):
            rate = learning_rate(epoch, schedule)
            speed = config.momentum * speed + _slope(w, batch.features, batch.one_hot, scale)
            # The penalty's step is implicit, which is stable for any weight.
            held = rate / (1 - config.momentum) * pull
            w = (w - rate * speed + held * start) / (1 + held)
        return LinearHead(scale * normalize(w, dim=-1), torch.zeros(rows.classes))


@register
class CLAP(ZSLP[CLAPConfig]):
    """ZS-LP with the penalty mean_c lambda_c |w_c - t_c|^2.

    lambda_c is the mean zero-shot probability of the right class on the support images of c:
    if text alone is right, the probe stays near it. The multipliers keep their initial values,
    as in the paper's validation-free setting. Named differences from the released code: those of
    ZS-LP, and the penalty's step is implicit (the same to first order, and stable for any
    weight); its momentum is taken as a rate larger by 1 / (1 - momentum).
    """

    name = "clap"
    summary = "linear probe that starts at the class text and is kept near it, class by class"

    def pull(self, rows: Rows, T: Tensor, scale: float) -> Tensor:
        p = (scale * rows.features @ T.mT).softmax(dim=-1)
        right = (rows.one_hot * p).sum(0) / rows.one_hot.sum(0)
        return right * self.config.penalty


def _slope(w: Tensor, F: Tensor, L: Tensor, scale: float) -> Tensor:
    """The gradient [C, d] of the mean cross-entropy of scale * cos(F, w)."""
    length: Tensor = torch.linalg.vector_norm(w, dim=1, keepdim=True)
    u = w / length
    G = ((scale * F @ u.mT).softmax(dim=-1) - L) / len(F)
    g = G.mT @ F * scale
    return (g - (g * u).sum(1, keepdim=True) * u) / length
