"""ProGrad: the gradient of cross-entropy, without what conflicts with zero-shot knowledge."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from ogkd.core.batches import Batch
from ogkd.core.losses import cross_entropy, logits
from ogkd.core.optimisers import TrainConfig
from ogkd.methods import PromptConfig, PromptMethod, TextSide, image_logits, register
from ogkd.methods.prompt_method import LARGE_BATCHES

# Student and teacher start as the same text: the first gradients of KL are rounding errors,
# about 1e-6 of the other, and have no meaning. Below this share none is used as a direction.
_ROUNDING = 1e-3


class ProGradConfig(PromptConfig):
    """The released settings."""

    temperature: float = Field(default=1.0, gt=0)  # of the divergence from zero-shot
    strength: float = Field(default=1.0, ge=0)  # how much of a conflict is removed (lambda)
    train: TrainConfig = LARGE_BATCHES


class ProGradObjective:
    """CE, and T^2 KL(teacher || student) at temperature T, which only changes the gradient.

    The teacher is zero-shot with one template per class, T_tea [C, d], as the paper says. In
    the released baseline's float32 path the teacher is the student itself, so the gradient of
    its KL is only rounding error (fidelity.md, baselines); that is not reproduced here.
    """

    def __init__(self, config: ProGradConfig, T_tea: Tensor, scale: float) -> None:
        self.config, self.T_tea, self.scale = config, T_tea, scale

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """CE [S], which is the total, and KL [S]."""
        temperature = self.config.temperature
        z = image_logits(T_hat, batch, self.scale)  # [S, B, C]
        log_p = (z / temperature).log_softmax(dim=-1)
        z_tea = logits(batch.globals, self.T_tea, self.scale)
        log_q = (z_tea / temperature).log_softmax(dim=-1)
        kl = (log_q.exp() * (log_q - log_p)).sum(dim=-1).mean(dim=-1) * temperature**2
        ce = cross_entropy(z, batch.labels)
        return {"total": ce, "ce": ce, "kl": kl}

    def gradient(self, terms: Mapping[str, Tensor], parameters: Tensor) -> Tensor:
        """The CE gradient of each run, its conflict with the KL gradient removed."""
        (general,) = torch.autograd.grad(terms["kl"].sum(), parameters, retain_graph=True)
        (task_gradient,) = torch.autograd.grad(terms["ce"].sum(), parameters)
        return project(task_gradient, general, self.config.strength)


def project(gradient: Tensor, general: Tensor, strength: float = 1.0) -> Tensor:
    """Change the gradient g [S, ...] of each run so that it does not oppose `general`, d.

    g where g . d >= 0, else g - strength (g . d / |d|^2) d.

    >>> project(torch.tensor([[1.0, -1.0], [1.0, 1.0]]), torch.tensor([[0.0, 2.0], [0.0, 2.0]]))
    tensor([[1., 0.],
            [1., 1.]])
    """
    g, direction = gradient.flatten(1), general.flatten(1)
    length = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
    known = length > _ROUNDING * torch.linalg.vector_norm(g, dim=1, keepdim=True)
    unit = direction / torch.where(known, length, 1.0)
    along = (g * unit).sum(dim=1, keepdim=True)
    bent = g - strength * along * unit
    return torch.where(known & (along < 0), bent, g).view_as(gradient)


@register
class ProGrad(PromptMethod[ProGradConfig]):
    """Prompt-aligned gradient."""

    name = "prograd"
    summary = "learned context, steps against zero-shot knowledge are projected out"
    citation = "Zhu et al. 2023, Prompt-aligned Gradient for Prompt Tuning"

    def objective(self, text: TextSide) -> ProGradObjective:
        T_tea = text.single.to(text.backbone.device)
        return ProGradObjective(self.config, T_tea, text.backbone.logit_scale)
