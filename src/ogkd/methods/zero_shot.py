"""Zero-shot: no image is learned from; one template, or the mean of the prompt bank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch.nn.functional import normalize

from ogkd.geometry import prototypes
from ogkd.methods.base import Head, Method, MethodConfig, Support, TextSide, Workplace
from ogkd.methods.registry import register
from ogkd.prompts.bank import SINGLE

__all__ = ["ZeroShot", "ZeroShotEnsemble"]


class ZeroShotConfig(MethodConfig):
    """`template` has one {} for the class name."""

    template: str = SINGLE


@register
class ZeroShot(Method):
    """Cosine with the feature of one template per class."""

    name = "zero-shot"
    summary = "one template per class, nothing learned"
    citation = "Radford et al. 2021, CLIP"
    Config = ZeroShotConfig

    def fit(
        self,
        supports: Sequence[Support],
        text: TextSide,
        *,
        seeds: Sequence[int],
        workplace: Workplace,
    ) -> list[Head]:
        """The same head whatever the support."""
        template = cast(ZeroShotConfig, self.config).template
        texts = [template.format(name) for name in text.class_names]
        T = normalize(text.backbone.encode_texts(texts), dim=-1)
        return [Head(T, text.backbone.logit_scale, {}) for _ in seeds]

    def head_for(self, head: Head, text: TextSide) -> Head:
        """Zero-shot knows any class."""
        return self.fit([], text, seeds=[0], workplace=Workplace())[0]


@register
class ZeroShotEnsemble(Method):
    """Cosine with the normalised mean of each class's prompts."""

    name = "zero-shot-ensemble"
    summary = "mean of the prompt bank per class, nothing learned"
    citation = "Radford et al. 2021, CLIP"

    def fit(
        self,
        supports: Sequence[Support],
        text: TextSide,
        *,
        seeds: Sequence[int],
        workplace: Workplace,
    ) -> list[Head]:
        """The same head whatever the support."""
        return [Head(prototypes(text.bank), text.backbone.logit_scale, {}) for _ in seeds]

    def head_for(self, head: Head, text: TextSide) -> Head:
        """Zero-shot knows any class."""
        return self.fit([], text, seeds=[0], workplace=Workplace())[0]
