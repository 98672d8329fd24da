"""The contract of a method: what it is given (Support, TextSide) and what it returns (heads).

To write one, derive from `PromptMethod` (a learned context) or `FeatureMethod` (a head on cached
features) rather than from `Method` itself: docs/how-to/add-a-method.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, get_args

from pydantic import NonNegativeInt
from torch import Tensor
from typing_extensions import TypeVar

from ogkd.backbones.base import Backbone
from ogkd.core.optimisers import Settings
from ogkd.errors import ConfigError
from ogkd.features.store import text_features
from ogkd.features.views import FixedViews, OnlineViews
from ogkd.methods.heads import Head, TextHead, take
from ogkd.prompts.bank import SINGLE


class MethodConfig(Settings):
    """Settings of a method; unknown or invalid ones are rejected by name."""

    views: NonNegativeInt | Literal["online"] = 0  # random crops per image; 0: the whole image


ConfigT = TypeVar("ConfigT", bound=MethodConfig, default=MethodConfig, covariant=True)


@dataclass(frozen=True)
class Teacher:
    """A second backbone, and its features of the same images, each whole."""

    backbone: Backbone
    rows: Tensor  # [N, e]
    unlabelled: Tensor | None = None  # [U, e]


@dataclass(frozen=True)
class Support:
    """The labelled images to learn from, as features."""

    views: FixedViews | OnlineViews
    labels: Tensor  # [N]
    validation: tuple[Tensor, Tensor] | None = None  # rows [M, d] and labels [M], if any
    unlabelled: Tensor | None = None  # rows [U, d] of images without a label, if any
    allow_missing_classes: bool = False  # a class without images is known by its texts
    case: Tensor | None = None  # [N]: the number of each image's case; None: its own
    teacher: Teacher | None = None  # of a method that learns from a second backbone

    def subset(self, images: Tensor) -> Support:
        """Some of the images, by their numbers."""
        case = None if self.case is None else self.case[images]
        teacher = self.teacher and replace(self.teacher, rows=self.teacher.rows[images])
        views, labels = self.views.some(images), self.labels[images]
        return replace(self, views=views, labels=labels, case=case, teacher=teacher)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Every cached view as one row: features [N * V, d] and labels [N * V]."""
        if not isinstance(self.views, FixedViews):
            raise ConfigError("This method needs cached views: set views to a number.")
        features = self.views.features.rows
        return features.flatten(0, 1).float(), self.labels.repeat_interleave(features.shape[1], 0)


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
        return text_features(self.backbone, [SINGLE.format(name) for name in self.class_names])

    @cached_property
    def bank(self) -> list[Tensor]:
        """Features of the prompts of each class, encoded once: C tensors [N_c, d]."""
        features = text_features(self.backbone, [text for texts in self.prompts for text in texts])
        return list(features.split([len(texts) for texts in self.prompts]))


@dataclass(frozen=True)
class TrainingFolder:
    """Where a long training writes what happens, and saves its progress, to be resumed."""

    path: Path | None  # None: progress is not saved
    fingerprint: str  # of settings, data and backbone: only the same training is resumed
    log: Callable[[Mapping[str, Any]], None]  # called with one record per epoch


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
    needs_pixels: ClassVar[bool] = False  # it tunes the image tower
    uses_validation: ClassVar[bool] = False
    # What it can do beyond classes with labelled images: "findings", "unlabelled".
    supports: ClassVar[frozenset[str]] = frozenset()
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    free: ClassVar[frozenset[str]] = frozenset()  # settings that may differ in `fit_many`
    augmented: ClassVar[int] = 1  # views per image of the benchmark's code, if `as_benchmarked`

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

    def uses_deep(self, backbone: Backbone) -> bool:
        """Whether its heads see deeper features, too; only asked for if the backbone has them."""
        return False

    @property
    def as_benchmarked(self) -> bool:
        """Whether its images are drawn and seen as the benchmark's adapter code does."""
        return False

    @property
    def kept_views(self) -> int:
        """Random views of each image that are encoded once, before it fits; 0: the whole image."""
        if (views := self.config.views) == "online":
            return 0
        return views or (self.augmented if self.as_benchmarked else 0)

    @abstractmethod
    def fit(
        self, support: Support | None, text: TextSide, *, seed: int, folder: Folder = None
    ) -> Head:
        """Return the head of a support; None if the method needs no images.

        With a `folder`, a method that trains for long writes its epochs and progress there.
        """

    @classmethod
    def fit_many(
        cls,
        methods: Sequence[Self],
        supports: Sequence[Support | None],
        text: TextSide,
        *,
        seeds: Sequence[int],
        folder: Folder = None,
    ) -> list[Head]:
        """Return one head for each method, support and seed; methods differ in `free` settings.

        A method that can train them in one pass overrides this.
        """
        runs = zip(methods, supports, seeds, strict=True)
        return [method.fit(s, text, seed=seed, folder=folder) for method, s, seed in runs]

    def tower(self, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Backbone:
        """The backbone that images are encoded with: changed, if this method changes towers.

        `tensors` are those of a fitted head; empty before the fit.
        """
        return backbone

    def teacher(self, backbone: Backbone) -> Backbone | None:
        """A second backbone to learn from beside this one; None if the method needs none."""
        return None

    def head_for(self, head: Head, text: TextSide) -> Head:
        """Apply what was learned to other class names (base-to-novel)."""
        raise ConfigError(
            f"{self.name} only knows the classes that it was fitted on. For other classes, use a "
            "method that learns prompts, or zero-shot."
        )

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        """Rebuild a head from its saved tensors; a KeyError names one that is missing."""
        (T,) = take(tensors, T="Cd")
        extra = {name: tensor.float() for name, tensor in tensors.items() if name != "T"}
        return TextHead(T, scale, extra)
