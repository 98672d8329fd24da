"""The contract between methods and everything around them: Support, TextSide, Method, Head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.backbones.base import Backbone
from ogkd.training import Views

__all__ = ["Head", "Method", "MethodConfig", "Support", "TextSide", "Workplace"]


class MethodConfig(BaseModel):
    """Settings of a method; unknown or impossible ones are refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    views: NonNegativeInt | Literal["online"] = 0  # random crops per image; 0: the whole image


@dataclass(frozen=True)
class Support:
    """The labelled images to learn from, as features."""

    views: Views
    labels: Tensor  # [N]


@dataclass(frozen=True)
class TextSide:
    """Class names, their prompts and the text tower."""

    backbone: Backbone
    class_names: tuple[str, ...]
    prompts: tuple[tuple[str, ...], ...]

    @cached_property
    def bank(self) -> list[Tensor]:
        """Features of the prompts of each class, encoded once: C tensors [N_c, d]."""
        texts = [text for prompts in self.prompts for text in prompts]
        features = self.backbone.encode_texts(texts)
        return list(features.split([len(prompts) for prompts in self.prompts]))


@dataclass(frozen=True)
class Workplace:
    """Where a long training keeps its progress; empty for none."""

    folder: Path | None = None
    fingerprint: str = ""
    log: Callable[[Mapping[str, Any]], None] | None = None


@dataclass(frozen=True)
class Head:
    """Class features T [C, d] and a scale: logits are scale * v T'. Other tensors ride along."""

    T: Tensor
    scale: float
    extra: Mapping[str, Tensor]

    def logits(self, features: Tensor) -> Tensor:
        """Logits [N, C] of global features [N, d]."""
        return self.scale * normalize(features, dim=-1) @ self.T.mT

    def tensors(self) -> dict[str, Tensor]:
        """All that must be saved."""
        return {"T": self.T.contiguous(), **self.extra}


class Method(ABC):
    """A way to turn support and text into heads; several seeds may share one pass."""

    name: ClassVar[str]
    summary: ClassVar[str]
    citation: ClassVar[str]
    needs_images: ClassVar[bool] = True
    needs_patches: ClassVar[bool] = False
    needs_training: ClassVar[bool] = False
    Config: ClassVar[type[MethodConfig]] = MethodConfig

    def __init__(self, config: MethodConfig) -> None:
        self.config = config

    @property
    def uses_patches(self) -> bool:
        """Whether this configuration looks at patches; they are only encoded if so."""
        return self.needs_patches

    @abstractmethod
    def fit(
        self,
        supports: Sequence[Support],
        text: TextSide,
        *,
        seeds: Sequence[int],
        workplace: Workplace,
    ) -> list[Head]:
        """One head for each support and seed."""

    def head_for(self, head: Head, text: TextSide) -> Head:
        """The same learned thing for other class names (base-to-novel)."""
        raise NotImplementedError(f"{self.name} cannot be asked for other classes")
