"""Zero-shot, without labels: one template, the prompt bank, or a selection of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

from pydantic import Field
from torch import Tensor

from ogkd.core.geometry import prototypes
from ogkd.core.teacher import Selector, select_prompts, teacher_prototypes
from ogkd.features.store import text_features
from ogkd.methods import Head, Method, MethodConfig, Support, TextHead, TextSide, register
from ogkd.methods.base import ConfigT, Folder
from ogkd.prompts.bank import SINGLE


class _FromText(Method[ConfigT]):
    """A head computed from texts, which therefore works for any class."""

    citation = "Radford et al. 2021, CLIP"
    needs_images = False

    @abstractmethod
    def class_features(self, text: TextSide, support: Support | None = None) -> Tensor:
        """Return the class texts T [C, d], rows L2-normalised."""

    def fit(
        self, support: Support | None, text: TextSide, *, seed: int, folder: Folder = None
    ) -> Head:
        """Return the same head for every seed, or that of the support if it needs images."""
        given = (support,) if self.needs_images and support is not None else ()
        return TextHead(self.class_features(text, *given), text.backbone.logit_scale)

    def head_for(self, head: Head, text: TextSide) -> Head:
        return TextHead(self.class_features(text), text.backbone.logit_scale)


class ZeroShotConfig(MethodConfig):
    """One template."""

    template: Annotated[str, Field(pattern=r"\{\}")] = SINGLE  # {} stands for the class name


@register
class ZeroShot(_FromText[ZeroShotConfig]):
    """Cosine with the feature of one template per class."""

    name = "zero-shot"
    summary = "one template per class, nothing learned"

    def class_features(self, text: TextSide, support: Support | None = None) -> Tensor:
        texts = [self.config.template.replace("{}", name) for name in text.class_names]
        return text_features(text.backbone, texts)


@register
class ZeroShotEnsemble(_FromText):
    """Cosine with the normalised mean of each class's prompts."""

    name = "zero-shot-ensemble"
    summary = "mean of the prompt bank per class, nothing learned"

    def class_features(self, text: TextSide, support: Support | None = None) -> Tensor:
        return prototypes(text.bank)


class ZeroShotSelectiveConfig(MethodConfig):
    """How prompts are chosen: see `ogkd.core.teacher.select_prompts`."""

    tau: float = Field(default=1.5, gt=0)  # deviations up to which a prompt is kept
    n_prompts: int = Field(default=50, ge=1)  # prompts per class, at most
    selector: Selector = "batch"  # kept prompts: by batch, by class or all (none)


@register
class ZeroShotSelective(_FromText[ZeroShotSelectiveConfig]):
    """The ensemble without the prompts whose scores on the support images are outliers.

    The paper's table has this row, but its code was not released (fidelity.md, baselines), and
    its selector needs images. Test images must not choose the classifier, so the support images
    do, all as one batch and without their labels. If there are no images (no support, or other
    classes than those fitted), the whole bank is used, as in zero-shot-ensemble.
    """

    name = "zero-shot-selective"
    summary = "mean of the prompts that are not outliers on the support images, nothing learned"
    citation = "Koleilat et al. 2025, BiomedCoOp"
    needs_images = True

    def class_features(self, text: TextSide, support: Support | None = None) -> Tensor:
        config = self.config
        bank = [rows[: config.n_prompts] for rows in text.bank]
        if support is None:
            return prototypes(bank)
        v = support.rows()[0].to(bank[0])
        keep = select_prompts(v, bank, tau=config.tau, selector=config.selector)
        return teacher_prototypes(bank, keep)
