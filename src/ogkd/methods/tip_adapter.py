"""Tip-Adapter and Tip-Adapter-F: class texts and a cache of support images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import TypeVar

from ogkd.methods.base import TextSide
from ogkd.methods.feature_method import FeatureMethod, PriorConfig, Rows, read_kernel, text_prior
from ogkd.methods.grid_search import search, trials
from ogkd.methods.heads import Head, KernelHead
from ogkd.methods.registry import register

# alpha and beta: 200 values each from 0.1 to 50, as in the benchmark (fidelity.md, baselines).
GRID = tuple((torch.arange(200, dtype=torch.float64) * 49.9 / 200 + 0.1).tolist())


class TipAdapterConfig(PriorConfig):
    """`alpha` and `beta` are searched if None; at one shot without validation they are 1, 5.5."""

    alpha: float | None = Field(default=None, ge=0)
    beta: float | None = Field(default=None, ge=0)


TipConfigT = TypeVar("TipConfigT", bound=TipAdapterConfig, default=TipAdapterConfig, covariant=True)


@register
class TipAdapter(FeatureMethod[TipConfigT]):
    """logits = scale v T' + alpha exp(-beta (1 - v K')) L.

    K are the features of the support images (keys), L their labels (values). alpha and beta
    come from a 200 x 200 grid on validation images, else by cross-validation.
    Named differences from the benchmark's code: a key is the whole image, not one augmented
    view; with views=N each crop is a key and an image's crops share its one vote; the scale is
    the backbone's own; ties in accuracy are broken by cross-entropy; each seed has its own
    few-shot set.
    """

    name = "tip-adapter"
    summary = "text and a cache of support images, nothing trained"
    citation = "Zhang et al., Tip-Adapter, ECCV 2022"
    uses_validation = True

    def keys(self, rows: Rows, T: Tensor, scale: float, seed: int) -> Tensor:
        """Return the keys K [R, d] of the rows."""
        return rows.features

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        config = self.config
        T, scale = text_prior(text, config.prior), text.backbone.logit_scale
        alpha, beta = self._choose(rows, T, scale, seed)
        K = self.keys(rows, T, scale, seed).contiguous()
        return KernelHead(T, scale, K, alpha * values(rows), beta)

    def folds(self) -> int:
        """The most folds of the cross-validation; without training they are cheap."""
        return 16

    def _choose(self, rows: Rows, T: Tensor, scale: float, seed: int) -> tuple[float, float]:
        config = self.config
        fixed = (config.alpha is not None, config.beta is not None)
        found = [] if all(fixed) else trials(rows, most=self.folds())
        if not found:
            alpha = 1.0 if config.alpha is None else config.alpha
            return alpha, 5.5 if config.beta is None else config.beta
        alphas = GRID if config.alpha is None else (config.alpha,)
        betas = GRID if config.beta is None else (config.beta,)
        caches = [
            cache_logits(t.features, self.keys(t.rows, T, scale, seed), values(t.rows), betas)
            for t in found
        ]
        features = torch.cat([t.features for t in found])
        labels = torch.cat([t.labels for t in found])
        best_beta, best_alpha = search(
            scale * features @ T.mT, torch.cat(caches, 1), alphas, labels
        )
        return alphas[best_alpha], betas[best_beta]

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        return read_kernel(tensors, scale)


class TipAdapterFConfig(TipAdapterConfig):
    """Keys are trained at `train_alpha` and `train_beta`; alpha and beta are searched after."""

    train_alpha: float = Field(default=1.0, gt=0)
    train_beta: float = Field(default=5.5, gt=0)
    epochs: int = Field(default=20, ge=0)
    batch_size: int = Field(default=256, ge=1)
    lr: float = Field(default=1e-3, gt=0)


@register
class TipAdapterF(TipAdapter[TipAdapterFConfig]):
    """Tip-Adapter whose keys K are trained by cross-entropy, starting at the cache.

    AdamW (eps 1e-4), cosine per step. Named differences from the benchmark's code: there, ten
    trainings for ten values of alpha share one tensor and the last training changes nothing;
    here K is trained once at the paper's alpha = 1, beta = 5.5, and once more in each fold of
    a cross-validation. The paper's own code keeps the epoch that is best on the test images;
    here the last one is kept.
    """

    name = "tip-adapter-f"
    summary = "Tip-Adapter with trained keys"

    def folds(self) -> int:
        return 4

    def keys(self, rows: Rows, T: Tensor, scale: float, seed: int) -> Tensor:
        config = self.config
        generator = torch.Generator().manual_seed(seed)
        K = rows.features.clone().requires_grad_()
        A = config.train_alpha * values(rows)
        optimiser = torch.optim.AdamW([K], lr=config.lr, eps=1e-4)
        batches = -(-len(K) // config.batch_size)
        steps = max(1, config.epochs * batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        head = KernelHead(T, scale, K, A, config.train_beta)
        for _ in range(config.epochs):
            for batch in torch.randperm(len(A), generator=generator).split(config.batch_size):
                loss = cross_entropy(head.logits(rows.features[batch]), rows.labels[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
        return K.detach()


def values(rows: Rows) -> Tensor:
    """The vote of each key: [R, C]; an image has one vote, shared by its views."""
    return rows.one_hot / rows.views


def cache_logits(features: Tensor, K: Tensor, A: Tensor, betas: Sequence[float]) -> Tensor:
    """exp(-beta (1 - v K')) A for every beta: [B, M, C]."""
    head = KernelHead(torch.zeros(A.shape[1], K.shape[1]), 0.0, K, A, 0.0)
    return torch.stack([replace(head, beta=beta).logits(features) for beta in betas])
