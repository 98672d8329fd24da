"""CoOp: cross-entropy alone on a learned context."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from ogkd.core.losses import cross_entropy
from ogkd.methods import (
    Batch,
    PromptConfig,
    PromptMethod,
    TextSide,
    TrainConfig,
    image_logits,
    register,
)


class CoOpTraining(TrainConfig):
    """The released baseline's settings (fidelity.md, baselines)."""

    batch_size: int = Field(default=32, ge=1)
    lr: float = Field(default=2e-3, gt=0)


class CoOpConfig(PromptConfig):
    """CoOp adds no setting."""

    train: CoOpTraining = CoOpTraining()


class CrossEntropy:
    """The average -log p_y of each run's batch."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """The one term [S], which is also the total."""
        ce = cross_entropy(image_logits(T_hat, batch, self.scale), batch.labels)
        return {"total": ce, "ce": ce}


@register
class CoOp(PromptMethod[CoOpConfig]):
    """Context optimisation: one context for all classes, class name at the end."""

    name = "coop"
    summary = "learned context, cross-entropy alone"
    citation = "Zhou et al. 2022, Learning to Prompt for Vision-Language Models"

    def objective(self, text: TextSide) -> CrossEntropy:
        return CrossEntropy(text.backbone.logit_scale)
