"""CLIP-Adapter: a small network on the image feature, mixed with the feature itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from ogkd.methods import Head, TextSide, register
from ogkd.methods.feature_method import FeatureMethod, PriorConfig, RivalConfig, Rows, text_prior
from ogkd.methods.heads import ClassTextHead, take

_WARM_UP = 1e-5  # the learning rate of the first step, as released


class ClipAdapterConfig(PriorConfig, RivalConfig):
    """The benchmark's settings."""

    ratio: float = Field(default=0.5, ge=0, le=1)  # share of the adapted feature (alpha)
    reduction: int = Field(default=4, ge=1)  # the hidden layer is so many times narrower
    epochs: int = Field(default=20, ge=0)  # passes over the images
    batch_size: int = Field(default=32, ge=1)  # images in each step
    lr: float = Field(default=0.01, gt=0)  # learning rate


@dataclass(frozen=True)
class AdapterHead(ClassTextHead):
    """scale * normalise(ratio relu(relu(v W1') W2') + (1 - ratio) v) T'.

    Without `renormalise` the mixed feature is used as it is (fidelity.md, 47).
    """

    W1: Tensor  # [h, d]
    W2: Tensor  # [d, h]
    ratio: float
    renormalise: bool = True

    def logits(self, features: Tensor) -> Tensor:
        v = normalize(features, dim=-1)
        adapted = ((v @ self.W1.mT).relu() @ self.W2.mT).relu()
        mixed = self.ratio * adapted + (1 - self.ratio) * v
        mixed = normalize(mixed, dim=-1) if self.renormalise else mixed
        return self.scale * mixed @ self.T.mT

    def tensors(self) -> dict[str, Tensor]:
        ratio = torch.tensor(self.ratio, dtype=torch.float64)
        raw = {} if self.renormalise else {"raw": torch.ones(())}
        return {"T": self.T.contiguous(), "W1": self.W1, "W2": self.W2, "ratio": ratio} | raw


@register
class ClipAdapter(FeatureMethod[ClipAdapterConfig]):
    """f* = alpha A(f) + (1 - alpha) f with A(f) = ReLU(ReLU(f W1) W2), then cosine with T.

    No biases, d -> d/4 -> d, cross-entropy by plain SGD, cosine per epoch.
    Named differences from the benchmark's code, unless fidelity is "released": f* is normalised
    again before the cosine, as CLIP-Adapter's own code does; the learning rate goes down once over
    the epochs (there it is stepped per iteration and falls and rises every 20 steps); features are
    of the whole image or of cached crops; each seed has its own few-shot set. alpha = 0.5 is the
    benchmark's; the method's own code has 0.2. In "released" an epoch sees its own augmented view
    of each image.
    """

    name = "clip-adapter"
    summary = "a small network on the image feature, mixed with it"
    citation = "Gao et al., CLIP-Adapter, IJCV 2023"
    augmented = 20  # one for each epoch

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        config, released = self.config, self.as_benchmarked
        T, scale = text_prior(text, config.prior), text.backbone.logit_scale
        generator = torch.Generator().manual_seed(seed)
        d = T.shape[1]
        hidden = max(1, d // config.reduction)
        W1 = _uniform(hidden, d, generator).requires_grad_()
        W2 = _uniform(d, hidden, generator).requires_grad_()
        head = AdapterHead(T, scale, W1, W2, config.ratio, renormalise=not released)
        optimiser = torch.optim.SGD([W1, W2], lr=config.lr)
        first = 0 if released else None
        batches = rows.batches(config.epochs, config.batch_size, generator, first=first)
        for step, (epoch, batch) in enumerate(batches):
            optimiser.param_groups[0]["lr"] = self._rate(step if released else epoch)
            loss = cross_entropy(head.logits(batch.features), batch.labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return replace(head, W1=W1.detach(), W2=W2.detach())

    def _rate(self, time: int) -> float:
        """The learning rate: of an epoch; of a step, as released, after one of warm-up."""
        config = self.config
        if self.as_benchmarked:
            if time == 0:
                return _WARM_UP
            time -= 1
        return config.lr * (1 + math.cos(math.pi * time / config.epochs)) / 2

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        T, W1, W2 = take(tensors, T="Cd", W1="hd", W2="dh")
        ratio, raw = float(tensors["ratio"]), "raw" in tensors
        return AdapterHead(T, scale, W1, W2, ratio, renormalise=not raw)


def _uniform(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """The usual initial values of a linear layer: uniform within 1 / sqrt(inputs)."""
    bound = 1 / math.sqrt(columns)
    return torch.empty(rows, columns).uniform_(-bound, bound, generator=generator)
