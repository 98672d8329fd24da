"""The contract between methods and everything around them: Support, TextSide, Method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt
from torch import Tensor

from ogkd.backbones.base import Backbone
from ogkd.core.training import Views
from ogkd.errors import ConfigError
from ogkd.features.views import FixedViews
from ogkd.methods.heads import Head, TextHead
from ogkd.prompts.bank import SINGLE

__all__ = ["Method", "MethodConfig", "Support", "TextSide", "Workplace"]


class MethodConfig(BaseModel):
    """Settings of a method; unknown or impossible ones are refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    views: NonNegativeInt | Literal["online"] = 0  # random crops per image; 0: the whole image


@dataclass(frozen=True)
class Support:
    """The labelled images to learn from, as features."""

    views: Views
    labels: Tensor  # [N]
    validation: tuple[Tensor, Tensor] | None = None  # features [M, d] and labels [M], if any

    def rows(self) -> tuple[Tensor, Tensor]:
        """Every cached view as a row of its own: features [N * V, d] and labels [N * V]."""
        if not isinstance(self.views, FixedViews):
            raise ConfigError("This method looks at each image once: use a number for views.")
        features = self.views.features.globals
        return features.flatten(0, 1).float(), self.labels.repeat_interleave(features.shape[1])


@dataclass(frozen=True)
class TextSide:
    """Class names, their prompts and the text tower."""

    backbone: Backbone
    class_names: tuple[str, ...]
    prompts: tuple[tuple[str, ...], ...]
    normal: tuple[int, ...] = ()  # labels of the classes that stand for "nothing found"

    @cached_property
    def single(self) -> Tensor:
        """Features of one template per class: [C, d], rows L2-normalised."""
        return self.backbone.encode_texts([SINGLE.format(name) for name in self.class_names])

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


class Method(ABC):
    """A way to turn support and text into heads; several seeds may share one pass."""

    name: ClassVar[str]
    summary: ClassVar[str]
    citation: ClassVar[str]
    cost: ClassVar[str] = "seconds"
    needs_images: ClassVar[bool] = True
    needs_patches: ClassVar[bool] = False
    needs_training: ClassVar[bool] = False  # of a context, through the text tower
    uses_validation: ClassVar[bool] = False
    learns_texts: ClassVar[bool] = False  # its head is one text feature for each class
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    free: ClassVar[frozenset[str]] = frozenset()  # settings that may differ in one pass

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

    @classmethod
    def fit_beside(
        cls,
        methods: Sequence[Method],
        supports: Sequence[Support],
        text: TextSide,
        *,
        seeds: Sequence[int],
        workplace: Workplace,
    ) -> list[Head]:
        """One head for each method, support and seed; the methods differ in `free` settings."""
        return methods[0].fit(supports, text, seeds=seeds, workplace=workplace)

    def head_for(self, head: Head, text: TextSide) -> Head:
        """The same learned thing for other class names (base-to-novel)."""
        raise ConfigError(
            f"{self.name} knows only the classes that it saw images of. For other classes use a "
            "method that learns prompts, such as ogkd, or zero-shot."
        )

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        """The head again from its saved tensors; a KeyError says that one is missing."""
        extra = {name: tensor for name, tensor in tensors.items() if name != "T"}
        return TextHead(tensors["T"].float(), scale, extra)
