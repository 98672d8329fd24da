"""Tip-Adapter and Tip-Adapter-F: class texts and a cache of support images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import TypeVar

from ogkd.methods import Head, KernelHead, TextSide, register
from ogkd.methods.feature_method import FeatureMethod, PriorConfig, RivalConfig, Rows, text_prior
from ogkd.methods.grid_search import Trial, choose

# alpha and beta: 200 values each from 0.1 to 50, as in the benchmark (fidelity.md, baselines).
RELEASED_ALPHAS = tuple(float(alpha) for alpha in range(10))
GRID = tuple((torch.arange(200, dtype=torch.float64) * 49.9 / 200 + 0.1).tolist())


class TipAdapterConfig(PriorConfig, RivalConfig):
    """`alpha` and `beta` are searched if None; at one shot without validation they are 1, 5.5."""

    alpha: float | None = Field(default=None, ge=0)  # weight of the cache; None: searched
    beta: float | None = Field(default=None, ge=0)  # sharpness of the cache; None: searched


TipConfigT = TypeVar("TipConfigT", bound=TipAdapterConfig, default=TipAdapterConfig, covariant=True)


@register
class TipAdapter(FeatureMethod[TipConfigT]):
    """logits = scale v T' + alpha exp(-beta (1 - v K')) L.

    K are the features of the support images (keys), L their labels (values). alpha and beta
    come from a 200 x 200 grid on validation images, else by cross-validation.
    Named differences from the benchmark's code, unless fidelity is "released": a key is the whole
    image, not one augmented view; with views=N each crop is a key and an image's crops share its
    one vote; ties in accuracy are broken by cross-entropy; each seed has its own few-shot set.
    In both, the scale is the backbone's own.
    """

    name = "tip-adapter"
    summary = "text and a cache of support images, nothing trained"
    citation = "Zhang et al., Tip-Adapter, ECCV 2022"
    uses_validation = True
    folds: ClassVar[int] = 16  # of the cross-validation, at most: without training they are cheap

    def keys(self, rows: Rows, T: Tensor, scale: float, seed: int) -> Tensor:
        """Return the keys K [R, d] of the rows: of the first view only, as released."""
        return self._cached(rows).features

    def _cached(self, rows: Rows) -> Rows:
        """The rows that have a key."""
        return rows.view(0) if self.as_benchmarked else rows

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        T, scale = text_prior(text, self.config.prior), text.backbone.logit_scale
        alpha, beta = self._choose(rows, T, scale, seed)
        K = self.keys(rows, T, scale, seed).contiguous()
        return KernelHead(T, scale, K, alpha * values(self._cached(rows)), beta)

    def _choose(self, rows: Rows, T: Tensor, scale: float, seed: int) -> tuple[float, float]:
        alpha, beta = self.config.alpha, self.config.beta
        if alpha is not None and beta is not None:
            return alpha, beta
        alphas = GRID if alpha is None else (alpha,)
        betas = GRID if beta is None else (beta,)

        def cache(trial: Trial) -> Tensor:
            K = self.keys(trial.rows, T, scale, seed)
            return cache_logits(trial.features, K, values(self._cached(trial.rows)), betas)

        first = self.as_benchmarked
        best = choose(rows, cache, alphas, T=T, scale=scale, most=self.folds, first=first)
        if best is None:
            return 1.0 if alpha is None else alpha, 5.5 if beta is None else beta
        return alphas[best[1]], betas[best[0]]


class TipAdapterFConfig(TipAdapterConfig):
    """Keys are trained at `train_alpha` and `train_beta`; alpha and beta are searched after."""

    train_alpha: float = Field(default=1.0, gt=0)  # alpha while the keys are trained
    train_beta: float = Field(default=5.5, gt=0)  # beta while the keys are trained
    epochs: int = Field(default=20, ge=0)  # passes over the images
    batch_size: int = Field(default=256, ge=1)  # images in each step
    lr: float = Field(default=1e-3, gt=0)  # learning rate


@register
class TipAdapterF(TipAdapter[TipAdapterFConfig]):
    """Tip-Adapter whose keys K are trained by cross-entropy, starting at the cache.

    AdamW (eps 1e-4), cosine per step. Named differences from the benchmark's code: there, ten
    trainings for ten values of alpha share one tensor and the last training changes nothing;
    here K is trained once at the paper's alpha = 1, beta = 5.5, and once more in each fold of
    a cross-validation. The paper's own code keeps the epoch that is best on the test images;
    here the last one is kept. With fidelity "released" the keys are trained ten times over, at
    alpha = 0 to 9 and beta = 1; an epoch sees one of 20 augmented views, the same in each of
    the ten (there always a new one).
    """

    name = "tip-adapter-f"
    summary = "Tip-Adapter with trained keys"
    folds = 4
    augmented = 21  # the keys, and one for each epoch

    def keys(self, rows: Rows, T: Tensor, scale: float, seed: int) -> Tensor:
        config, released = self.config, self.as_benchmarked
        generator = torch.Generator().manual_seed(seed)
        cached = self._cached(rows)
        K = cached.features.clone().requires_grad_()
        # Fidelity.md, 46: the ten trainings of the search for alpha share one tensor.
        alphas = RELEASED_ALPHAS if released else (config.train_alpha,)
        beta = 1.0 if released else config.train_beta
        for alpha in alphas:
            optimiser = torch.optim.AdamW([K], lr=config.lr, eps=1e-4)
            batches = -(-len(K) // config.batch_size)
            steps = max(1, config.epochs * batches)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
            head = KernelHead(T, scale, K, alpha * values(cached), beta)
            first = 1 if released else None
            for _, batch in rows.batches(config.epochs, config.batch_size, generator, first=first):
                loss = cross_entropy(head.logits(batch.features), batch.labels)
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
