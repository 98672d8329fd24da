"""CoCoOp: a context that a small network shifts for each image, learned with cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.backbones.base import Backbone, TextDropout
from ogkd.core.losses import logits
from ogkd.core.prompting import ContextConfig, PackedLearner, PromptLearner
from ogkd.methods import Head, PromptConfig, PromptMethod, TextSide, TrainConfig, register
from ogkd.methods.coop import CrossEntropy

_TOKENS_AT_ONCE = 4096  # in prediction: a few hundred MB in a text tower of BERT's size
_NARROWING = 16  # the meta-net's hidden layer is d / 16 wide


class CoCoOpConfig(PromptConfig):
    """The released baseline's settings (fidelity.md, baselines): one image at a time."""

    train: TrainConfig = TrainConfig(epochs=10, batch_size=1, lr=1e-3)


class ImagePromptLearner(PackedLearner):
    """Prompts whose context is context + M(v), with v an image's feature.

    M(v) = W2 relu(W1 v + b1) + b2 gives one vector [w] for all places of the context. The
    context, W1, b1, W2 and b2 of a run are one row of numbers, in this order.
    """

    def __init__(
        self, backbone: Backbone, class_names: Sequence[str], config: ContextConfig
    ) -> None:
        super().__init__(backbone, class_names, config)
        d, w = backbone.embed_dim, backbone.text_width
        narrow = max(1, d // _NARROWING)
        self.shapes = {
            "context": (config.n_ctx, w),
            "W1": (narrow, d),
            "b1": (narrow,),
            "W2": (w, narrow),
            "b2": (w,),
        }

    def start(self, generator: torch.Generator) -> dict[str, Tensor]:
        """The context starts as in CoOp, the meta-net as torch initialises a linear layer."""
        parts = {"context": PromptLearner.initial_context(self, generator)}
        for name in ("W1", "b1", "W2", "b2"):
            bound = self.shapes[f"W{name[1]}"][1] ** -0.5
            start = torch.empty(self.shapes[name])
            parts[name] = start.uniform_(-bound, bound, generator=generator)
        return parts

    def text_features(
        self, contexts: Tensor, *, images: Tensor | None = None, dropout: TextDropout | None = None
    ) -> Tensor:
        """T_hat [S, B, C, d] of every image [S, B, d], in one pass of S * B * C prompts."""
        assert images is not None
        parts = self.split(contexts)  # of [S, n]
        hidden = (images @ parts["W1"].mT + parts["b1"].unsqueeze(1)).relu()
        shift = hidden @ parts["W2"].mT + parts["b2"].unsqueeze(1)  # [S, B, w]
        shifted = (parts["context"].unsqueeze(1) + shift.unsqueeze(2)).flatten(0, 1)
        T_hat = super().text_features(shifted, dropout=dropout)
        return T_hat.view(*images.shape[:2], *T_hat.shape[1:])


@dataclass(frozen=True)
class ImagePromptHead(Head):
    """Logits from texts computed for each image, a few images at a time to bound memory."""

    learner: ImagePromptLearner
    parameters: Tensor  # [n]
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.learner.class_names), self.learner.backbone.embed_dim

    @property
    def export_error(self) -> str:
        return (
            "The method computes new class texts for every image and needs the whole text tower "
            "to predict. Fit a method that learns one text per class instead."
        )

    @torch.no_grad()
    def logits(self, features: Tensor) -> Tensor:
        device = self.learner.embeddings.device
        v = normalize(features.to(device, torch.float32), dim=-1)
        at_once = max(1, _TOKENS_AT_ONCE // self.learner.tokens.ids.numel())
        scores = [self._some(rows) for rows in v.split(at_once) if len(rows)]
        return torch.cat([v.new_empty(0, self.shape[0]), *scores]).to(features.device)

    def _some(self, v: Tensor) -> Tensor:
        parameters = self.parameters.to(v.device).unsqueeze(0)
        T_hat = self.learner.text_features(parameters, images=v.unsqueeze(0))[0]  # [N, C, d]
        return logits(v.unsqueeze(-2), T_hat, self.scale).squeeze(-2)

    def tensors(self) -> dict[str, Tensor]:
        parts = self.learner.split(self.parameters)
        return {name: part.clone() for name, part in parts.items()}


@register
class CoCoOp(PromptMethod[CoCoOpConfig]):
    """Conditional context optimisation. Prediction runs the text tower for every image."""

    name = "cocoop"
    summary = "learned context, shifted for each image by a small network"
    citation = "Zhou et al. 2022, Conditional Prompt Learning for Vision-Language Models"
    cost = "slow"

    def objective(self, text: TextSide) -> CrossEntropy:
        return CrossEntropy(text.backbone.logit_scale)

    def learner(self, text: TextSide) -> ImagePromptLearner:
        return ImagePromptLearner(text.backbone, text.class_names, self.config.context)

    def head(self, learner: PromptLearner, context: Tensor) -> Head:
        scale = learner.backbone.logit_scale
        return ImagePromptHead(cast(ImagePromptLearner, learner), context, scale)

    def learned(self, head: Head) -> Tensor:
        return cast(ImagePromptHead, head).parameters

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        learner = self.learner(text)
        return ImagePromptHead(learner, learner.join(tensors), scale)
