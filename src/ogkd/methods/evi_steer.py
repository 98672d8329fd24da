"""Evi-Steer: gated low-rank steps before the blocks of both towers, weighted by evidence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from ogkd.backbones.base import Backbone
from ogkd.backbones.changes import Change, depth, image_width
from ogkd.core.batches import Batch
from ogkd.core.optimisers import TrainConfig
from ogkd.core.prompting import ContextConfig
from ogkd.methods import PromptConfig, TextSide, register
from ogkd.methods.coop import CrossEntropy
from ogkd.methods.tower_method import Shapes, TowerMethod

_SMALL = 1e-6


class EviSteerConfig(PromptConfig):
    """The released settings, the same for all datasets."""

    rank: int = Field(default=4, ge=1)  # of the steps
    lambda_kl: float = Field(default=1e-4, ge=0)  # weight of the evidence's divergence
    context: ContextConfig = ContextConfig(template="a photo of a {}.")
    train: TrainConfig = TrainConfig(
        optimiser="adamw", batch_size=16, lr=7.5e-4, weight_decay=0.01, warmup_epochs=0,
        drop_last=False,
    )  # fmt: skip


class EvidenceSteps(Change):
    """Before each block but the first, x += sigmoid(g) sigmoid(w' c) up(z_mu).

    [z_mu, z_u] = down(x). alpha = softplus(z_u^2) + 1 is a concentration, u = 1 / alpha its
    uncertainty. In the text tower the confidence c is 1 - u. In the image tower it is that of both
    towers by Dempster's rule, c = m_t m_v / (1 - m_t u_v - u_t m_v) with m = 1 - u, where u_t is
    the mean over the classes' first tokens, left here by the text pass.
    """

    def __init__(self, parts: Mapping[str, Tensor], doubt: Tensor | None = None) -> None:
        self.parts = parts
        self.doubt: dict[int, Tensor] = {}  # u_t [r] of each block
        if doubt is not None:
            self.doubt = dict(enumerate(doubt, start=1))
        # In training: of the text's first tokens and of all image tokens, by tower and block.
        self.alphas: dict[tuple[str, int], list[Tensor]] = {}

    def text(self, number: int, tokens: Tensor) -> Tensor:
        if not self._steps(number):
            return tokens
        mu, alpha = self._evidence("text", number, tokens)
        first = alpha[:, 0]  # [C, r]
        self.doubt[number] = (1 / first).mean(dim=0)
        self._note("text", number, first)
        return tokens + self._step("text", number, mu, 1 - 1 / alpha)

    def image(self, number: int, tokens: Tensor) -> Tensor:
        if not self._steps(number):
            return tokens
        mu, alpha = self._evidence("image", number, tokens)
        self._note("image", number, alpha)
        u_v, u_t = 1 / alpha, self.doubt[number]
        m_v, m_t = 1 - u_v, 1 - u_t
        conflict = m_t * u_v + u_t * m_v
        return tokens + self._step("image", number, mu, m_t * m_v / (1 - conflict + _SMALL))

    def kl(self) -> Tensor:
        """The mean over blocks of `gamma_kl`, summed over both towers."""
        return sum(
            torch.stack(
                [gamma_kl(torch.cat(a)) for (tower, _), a in self.alphas.items() if tower == name]
            ).mean()
            for name in ("text", "image")
        )  # type: ignore[return-value]

    def _note(self, tower: str, number: int, alpha: Tensor) -> None:
        if torch.is_grad_enabled():
            self.alphas.setdefault((tower, number), []).append(alpha)

    def _steps(self, number: int) -> bool:
        return 0 < number <= len(self.parts["gate"][0])

    def _evidence(self, tower: str, number: int, tokens: Tensor) -> tuple[Tensor, Tensor]:
        mu, energy = (tokens @ self.parts[f"{tower}_down"][number - 1].mT).chunk(2, dim=-1)
        return mu, softplus(energy.square()) + _SMALL + 1

    def _step(self, tower: str, number: int, mu: Tensor, confidence: Tensor) -> Tensor:
        row, block = int(tower == "image"), number - 1
        gate = (confidence @ self.parts["w"][row, block]).sigmoid().unsqueeze(-1)
        up = self.parts[f"{tower}_up"][block]
        return self.parts["gate"][row, block].sigmoid() * gate * (mu @ up.mT)


class EviSteerObjective(CrossEntropy):
    """CE + lambda_kl KL(Gamma(alpha, 1) || Gamma(1, 1)), means over blocks, of both towers."""

    def __init__(self, lambda_kl: float, scale: float) -> None:
        super().__init__(scale)
        self.lambda_kl = lambda_kl

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        terms = dict(super().__call__(T_hat, batch))
        kl = batch.extra["kl"]
        return terms | {"total": terms["total"] + self.lambda_kl * kl, "kl": kl}


def gamma_kl(alpha: Tensor) -> Tensor:
    """The mean of KL(Gamma(alpha, 1) || Gamma(1, 1)): (a - 1) digamma(a) - log Gamma(a).

    >>> gamma_kl(torch.tensor([1.0, 1.0]))
    tensor(0.)
    """
    return ((alpha - 1) * torch.digamma(alpha) - torch.lgamma(alpha)).mean()


@register
class EviSteer(TowerMethod[EviSteerConfig]):
    """Evidential steering of both towers, one setting for all datasets.

    down [2 r, w] starts as torch's linear layers do, up [w, r] at zero, so the fit starts at
    zero-shot with one template. Named differences from the released code: the rate is one cosine
    over the epochs (there it is stepped 400 times, and falls and rises again); the text tower's
    dropout is off (there it is on in training).
    """

    name = "evi-steer"
    summary = "gated low-rank steps in both towers, weighted by evidence"
    citation = "Evi-Steer, MICCAI 2026 (HealthX-Lab)"

    def shapes(self, backbone: Backbone) -> Shapes:
        r, steps = self.config.rank, depth(backbone) - 1
        w, width = backbone.text_width, image_width(backbone)
        return {
            "text_down": (steps, 2 * r, w),
            "text_up": (steps, w, r),
            "image_down": (steps, 2 * r, width),
            "image_up": (steps, width, r),
            "w": (2, steps, r),
            "gate": (2, steps),
        }

    def start(self, backbone: Backbone, generator: torch.Generator) -> Mapping[str, Tensor]:
        parts = {name: torch.zeros(shape) for name, shape in self.shapes(backbone).items()}
        for name in ("text_down", "image_down", "w"):
            bound = parts[name].shape[-1] ** -0.5
            parts[name].uniform_(-bound, bound, generator=generator)
        return parts

    def change(self, backbone: Backbone, parts: Mapping[str, Tensor]) -> Change:
        return EvidenceSteps(parts, parts.get("doubt"))

    def extra(self, backbone: Backbone, pixels: Tensor, change: Change) -> dict[str, Tensor]:
        assert isinstance(change, EvidenceSteps)
        return {"kl": change.kl().unsqueeze(0)}

    def kept(self, change: Change) -> dict[str, Tensor]:
        assert isinstance(change, EvidenceSteps)
        return {"doubt": torch.stack(list(change.doubt.values())).detach().cpu()}

    def objective(self, text: TextSide) -> EviSteerObjective:
        return EviSteerObjective(self.config.lambda_kl, text.backbone.logit_scale)
