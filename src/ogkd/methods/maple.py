"""MaPLe and PromptSRC: learned tokens in the blocks of both towers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from ogkd.backbones.base import Backbone
from ogkd.backbones.changes import Change, depth, image_width
from ogkd.core.batches import Batch
from ogkd.core.optimisers import TrainConfig
from ogkd.core.prompting import ContextConfig
from ogkd.methods import PromptConfig, TextSide, register
from ogkd.methods.promptsrc import AnchoredConfig, AnchoredObjective
from ogkd.methods.tower_method import Shapes, TowerMethod

_SPREAD = 0.02  # of learned tokens at the start


class DeepPrompts(Change):
    """Tokens V [J, n, w] in the image tower and words P [J - 1, n, w] in the text tower.

    V_0 is appended to the patches before the first block; before block j < J, from 0, V_j replaces
    these tokens and P_(j-1) the words of the context.
    """

    def __init__(self, V: Tensor, P: Tensor, leading: int) -> None:
        self.V, self.P, self.leading = V, P, leading  # special tokens before the context

    def image(self, number: int, tokens: Tensor) -> Tensor:
        if number >= len(self.V):
            return tokens
        kept = tokens if number == 0 else tokens[:, : -self.V.shape[1]]
        return torch.cat([kept, self.V[number].expand(len(tokens), -1, -1)], dim=1)

    def text(self, number: int, tokens: Tensor) -> Tensor:
        if not 0 < number <= len(self.P):
            return tokens
        words = self.P[number - 1].expand(len(tokens), -1, -1)
        before, after = tokens[:, : self.leading], tokens[:, self.leading + words.shape[1] :]
        return torch.cat([before, words, after], dim=1)


class DeepConfig(PromptConfig):
    """Settings of methods with learned tokens in blocks."""

    depth: int = Field(default=9, ge=1)  # blocks J of each tower whose tokens are learned


class MaPLeConfig(DeepConfig):
    """The released few-shot settings."""

    context: ContextConfig = ContextConfig(n_ctx=2, template="a photo of a {}.")
    train: TrainConfig = TrainConfig(epochs=5, lr=3.5e-3)


@register
class MaPLe(TowerMethod[MaPLeConfig]):
    """Multi-modal prompt learning: V_j = P_j L_j' + l_j, cross-entropy.

    P_0 is the context (two words of "a photo of a"), P_1 .. P_(J-1) start at N(0, 0.02); L_j
    [w_image, w_text] and l_j are one linear layer for each of the J blocks, started as torch does.
    """

    name = "maple"
    summary = "learned words in the text tower, projected to tokens of the image tower"
    citation = "Khattak et al. 2023, MaPLe: Multi-modal Prompt Learning"

    def shapes(self, backbone: Backbone) -> Shapes:
        J, n = min(self.config.depth, depth(backbone)), self.config.context.n_ctx
        w, width = backbone.text_width, image_width(backbone)
        return {"context": (n, w), "P": (J - 1, n, w), "L": (J, width, w), "l": (J, width)}

    def start(self, backbone: Backbone, generator: torch.Generator) -> Mapping[str, Tensor]:
        shapes, bound = self.shapes(backbone), backbone.text_width**-0.5
        linear = {
            name: torch.empty(shapes[name]).uniform_(-bound, bound, generator=generator)
            for name in ("L", "l")
        }
        return {"P": _SPREAD * torch.randn(shapes["P"], generator=generator), **linear}

    def change(self, backbone: Backbone, parts: Mapping[str, Tensor]) -> Change:
        words = torch.cat([parts["context"].unsqueeze(0), parts["P"]])  # [J, n, w]
        V = words @ parts["L"].mT + parts["l"].unsqueeze(1)
        return DeepPrompts(V, parts["P"], backbone.leading_tokens)


class PromptSRCConfig(AnchoredConfig, DeepConfig):
    """The released few-shot settings; `train.average` is the Gaussian over epochs."""

    lambda_image: float = Field(default=10.0, ge=0)  # weight of the distance to frozen features
    train: TrainConfig = TrainConfig(epochs=50, average=(30.0, 30.0))


class PromptSRCObjective(AnchoredObjective):
    """The text-only objective + lambda_image mean|v_hat - v|, v the feature of the frozen tower.

    The zero-shot logits are those of v.
    """

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        terms = dict(super().__call__(T_hat, batch))
        image = (batch.globals - batch.extra["frozen"]).abs().mean(dim=(-2, -1))
        weight = self.config.lambda_image  # type: ignore[attr-defined]
        return terms | {"total": terms["total"] + weight * image, "image": image}


@register
class PromptSRC(TowerMethod[PromptSRCConfig]):
    """Self-regulating prompts: independent words and tokens in both towers, kept near zero-shot.

    Four words and four tokens in J = 9 blocks; N(0, 0.02) but for the context, "a photo of a".
    Named difference: the templates are the prompt bank's, not 60 templates of ImageNet.
    """

    name = "promptsrc"
    summary = "learned tokens in both towers, kept near zero-shot, averaged over epochs"
    citation = "Khattak et al. 2023, Self-regulating Prompts (PromptSRC)"

    def shapes(self, backbone: Backbone) -> Shapes:
        J, n = min(self.config.depth, depth(backbone)), self.config.context.n_ctx
        w, width = backbone.text_width, image_width(backbone)
        return {"context": (n, w), "P": (J - 1, n, w), "V": (J, n, width)}

    def start(self, backbone: Backbone, generator: torch.Generator) -> Mapping[str, Tensor]:
        shapes = self.shapes(backbone)
        return {n: _SPREAD * torch.randn(shapes[n], generator=generator) for n in ("P", "V")}

    def change(self, backbone: Backbone, parts: Mapping[str, Tensor]) -> Change:
        return DeepPrompts(parts["V"], parts["P"], backbone.leading_tokens)

    def extra(self, backbone: Backbone, pixels: Tensor, change: Change) -> dict[str, Tensor]:
        return {"frozen": backbone.encode_images(pixels, patches=False).globals.unsqueeze(0)}

    def objective(self, text: TextSide) -> PromptSRCObjective:
        bank = [rows.to(text.backbone.device) for rows in text.bank]
        return PromptSRCObjective(self.config, bank, text.backbone.logit_scale)
