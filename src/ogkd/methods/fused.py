"""Fused: a text head and a Gaussian head on images, weighed by cross-fitting on the support.

The equations are in _gaussian.py; this file chooses the two numbers that they leave open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.core.geometry import prototypes
from ogkd.errors import ConfigError
from ogkd.methods._gaussian import Experts, experts, fuse
from ogkd.methods._rows import Rows, read_linear, rows_of
from ogkd.methods._search import trials
from ogkd.methods.base import Method, MethodConfig, Support, TextSide, Workplace
from ogkd.methods.heads import Head, LinearHead, TextHead
from ogkd.methods.registry import make_method, presets, register

__all__ = ["Fused", "FusedConfig", "FusedHead", "choose"]

_NAMES = {"bank": "zero-shot-ensemble", "single": "zero-shot"}
_KAPPAS = tuple(2.0**k for k in range(-2, 7))  # 1/4 .. 64 images
_HEATS = tuple(math.exp(k / 8) for k in range(-12, 13))  # 0.22 .. 4.5
_KAPPA_SPREAD = 1.0  # of log kappa around log kappa0, beforehand
_HEAT_SPREAD = 0.5  # of the log of the factor on logits, around 0
_TEXT = "text."  # before the names of the text head's tensors


class FusedConfig(MethodConfig):
    """`text`: "bank", "single", "ogkd" or any method that learns class texts.

    The rest are numbers of docs/fused.md, chosen there on training and validation images.
    """

    text: str = "bank"
    text_settings: dict[str, Any] = Field(default_factory=dict)  # of that method
    train: dict[str, Any] = Field(default_factory=dict)  # its training, such as epochs
    blend: float = Field(default=0.5, ge=0, le=1)  # of learned texts; the rest is the bank's
    kappa: float | None = Field(default=None, gt=0)  # images that text is worth; None: cross-fit
    kappa0: float = Field(default=8.0, gt=0)  # what it is worth beforehand
    rho: float = Field(default=1.0, gt=0)  # ridge of the covariance
    nu: float = Field(default=16.0, ge=0)  # images that the zero-shot head's own biases are worth


@dataclass(frozen=True)
class FusedHead(LinearHead):
    """A linear head; the text head rides along for classes without images."""

    text: Head = field(kw_only=True)

    def tensors(self) -> dict[str, Tensor]:
        inner = {f"{_TEXT}{name}": tensor for name, tensor in self.text.tensors().items()}
        return {**super().tensors(), **inner}


@register
class Fused(Method):
    """logits_c = heat (kappa text_c(v) + n_c visual_c(v)) / (kappa + n_c), one linear head.

    kappa and heat maximise the likelihood of held-out support images times a prior, so they are
    defined from one image per class on. A learned text has seen the held-out images: the bank,
    which has not, stands in for it while kappa and heat are chosen.
    """

    name = "fused"
    summary = "text head and Gaussian head on images, weighed on the support alone"
    citation = "this project, docs/fused.md; the visual side after Wang et al., ICLR 2024"
    Config = FusedConfig

    def __init__(self, config: MethodConfig) -> None:
        super().__init__(config)
        own = cast(FusedConfig, config)
        name = _NAMES.get(own.text, own.text)
        if name == self.name:
            raise ConfigError("fused cannot be its own text side. Use ogkd, bank or single.")
        settings = dict(own.text_settings)
        if own.train:
            settings["train"] = {**settings.get("train", {}), **own.train}
        preset = "auto" if "auto" in presets(name) else None
        self.text_method = make_method(name, preset=preset, settings=settings)
        if not self.text_method.learns_texts:
            raise ConfigError(
                f"fused needs class texts, which '{own.text}' does not learn. Use ogkd, bank, "
                "single or another method that learns one context for all images."
            )

    @property
    def uses_patches(self) -> bool:
        """Patches are for the text side alone."""
        return self.text_method.uses_patches

    def fit(
        self,
        supports: Sequence[Support],
        text: TextSide,
        *,
        seeds: Sequence[int],
        workplace: Workplace,
    ) -> list[Head]:
        """Train the text side of all seeds together, then add the images one by one."""
        # Validation images would be looked at, but the support alone is to decide.
        alone = [replace(support, validation=None) for support in supports]
        rows = [rows_of(support, text.class_names) for support in alone]
        learned = self.text_method.fit(supports, text, seeds=seeds, workplace=workplace)
        return [self._join(r, head, text) for r, head in zip(rows, learned, strict=True)]

    def head_for(self, head: Head, text: TextSide) -> Head:
        """Classes without images have the text side alone."""
        inner = head.text if isinstance(head, FusedHead) else head
        return self.text_method.head_for(inner, text)

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        """The head again, or the text side alone if that was saved."""
        if "W" not in tensors:
            return self.text_method.read_head(tensors, text, scale)
        inner = {k.removeprefix(_TEXT): v for k, v in tensors.items() if k.startswith(_TEXT)}
        linear = read_linear(tensors)
        return FusedHead(linear.W, linear.b, text=self.text_method.read_head(inner, text, scale))

    def _join(self, rows: Rows, learned: Head, text: TextSide) -> Head:
        config = cast(FusedConfig, self.config)
        T, scale = cast(TextHead, learned).T.cpu(), text.backbone.logit_scale
        honest = T
        if self.text_method.needs_training:
            honest = prototypes(text.bank).cpu()
            T = normalize(config.blend * T + (1 - config.blend) * honest, dim=-1)
        kappa, heat = choose(rows, honest, scale, config)
        W, b = fuse(_experts(rows, T, scale, config), kappa)
        return FusedHead((heat * W).float(), (heat * b).float(), text=learned)


def choose(rows: Rows, T: Tensor, scale: float, config: FusedConfig) -> tuple[float, float]:
    """The weight kappa and the factor on logits, by support images that were held out.

    With one image per class nothing can be held out, and the prior's kappa0 and 1 are taken.
    """
    fixed = config.kappa
    kappas = _KAPPAS if fixed is None else (fixed,)
    held = [(trial, _experts(trial.rows, T, scale, config)) for trial in trials(rows)]
    if not held:
        return fixed or config.kappa0, 1.0
    labels = torch.cat([trial.labels for trial, _ in held])
    heats = torch.tensor(_HEATS, dtype=torch.float64)
    best = (math.inf, 0.0, 0.0)
    for kappa in kappas:
        parts = []
        for trial, both in held:
            W, b = fuse(both, kappa)
            parts.append(trial.features.double() @ W.mT + b)
        log_p = (heats[:, None, None] * torch.cat(parts)).log_softmax(-1)  # [H, M, C]
        picked = log_p.gather(-1, labels.expand(len(heats), -1).unsqueeze(-1))
        # Views of one image are not independent: together they count as one.
        cost = -picked.sum((1, 2)) / rows.views + (heats.log() / _HEAT_SPREAD).square() / 2
        if fixed is None:
            cost = cost + (math.log(kappa / config.kappa0) / _KAPPA_SPREAD) ** 2 / 2
        place = int(cost.argmin())
        best = min(best, (float(cost[place]), kappa, _HEATS[place]))
    return best[1], best[2]


def _experts(rows: Rows, T: Tensor, scale: float, config: FusedConfig) -> Experts:
    return experts(
        rows.features, rows.labels, T, scale=scale, views=rows.views, rho=config.rho, nu=config.nu
    )
