"""KgCoOp: cross-entropy, and the learned texts kept near those of one plain template."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ogkd.core.batches import Batch
from ogkd.core.losses import cross_entropy
from ogkd.core.optimisers import TrainConfig
from ogkd.methods import PromptConfig, PromptMethod, TextSide, image_logits, register
from ogkd.methods.prompt_method import LARGE_BATCHES


class KgCoOpConfig(PromptConfig):
    """The released settings."""

    weight: float = Field(default=8.0, ge=0)  # of the distance to the texts (lambda); 0: CoOp
    train: TrainConfig = LARGE_BATCHES


class KgCoOpObjective:
    """CE + weight * (1 - mean_c cos(T_hat_c, T_c)), T of one template per class [C, d].

    This is the released form. The paper has the mean of |T_hat_c - T_c|^2, which is twice as
    large on unit vectors: its lambda is half of this weight.
    """

    def __init__(self, weight: float, T: Tensor, scale: float) -> None:
        self.weight, self.T, self.scale = weight, T, scale

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """Both terms [S] and their weighted total."""
        ce = cross_entropy(image_logits(T_hat, batch, self.scale), batch.labels)
        knowledge = 1 - cosine_similarity(T_hat, self.T, dim=-1).mean(dim=-1)
        return {"total": ce + self.weight * knowledge, "ce": ce, "knowledge": knowledge}


@register
class KgCoOp(PromptMethod[KgCoOpConfig]):
    """Knowledge-guided context optimisation."""

    name = "kgcoop"
    summary = "learned context, its texts kept near one plain template"
    citation = "Yao et al. 2023, Visual-Language Prompt Tuning with Knowledge-guided CoOp"

    def objective(self, text: TextSide) -> KgCoOpObjective:
        T = text.single.to(text.backbone.device)
        return KgCoOpObjective(self.config.weight, T, text.backbone.logit_scale)
