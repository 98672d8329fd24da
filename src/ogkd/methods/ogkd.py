"""OGKD: cross-entropy, SCCM, GAD and LGD on a learned context (paper §3, eq. 16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from ogkd.core.batches import Batch, PerBatch
from ogkd.core.fidelity import Fidelity, fidelity
from ogkd.core.geometry import class_graph, prototypes, stack_bank
from ogkd.core.losses import (
    LgdVariant,
    cross_entropy,
    gad,
    gather_patches,
    lgd,
    logits,
    patches_kept,
    sccm,
    select_patches,
)
from ogkd.core.teacher import select_prompts, teacher_prototypes
from ogkd.errors import ConfigError
from ogkd.methods import Objective, PromptConfig, PromptMethod, Support, TextSide, register

_TEACHER = 3  # its own stream of randomness, beside those of training
_AT_ONCE = 32  # images through the image tower


class OGKDConfig(PromptConfig):
    """The paper's symbols; weights and strengths may differ between runs trained together."""

    lambda_sccm: float = Field(default=1.0, ge=0)  # weight of SCCM, distance to the bank's texts
    lambda_gad: float = Field(default=1.0, ge=0)  # weight of GAD, the teacher's answers to images
    lambda_lgd: float = Field(default=0.5, ge=0)  # weight of LGD, the teacher's answers to patches
    gamma: float | tuple[float, ...] = 0.3  # spread over the class graph, of all or each class
    alpha: float = Field(default=4.0, gt=0)  # sharpness of the class graph W
    tau: float = Field(default=1.5, gt=0)  # deviations up to which the teacher keeps a prompt
    top_ratio: float = Field(default=0.3, gt=0, le=1)  # K/P, the share of patches that LGD sees
    n_prompts: int = Field(default=50, ge=1)  # prompts per class that the teacher has, at most
    lgd_variant: LgdVariant = "label_guided"  # which patches and classes LGD compares
    fidelity: Literal["released", "paper"] = "released"  # the code, or the equations
    options: dict[str, Any] = Field(default_factory=dict)  # fidelity options by name

    @model_validator(mode="after")
    def _known_options(self) -> Self:
        _ = self.choice  # rejects unknown options
        return self

    @property
    def choice(self) -> Fidelity:
        """The fidelity options by name."""
        return fidelity(self.fidelity, **self.options)


@dataclass(frozen=True)
class _Teacher:
    """What a batch alone decides, whatever the student has learned."""

    z: Tensor  # logits [S, B, C]
    patches: Tensor | None  # those that LGD looks at [S, B, K, d]
    z_patches: Tensor | None  # their logits [S, B, K, C]


class OGKDObjective:
    """Eq. 16 for S runs: T_hat and a batch of images in, one value per run and term out."""

    def __init__(
        self, config: OGKDConfig, bank: Sequence[Tensor], scale: float, device: Any
    ) -> None:
        self.config, self.choice, self.scale = config, config.choice, scale
        self.bank = stack_bank([rows[: config.n_prompts] for rows in bank]).to(device)  # [C, N, d]
        self.T = prototypes(self.bank)  # [C, d]
        self.W = class_graph(self.T, config.alpha).unsqueeze(0)  # [1, C, C]
        self.gamma = _per_class(config.gamma, len(self.T)).unsqueeze(0).to(device)  # [1, C]
        self.T_tilde: Tensor | None = None  # [S, C, d] if the teacher is fixed
        self._teacher: PerBatch[_Teacher] = PerBatch()

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """Return each term [S] and their weighted total (Alg. 2)."""
        choice, config = self.choice, self.config
        teacher = self._teacher.of(batch, self._teach)
        z_stu = logits(batch.globals, T_hat, self.scale)  # [S, B, C]
        ce = cross_entropy(z_stu, batch.labels)
        near = sccm(T_hat, self.T, normalisation=choice.sccm_normalisation)
        globally = gad(
            z_stu,
            teacher.z,
            self.W,
            self.gamma.unsqueeze(1),
            temperature=choice.temperature,
            normalisation=choice.gad_normalisation,
        )
        locally = self._lgd(T_hat, teacher, batch)
        # L = L_CE + λ₁ L_SCCM + λ₂ L_GAD + λ₃ L_LGD (eq. 16)
        total = ce + config.lambda_sccm * near
        total = total + config.lambda_gad * globally + config.lambda_lgd * locally
        return {"total": total, "ce": ce, "sccm": near, "gad": globally, "lgd": locally}

    def teacher(self, features: Tensor) -> Tensor:
        """The teacher's prototypes [.., C, d], selected by images' features [.., B, d]."""
        tau, selector = self.config.tau, self.choice.selector
        keep = select_prompts(features, self.bank, tau=tau, selector=selector)
        return teacher_prototypes(self.bank, keep)

    def fix_teacher(self, images: Sequence[Tensor]) -> None:
        """Select the prompts once, by each run's images [N, d], for the whole training (Alg. 2)."""
        self.T_tilde = torch.stack([self.teacher(features.to(self.bank)) for features in images])

    def _teach(self, batch: Batch) -> _Teacher:
        choice, config, patches = self.choice, self.config, batch.patches
        T_tilde = self.teacher(batch.globals) if self.T_tilde is None else self.T_tilde  # [S, C, d]
        z = logits(batch.globals, T_tilde, self.scale)
        if patches is None:
            return _Teacher(z, None, None)
        if config.lgd_variant == "label_guided":
            K = patches_kept(patches.shape[-2], config.top_ratio, rounding=choice.patch_rounding)
            absolute = choice.patch_score == "absolute"
            best = select_patches(patches, T_tilde, batch.labels, K, absolute=absolute)
            patches = gather_patches(patches, best)  # [S, B, K, d]
        return _Teacher(z, patches, logits(patches, T_tilde, self.scale))

    def _lgd(self, T_hat: Tensor, teacher: _Teacher, batch: Batch) -> Tensor:
        choice = self.choice
        if teacher.patches is None or teacher.z_patches is None:
            return T_hat.new_zeros(len(T_hat))
        return lgd(
            logits(teacher.patches, T_hat, self.scale),
            teacher.z_patches,
            batch.labels,
            self.W.unsqueeze(1),
            self.gamma[:, None, None],
            variant=self.config.lgd_variant,
            temperature=choice.temperature,
            normalisation=choice.lgd_normalisation,
        )


@register
class OGKD(PromptMethod[OGKDConfig]):
    """Omni-Geometry Knowledge Distillation."""

    name = "ogkd"
    summary = "learned context, teacher diffused along the class graph, globally and at patches"
    citation = "Tran and Shen, OGKD"
    needs_patches = True
    free = frozenset({"lambda_sccm", "lambda_gad", "lambda_lgd", "gamma", "alpha"})

    @property
    def uses_patches(self) -> bool:
        """Patches are only needed for LGD."""
        return self.config.lambda_lgd > 0

    @property
    def text_dropout(self) -> bool:
        return self.config.choice.text_dropout

    def objective(self, text: TextSide) -> Objective:
        backbone = text.backbone
        return OGKDObjective(self.config, text.bank, backbone.logit_scale, backbone.device)

    def objective_for(
        self, supports: Sequence[Support], text: TextSide, seeds: Sequence[int]
    ) -> Objective:
        """The objective, with the teacher selected by all images where the paper has it fixed."""
        objective = super().objective_for(supports, text, seeds)
        if self.config.choice.fixed_teacher and isinstance(objective, OGKDObjective):
            pairs = zip(supports, seeds, strict=True)
            objective.fix_teacher([_looked_at(support, seed) for support, seed in pairs])
        return objective


def _looked_at(support: Support, seed: int) -> Tensor:
    """Global features [N, d] of one view of each image, always the same for a seed."""
    rng = np.random.default_rng([seed, _TEACHER])
    images = np.array_split(np.arange(len(support.views)), -(-len(support.views) // _AT_ONCE))
    return torch.cat([support.views.look(part, rng).globals for part in images]).float()


def _per_class(gamma: float | tuple[float, ...], classes: int) -> Tensor:
    """Gamma of each class [C]."""
    values = torch.tensor(gamma, dtype=torch.float32)
    if values.dim() and len(values) != classes:
        raise ConfigError(f"gamma has {len(values)} values, but there are {classes} classes.")
    if bool(((values < 0) | (values > 1)).any()):
        raise ConfigError(f"gamma must lie between 0 and 1, but is {gamma}.")
    return values.expand(classes)
