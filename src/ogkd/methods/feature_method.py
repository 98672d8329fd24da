"""The base of methods on cached features: rows, the text prior, and one fit per seed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.core.geometry import prototypes
from ogkd.errors import DataError
from ogkd.methods.base import ConfigT, Method, MethodConfig, Support, TextSide, TrainingFolder
from ogkd.methods.heads import Head, KernelHead, LinearHead

Prior = Literal["single", "bank"]


class PriorConfig(MethodConfig):
    """`prior`: class texts from one template, or the mean over the prompt bank."""

    prior: Prior = "single"


@dataclass(frozen=True)
class Rows:
    """Every view of every support image as one row; the rows of an image are consecutive."""

    features: Tensor  # [R, d], L2-normalised
    labels: Tensor  # [R]
    images: Tensor  # [R]: the index of the image that a row is a view of
    classes: int
    views: int
    validation: tuple[Tensor, Tensor] | None = None

    @property
    def one_hot(self) -> Tensor:
        """Labels as zeros and ones: [R, C]."""
        return torch.nn.functional.one_hot(self.labels, self.classes).float()

    @property
    def counts(self) -> Tensor:
        """Images (not rows) per class: [C]."""
        return self.one_hot.sum(0) / self.views

    def keep(self, mask: Tensor) -> Rows:
        """Keep the rows where the mask is true."""
        kept = {name: getattr(self, name)[mask] for name in ("features", "labels", "images")}
        return replace(self, **kept)


def rows_of(support: Support, class_names: Sequence[str]) -> Rows:
    """Flatten a support to rows; it must have at least one image of each class."""
    features, labels = support.rows()
    count = len(support.labels)
    views = len(labels) // max(1, count)
    present = set(labels.tolist())
    missing = [name for label, name in enumerate(class_names) if label not in present]
    if missing:
        raise DataError(
            f"There is no image to learn from for: {', '.join(missing)}. Put at least one image "
            "of each class in the training split, or remove the class."
        )
    images = torch.arange(count).repeat_interleave(views)
    unit = normalize(features.cpu(), dim=-1)
    return Rows(unit, labels.cpu(), images, len(class_names), views, support.validation)


def text_prior(text: TextSide, prior: Prior) -> Tensor:
    """Return the class texts T [C, d] of the chosen prior, rows L2-normalised."""
    return (text.single if prior == "single" else prototypes(text.bank)).float().cpu()


class FeatureMethod(Method[ConfigT]):
    """A head on cached features; each support is fitted separately, in seconds."""

    cost = "seconds"

    def fit(
        self,
        supports: Sequence[Support],
        text: TextSide,
        *,
        seeds: Sequence[int],
        folder: TrainingFolder | None = None,
    ) -> list[Head]:
        """Fit one head for each support and seed."""
        pairs = zip(supports, seeds, strict=True)
        return [self.fit_rows(rows_of(s, text.class_names), text, seed=seed) for s, seed in pairs]

    @abstractmethod
    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        """Fit the head of one support."""

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        """Rebuild a linear head, which is what most of these methods fit."""
        return read_linear(tensors)


def read_linear(tensors: Mapping[str, Tensor]) -> LinearHead:
    """Build a linear head from its tensors; their shapes must agree."""
    W, b = tensors["W"].float(), tensors["b"].float()
    if W.dim() != 2 or b.shape != W.shape[:1]:
        raise ValueError(f"W of shape {tuple(W.shape)} and b of shape {tuple(b.shape)}")
    return LinearHead(W, b)


def read_kernel(tensors: Mapping[str, Tensor], scale: float) -> KernelHead:
    """Build a kernel head from its tensors; their shapes must agree."""
    T, K, A = (tensors[name].float() for name in "TKA")
    if T.dim() != 2 or K.shape[1:] != T.shape[1:] or A.shape != (len(K), len(T)):
        shapes = ", ".join(f"{n} {tuple(tensors[n].shape)}" for n in "TKA")
        raise ValueError(f"shapes do not match: {shapes}")
    return KernelHead(T, scale, K, A, float(tensors["beta"]))
