"""BiomedCoOp: cross-entropy, SCCM, and distillation from a selective ensemble of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field
from torch import Tensor

from ogkd.core.teacher import Selector
from ogkd.methods import Batch, PromptConfig, PromptMethod, TextSide, register
from ogkd.methods.ogkd import OGKDConfig, OGKDObjective


class BiomedCoOpConfig(PromptConfig):
    """The weights of its two added terms, and how the teacher chooses prompts."""

    lambda_sccm: float = Field(default=1.0, ge=0)  # weight of the distance to the bank's texts
    lambda_kdsp: float = Field(default=1.0, ge=0)  # weight of the teacher's answers
    tau: float = Field(default=1.5, gt=0)  # deviations up to which the teacher keeps a prompt
    n_prompts: int = Field(default=50, ge=1)  # prompts per class, at most
    selector: Selector = "batch"  # kept prompts: by batch, by class or all (none)
    text_dropout: bool = True  # in training, as released (fidelity.md, 22)


class BiomedCoOpObjective:
    """CE + lambda_sccm SCCM + lambda_kdsp KDSP, with the released averages.

    SCCM is the mean of (T_hat - T)^2 over classes and features (fidelity.md, 3); KDSP is
    KL(teacher || student) averaged over images and classes (fidelity.md, 1). This is OGKD's GAD
    without geometry (gamma 0), and without patches.
    """

    def __init__(self, config: BiomedCoOpConfig, bank: Sequence[Tensor], scale: float) -> None:
        plain = OGKDConfig(
            lambda_sccm=config.lambda_sccm,
            lambda_gad=config.lambda_kdsp,
            lambda_lgd=0.0,
            gamma=0.0,
            tau=config.tau,
            n_prompts=config.n_prompts,
            options={"selector": config.selector},
        )
        self.terms = OGKDObjective(plain, bank, scale, bank[0].device)

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """Each term [S] and their weighted total."""
        terms = self.terms(T_hat, batch)
        return {**{name: terms[name] for name in ("total", "ce", "sccm")}, "kdsp": terms["gad"]}


@register
class BiomedCoOp(PromptMethod[BiomedCoOpConfig]):
    """Prompt learning for biomedical vision-language models; what OGKD builds on."""

    name = "biomedcoop"
    summary = "learned context kept near the prompt bank, distilled from selected prompts"
    citation = "Koleilat et al. 2025, BiomedCoOp"

    @property
    def text_dropout(self) -> bool:
        return self.config.text_dropout

    def objective(self, text: TextSide) -> BiomedCoOpObjective:
        bank = [rows.to(text.backbone.device) for rows in text.bank]
        return BiomedCoOpObjective(self.config, bank, text.backbone.logit_scale)
