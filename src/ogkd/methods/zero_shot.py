"""Zero-shot: no image is learned from; one template, or the mean of the prompt bank."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

from torch import Tensor

from ogkd.geometry import prototypes
from ogkd.methods.base import Head, Method, MethodConfig, Support, TextSide, Workplace
from ogkd.methods.registry import register
from ogkd.prompts.bank import SINGLE

__all__ = ["ZeroShot", "ZeroShotEnsemble"]


class _FromText(Method):
    """A head that is a function of the texts alone, and so knows any class."""

    citation = "Radford et al. 2021, CLIP"
    needs_images = False

    @abstractmethod
    def class_features(self, text: TextSide) -> Tensor:
        """T [C, d], rows L2-normalised."""

    def fit(
        self,
        supports: Sequence[Support],
        text: TextSide,
        *,
        seeds: Sequence[int],
        workplace: Workplace,
    ) -> list[Head]:
        """The same head whatever the support."""
        T = self.class_features(text)
        return [Head(T, text.backbone.logit_scale, {}) for _ in seeds]

    def head_for(self, head: Head, text: TextSide) -> Head:
        return Head(self.class_features(text), text.backbone.logit_scale, {})


class ZeroShotConfig(MethodConfig):
    """`template` has one {} for the class name."""

    template: str = SINGLE


@register
class ZeroShot(_FromText):
    """Cosine with the feature of one template per class."""

    name = "zero-shot"
    summary = "one template per class, nothing learned"
    Config = ZeroShotConfig

    def class_features(self, text: TextSide) -> Tensor:
        template = cast(ZeroShotConfig, self.config).template
        texts = [template.replace("{}", name) for name in text.class_names]
        return text.backbone.encode_texts(texts)


@register
class ZeroShotEnsemble(_FromText):
    """Cosine with the normalised mean of each class's prompts."""

    name = "zero-shot-ensemble"
    summary = "mean of the prompt bank per class, nothing learned"

    def class_features(self, text: TextSide) -> Tensor:
        return prototypes(text.bank)
