"""The contract of a method: what it is given (Support, TextSide) and what it returns (heads).

To write one, derive from `PromptMethod` (a learned context) or `FeatureMethod` (a head on cached
features) rather than from `Method` itself: docs/how-to/add-a-method.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, NonNegativeInt
from torch import Tensor
from typing_extensions import TypeVar

from ogkd.backbones.base import Backbone
from ogkd.core.training import Views
from ogkd.errors import ConfigError
from ogkd.features.views import FixedViews
from ogkd.methods.heads import Head, TextHead
from ogkd.prompts.bank import SINGLE


class MethodConfig(BaseModel):
    """Settings of a method; unknown or invalid ones are rejected by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    views: NonNegativeInt | Literal["online"] = 0  # random crops per image; 0: the whole image


ConfigT = TypeVar("ConfigT", bound=MethodConfig, default=MethodConfig, covariant=True)


@dataclass(frozen=True)
class Support:
    """The labelled images to learn from, as features."""

    views: Views
    labels: Tensor  # [N]
    validation: tuple[Tensor, Tensor] | None = None  # features [M, d] and labels [M], if any

    def rows(self) -> tuple[Tensor, Tensor]:
        """Every cached view as one row: features [N * V, d] and labels [N * V]."""
        if not isinstance(self.views, FixedViews):
            raise ConfigError("This method needs cached views: set views to a number.")
        features = self.views.features.globals
        return features.flatten(0, 1).float(), self.labels.repeat_interleave(features.shape[1])


@dataclass(frozen=True)
class TextSide:
    """Class names, their prompts and the text tower that encodes them."""

    backbone: Backbone
    class_names: tuple[str, ...]
    prompts: tuple[tuple[str, ...], ...]
    normal: tuple[int, ...] = ()  # labels of the classes that mean "nothing found"

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
class TrainingFolder:
    """Where a long training saves its progress, so that it can be resumed."""

    path: Path
    fingerprint: str  # of settings, data and backbone: only the same training is resumed
    log: Callable[[Mapping[str, Any]], None]  # called with one record per epoch


Supports = Sequence[Support]
Folder = TrainingFolder | None


class Method(ABC, Generic[ConfigT]):
    """Turns support images and class texts into heads; several seeds may share one pass.

    The type parameter is the class of its settings: `class Mine(PromptMethod[MineConfig])`
    sets `Config` and types `self.config`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line, without a full stop
    citation: ClassVar[str] = "not published"
    cost: ClassVar[str] = "seconds"  # or "minutes", "slow"
    needs_images: ClassVar[bool] = True
    needs_patches: ClassVar[bool] = False
    needs_training: ClassVar[bool] = False  # of a context, through the text tower
    uses_validation: ClassVar[bool] = False
    learns_texts: ClassVar[bool] = False  # its head has one text feature per class
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    free: ClassVar[frozenset[str]] = frozenset()  # settings that may differ in `fit_together`

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "Config" in vars(cls):
            return
        for base in vars(cls).get("__orig_bases__", ()):
            for given in get_args(base):
                config = getattr(given, "__bound__", given)  # of a type variable, its bound
                if isinstance(config, type) and issubclass(config, MethodConfig):
                    cls.Config = config

    @property
    def uses_patches(self) -> bool:
        """Whether this configuration needs patch features; they are only encoded if so."""
        return self.needs_patches

    @abstractmethod
    def fit(
        self, supports: Supports, text: TextSide, *, seeds: Sequence[int], folder: Folder = None
    ) -> list[Head]:
        """Return one head for each support and seed.

        `supports` is empty if the method needs no images. With a `folder`, a method that trains
        for long saves its progress there.
        """

    @classmethod
    def fit_together(
        cls,
        methods: Sequence[Self],
        supports: Supports,
        text: TextSide,
        *,
        seeds: Sequence[int],
        folder: Folder = None,
    ) -> list[Head]:
        """Return one head for each method, support and seed; methods differ in `free` settings."""
        return methods[0].fit(supports, text, seeds=seeds, folder=folder)

    def head_for(self, head: Head, text: TextSide) -> Head:
        """Apply what was learned to other class names (base-to-novel)."""
        raise ConfigError(
            f"{self.name} only knows the classes that it was fitted on. For other classes, use a "
            "method that learns prompts, or zero-shot."
        )

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        """Rebuild a head from its saved tensors; a KeyError names one that is missing."""
        extra = {name: tensor for name, tensor in tensors.items() if name != "T"}
        return TextHead(tensors["T"].float(), scale, extra)
