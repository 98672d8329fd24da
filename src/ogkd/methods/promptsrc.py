"""PromptSRC in its text-only form: texts and logits kept near those of the bank, an average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import TypeVar

from ogkd.core.batches import Batch
from ogkd.core.geometry import prototypes
from ogkd.core.losses import cross_entropy, logits
from ogkd.core.optimisers import TrainConfig
from ogkd.methods import PromptConfig, PromptMethod, TextSide, image_logits, register


class AnchoredConfig(PromptConfig):
    """The weights of the two terms that keep a prompt learner near the bank's zero-shot."""

    lambda_l1: float = Field(default=25.0, ge=0)  # weight of the distance to the bank's texts
    lambda_kl: float = Field(default=1.0, ge=0)  # weight of the divergence from zero-shot's answers
    n_prompts: int = Field(default=50, ge=1)  # prompts of the bank used per class, at most


class AnchoredObjective:
    """CE + lambda_l1 mean|T_hat - T| + lambda_kl KL(zero-shot || student) / (B C).

    T [C, d] are the bank's prototypes, zero-shot its logits of the same images. T_hat has unit
    rows, and the L1 term is the mean over classes and features.
    """

    def __init__(self, config: AnchoredConfig, bank: Sequence[Tensor], scale: float) -> None:
        self.config, self.scale = config, scale
        self.T = prototypes([rows[: config.n_prompts] for rows in bank])

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """Each term [S] and their weighted total."""
        z = image_logits(T_hat, batch, self.scale)  # [S, B, C]
        log_p = z.log_softmax(dim=-1)
        with torch.no_grad():
            v = batch.extra.get("frozen", batch.globals)
            log_q = logits(v, self.T, self.scale).log_softmax(dim=-1)
        ce = cross_entropy(z, batch.labels)
        l1 = (T_hat - self.T).abs().mean(dim=(-2, -1))
        kl = (log_q.exp() * (log_q - log_p)).mean(dim=(-2, -1))
        total = ce + self.config.lambda_l1 * l1 + self.config.lambda_kl * kl
        return {"total": total, "ce": ce, "l1": l1, "kl": kl}


AnchoredT = TypeVar("AnchoredT", bound=AnchoredConfig, default=AnchoredConfig, covariant=True)


class AnchoredMethod(PromptMethod[AnchoredT]):
    """The base of prompt learners with this objective."""

    def objective(self, text: TextSide) -> AnchoredObjective:
        bank = [rows.to(text.backbone.device) for rows in text.bank]
        return AnchoredObjective(self.config, bank, text.backbone.logit_scale)


class PromptSRCTextConfig(AnchoredConfig):
    """The released few-shot settings; `train.average` is the Gaussian over epochs."""

    train: TrainConfig = TrainConfig(epochs=50, average=(30.0, 30.0))


@register
class PromptSRCText(AnchoredMethod[PromptSRCTextConfig]):
    """Self-regulating prompts without visual ones: CE, L1 to the templates, KL to zero-shot.

    Named differences from the paper: no tokens in the image tower, so its features are those of
    zero-shot and the L1 between both (weight 10) is zero; context at the input alone, not in
    blocks 1-9; the templates are this project's bank, not 60 templates of ImageNet. Kept: the
    weights 25 and 1, SGD, batches of four, and the average of contexts over epochs.
    """

    name = "promptsrc-text"
    summary = "learned context near the bank's texts and logits, averaged over epochs"
    citation = "Khattak et al. 2023, Self-regulating Prompts (PromptSRC), without visual prompts"
