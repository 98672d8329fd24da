"""CoOp: cross-entropy alone on a learned context."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ogkd.core.batches import Batch
from ogkd.core.losses import cross_entropy
from ogkd.core.optimisers import TrainConfig
from ogkd.methods import PromptConfig, PromptMethod, TextSide, image_logits, register


class CoOpConfig(PromptConfig):
    """The released baseline's settings (fidelity.md, baselines)."""

    train: TrainConfig = TrainConfig(batch_size=32, lr=2e-3)


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
