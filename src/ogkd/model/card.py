"""`model.json`: everything about a fitted model that is not a tensor, checked when read."""

from __future__ import annotations

import contextlib
import math
import platform
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ogkd import plugins
from ogkd.backbones.base import Backbone
from ogkd.backbones.catalog import find_record, local_folder
from ogkd.core.pooling import Pooling
from ogkd.data.grouping import Grouping
from ogkd.data.task import Task
from ogkd.data.tasks import task_from_json
from ogkd.errors import ConfigError
from ogkd.files import cache_dir, write_json
from ogkd.methods import METHODS, Method, make_method
from ogkd.records import read_record, sealed

SCHEMA = 3
# Said wherever a model's answers are shown or handed on.
CAUTION = (
    "Research software. It is not a medical device and not for autonomous clinical use: a "
    "qualified person must judge every image. It knows only the classes it was fitted on."
)


class BackboneCard(BaseModel):
    """Which backbone the head belongs to."""

    model_config = ConfigDict(frozen=True)

    name: str
    digest: str
    embed_dim: int
    preprocessing: dict[str, Any]
    engine: str = "torch"

    @classmethod
    def of(cls, backbone: Backbone) -> BackboneCard:
        """Describe a loaded backbone."""
        name = backbone.name
        if folder := local_folder(name):
            name = folder.name
            with contextlib.suppress(OSError):  # a convenience: without it, the user says where
                _places().mkdir(parents=True, exist_ok=True)
                (_places() / backbone.digest).write_text(str(folder), encoding="utf-8")
        return cls(
            name=name,
            digest=backbone.digest,
            embed_dim=backbone.embed_dim,
            preprocessing=backbone.preprocessing.identity(),
            engine=backbone.engine,
        )

    def source(self, model: Path) -> str | Path | None:
        """Where the backbone of a model folder is: its name, or a folder on this machine.

        That is the folder that a model was fitted with here, or one beside the model; None if
        there is neither.
        """
        is_name = find_record(self.name) is not None or "/" in self.name  # known, or on the hub
        known = [] if is_name else [model.resolve().parent / self.name]
        with contextlib.suppress(OSError, ValueError):
            known.insert(0, Path((_places() / self.digest).read_text(encoding="utf-8")))
        folder = next((folder for folder in known if folder.is_dir()), None)
        return self.name if folder is None and is_name else folder

    @property
    def short_name(self) -> str:
        """The name to show: a hub id as it is, of a folder only the last part of its path."""
        path = re.split(r"[/\\]", self.name.rstrip("/\\"))
        is_hub_id = len(path) == 2 and path[0] not in ("", ".", "..", "~")
        return self.name if is_hub_id and "/" in self.name else path[-1]


def _places() -> Path:
    """A file for each local backbone that was fitted with here, named by its digest: its folder.

    A model folder is handed on, so it holds no path of the machine that it was made on.
    """
    return cache_dir() / "backbones" / "folders"


class PoolingCard(BaseModel):
    """How the answer to one question about a case follows from its images (`Pooling`)."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    tau: float | None = Field(default=None, ge=0)  # None: infinite, the mean
    heat: float = Field(default=1.0, gt=0)
    mean_weight: float = 0.0
    bias: tuple[float, ...] = ()

    @classmethod
    def of(cls, pooling: Pooling) -> PoolingCard:
        tau = None if math.isinf(pooling.tau) else pooling.tau
        return cls(tau=tau, heat=pooling.heat, mean_weight=pooling.mean_weight, bias=pooling.bias)

    def pooling(self, normal: tuple[int, ...]) -> Pooling:
        tau = math.inf if self.tau is None else self.tau
        return Pooling(tau, self.heat, self.bias, normal, self.mean_weight)


class ModelCard(BaseModel):
    """What was fitted, on what, how. No image and no image's name is in it."""

    model_config = ConfigDict(frozen=True)

    schema_version: int = SCHEMA
    method: str
    plugin: str | None = None  # the name of the one that the method comes from; never imported
    preset: str | None = None
    config: dict[str, Any]
    asks: dict[str, Any]  # the task, as `Task.as_json` writes it
    backbone: BackboneCard
    teacher: BackboneCard | None = None  # that it learned from; not needed for predictions
    logit_scale: float = Field(gt=0, allow_inf_nan=False)
    prompts: str | None = None  # name of the bank; None: templates
    prompts_sha256: str = ""
    data_sha256: str = ""
    support_counts: tuple[int, ...] = ()  # cases learned from: of each class, or with each finding
    support_images: tuple[str, ...] = ()  # which images, by content: 16 hex digits of a hash each
    support_pixels: tuple[str, ...] = ()  # the same by pixels, of a few images of each case
    unlabelled_images: tuple[str, ...] = ()  # those without labels, by content and by pixels
    shots: int | None = None
    seed: int = 0
    cases: dict[str, str | None] = {}  # what makes a case, as `Grouping.as_json` writes it
    images: int = Field(default=0, ge=0)  # that the model has learned from
    learned_cases: int = Field(default=0, ge=0)  # that these belong to
    poolings: tuple[PoolingCard, ...] = ()  # of each question; () where a case is one image
    versions: dict[str, str]
    metrics: dict[str, Any] = {}
    weights_sha256: str | None = None  # of the file beside this one; known once it is written
    support_sha256: str | None = None  # the same of the support's features

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            task = task_from_json(self.asks)
            Grouping.parse(**self.cases)
        except (KeyError, TypeError, ConfigError) as error:
            raise ValueError(f"a task or grouping that is not one ({error})") from None
        if len(self.support_counts) not in (0, len(task.names)):
            raise ValueError(f"{len(self.support_counts)} counts for {len(task.names)} names")
        return self

    @classmethod
    def of(cls, method: Method, task: Task, backbone: Backbone, **facts: Any) -> Self:
        """The card of a model; `facts` are the fields about its texts and images."""
        return cls(
            method=method.name,
            plugin=plugins.name_of(type(method)),
            config=method.config.model_dump(mode="json"),
            asks=task.as_json(),
            backbone=BackboneCard.of(backbone),
            logit_scale=backbone.logit_scale,
            versions=dict(versions()),
            **facts,
        )

    def write(self, path: Path) -> None:
        """Write it with a digest of itself."""
        write_json(path, sealed(self.model_dump(mode="json")), ours=True)

    @property
    def seen(self) -> frozenset[str]:
        """The images learned from, by content and by pixels."""
        return frozenset((*self.support_images, *self.support_pixels))

    @property
    def task(self) -> Task:
        """What the model answers."""
        return task_from_json(self.asks)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.asks["names"])

    @property
    def normal(self) -> tuple[str, ...]:
        return tuple(self.asks["normal"])

    @property
    def grouping(self) -> Grouping:
        """What makes a case."""
        return Grouping.parse(**self.cases)

    @property
    def question_poolings(self) -> tuple[Pooling, ...]:
        """How each question about a case is answered by its images; () where it has one."""
        pairs = zip(self.poolings, self.task.question_normal(), strict=False)
        return tuple(card.pooling(normal) for card, normal in pairs)

    @classmethod
    def read(cls, path: Path) -> ModelCard:
        """Read and check; a folder of a newer version is refused with what to do."""
        try:
            return read_record(path, cls, oldest=SCHEMA, newest=SCHEMA)
        except OSError as error:
            inner = path.parent / "model"  # where `ogkd start` puts it
            near = f" Did you mean {inner}?" if (inner / path.name).is_file() else ""
            raise ConfigError(
                f"{path.parent} is not a model folder: there is no readable {path.name}.{near}",
                argument="model",
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"{path} is damaged ({error}). Copy the model folder again, or fit again."
            ) from error


def versions() -> Mapping[str, str]:
    """Versions that a result depends on."""
    names = ("ogkd", "torch", "transformers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def method_of(card: ModelCard) -> Method:
    """The method of a model, with its settings; a missing plugin is named, never imported."""
    if card.method not in METHODS:
        source = f"the plugin '{card.plugin}'" if card.plugin else "code outside ogkd"
        raise ConfigError(
            f"The model was fitted with the method '{card.method}' from {source}, which is not "
            "loaded. If you trust it, install the package, or load its file or module first: "
            "ogkd.plugins.load(...).",
            argument="plugin",
        )
    return make_method(card.method, settings=card.config)
