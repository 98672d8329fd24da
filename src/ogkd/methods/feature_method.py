"""The base of methods on cached features: rows, the text prior, and one fit per seed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.core.geometry import prototypes
from ogkd.errors import DataError
from ogkd.methods.base import ConfigT, Folder, Method, MethodConfig, Support, TextSide
from ogkd.methods.heads import Head, KernelHead, LinearHead

Prior = Literal["single", "bank"]


class PriorConfig(MethodConfig):
    """Settings of methods whose prior are class texts."""

    prior: Prior = "single"  # class texts: one template, or the mean of the bank


class RivalConfig(MethodConfig):
    """`fidelity`: as the method's own paper has it, or "released": as the benchmark's code ran it.

    The differences are in docs/concepts/fidelity.md, 44-53.
    """

    fidelity: Literal["own", "released"] = "own"  # its own paper, or as the benchmark ran it


@dataclass(frozen=True)
class Rows:
    """Every view of every support image as one row; the rows of an image are consecutive."""

    features: Tensor  # [R, d], L2-normalised
    labels: Tensor  # [R]
    case: Tensor  # [R]: the number of the case that a row is a view of
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

    def view(self, number: int) -> Rows:
        """One view of each image; of more than there are, from the first again."""
        rows_of_view = torch.arange(len(self.labels)) % self.views == number % self.views
        return replace(self.keep(rows_of_view), views=1)

    def batches(
        self, epochs: int, size: int, generator: torch.Generator, *, first: int | None = None
    ) -> Iterator[tuple[int, Rows]]:
        """Shuffled batches of all rows, epoch by epoch, each with its epoch's number.

        As released, an epoch sees one view of each image: another each time, from `first` on.
        """
        for epoch in range(epochs):
            seen = self if first is None else self.view(first + epoch % max(1, self.views - first))
            for batch in torch.randperm(len(seen.labels), generator=generator).split(size):
                yield epoch, seen.keep(batch)

    def keep(self, mask: Tensor) -> Rows:
        """Keep some rows, by a mask or by numbers."""
        kept = {name: getattr(self, name)[mask] for name in ("features", "labels", "case")}
        return replace(self, **kept)


def rows_of(support: Support, class_names: Sequence[str]) -> Rows:
    """Flatten a support to rows; unless classes may be missing, each must have an image."""
    features, labels = support.rows()
    count = len(support.labels)
    views = len(labels) // max(1, count)
    present = set(labels.tolist())
    missing = [name for label, name in enumerate(class_names) if label not in present]
    if missing and not support.allow_missing_classes:
        raise DataError(
            f"There is no image to learn from for: {', '.join(missing)}. Put at least one image "
            "of each class in the training split, or remove the class."
        )
    numbers = torch.arange(count) if support.case is None else support.case
    case = numbers.repeat_interleave(views)
    unit = normalize(features.cpu(), dim=-1)
    return Rows(unit, labels.cpu(), case, len(class_names), views, support.validation)


def text_prior(text: TextSide, prior: Prior) -> Tensor:
    """Return the class texts T [C, d] of the chosen prior, rows L2-normalised."""
    return (text.single if prior == "single" else prototypes(text.bank)).float().cpu()


class FeatureMethod(Method[ConfigT]):
    """A head on cached features; each support is fitted separately, in seconds."""

    @property
    def as_benchmarked(self) -> bool:
        return isinstance(self.config, RivalConfig) and self.config.fidelity == "released"

    def fit(
        self, support: Support | None, text: TextSide, *, seed: int, folder: Folder = None
    ) -> Head:
        assert support is not None
        return self.fit_rows(rows_of(support, text.class_names), text, seed=seed)

    @abstractmethod
    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        """Fit the head of one support."""

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        """Rebuild a kernel, text or linear head, whichever these tensors are of."""
        if {"K", "A", "beta"} & tensors.keys():
            return KernelHead.read(tensors, scale)
        return (
            super().read_head(tensors, text, scale) if "T" in tensors else LinearHead.read(tensors)
        )
