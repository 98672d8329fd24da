"""Prompt learning with an additive margin: the label must win by `margin` in cosine similarity."""

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from ogkd import losses
from ogkd.methods import Batch, PromptConfig, PromptMethod, TextSide, image_logits, register


class MarginConfig(PromptConfig):
    """Settings: those of every prompt learner, and the margin."""

    margin: float = Field(default=0.05, ge=0, le=2)  # in cosine similarity


class MarginLoss:
    """CE(z - scale * margin * onehot(y), y), with z = scale * cos(v, T_hat)."""

    def __init__(self, margin: float, scale: float) -> None:
        self.margin, self.scale = margin, scale

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        z = image_logits(T_hat, batch, self.scale)  # [S, B, C]: S runs are trained together
        lead = self.scale * self.margin * one_hot(batch.labels, z.shape[-1])
        return {"total": losses.cross_entropy(z - lead, batch.labels)}  # one value per run: [S]


@register
class MarginPrompts(PromptMethod[MarginConfig]):
    """A learned context whose class texts are separated by a margin."""

    name = "margin"
    summary = "learned context, cross-entropy with an additive margin"
    citation = "an example; the margin after Wang et al. 2018, AM-Softmax"

    def objective(self, text: TextSide) -> MarginLoss:
        return MarginLoss(self.config.margin, text.backbone.logit_scale)
