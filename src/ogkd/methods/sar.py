"""SAR: the similarities among learned texts, related names included, kept as those of templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.core.batches import Batch
from ogkd.core.losses import cross_entropy
from ogkd.core.optimisers import TrainConfig
from ogkd.core.prompting import PromptLearner
from ogkd.methods import Head, PromptConfig, PromptMethod, TextSide, image_logits, register
from ogkd.methods.heads import TextHead


class SARConfig(PromptConfig):
    """Without `related` names, only the classes count."""

    weight: float = Field(default=1.0, ge=0)  # of the term that keeps similarities
    alpha: float = Field(default=100.0, gt=0)  # sharpness of the rows of similarities
    related: tuple[str, ...] = ()  # names of other classes of the same kind
    train: TrainConfig = TrainConfig(batch_size=32, lr=2e-3)


class SARObjective:
    """CE + weight * mean_i KL(p_i || q_i), with p_i = softmax_j(alpha cos(t_i, t_j)), j != i.

    t are the texts of one template of all C + M names, q is p of the learned texts. Cross-entropy
    sees the first C, which are the classes.
    """

    def __init__(self, config: SARConfig, T: Tensor, classes: int, scale: float) -> None:
        self.config, self.classes, self.scale = config, classes, scale
        self.log_p = log_neighbours(T, config.alpha)  # [C + M, C + M - 1]

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """Both terms [S] and their weighted total; T_hat is [S, C + M, d]."""
        ce = cross_entropy(image_logits(T_hat[:, : self.classes], batch, self.scale), batch.labels)
        log_q = log_neighbours(T_hat, self.config.alpha)
        alignment = (self.log_p.exp() * (self.log_p - log_q)).sum(dim=-1).mean(dim=-1)
        return {"total": ce + self.config.weight * alignment, "ce": ce, "alignment": alignment}


def log_neighbours(T: Tensor, alpha: float) -> Tensor:
    """Log-softmax of alpha times the cosines of each text [.., n, d] with the n - 1 others.

    >>> log_neighbours(torch.eye(3), 1.0).exp()
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    T = normalize(T, dim=-1)
    n = T.shape[-2]
    others = ~torch.eye(n, dtype=torch.bool, device=T.device)
    cosines = (T @ T.mT)[..., others].unflatten(-1, (n, n - 1))
    logs: Tensor = (alpha * cosines).log_softmax(dim=-1)
    return logs


@register
class SAR(PromptMethod[SARConfig]):
    """Similarity alignment regularisation, after the abstract.

    The paper's loss could not be read; this is its description: with related class names beside
    the classes, similarities among the texts of learned prompts are aligned with those of
    hand-crafted ones. Where the paper samples names at random in each step, all are used.
    """

    name = "sar"
    summary = "learned context, similarities among texts kept (after the paper's abstract)"
    citation = "Jung and Lee 2025, Similarity Alignment Regularization, arXiv 2502.11969"

    def learner(self, text: TextSide) -> PromptLearner:
        return super().learner(self._with_related(text))

    def objective(self, text: TextSide) -> SARObjective:
        T = self._with_related(text).single.to(text.backbone.device)
        classes = len(text.class_names)
        return SARObjective(self.config, T, classes, text.backbone.logit_scale)

    def head(self, learner: PromptLearner, context: Tensor) -> Head:
        head = super().head(learner, context)
        assert isinstance(head, TextHead)
        related = len(self.config.related)
        return replace(head, T=head.T[: len(head.T) - related])

    def _with_related(self, text: TextSide) -> TextSide:
        return TextSide(text.backbone, (*text.class_names, *self.config.related), text.prompts)
