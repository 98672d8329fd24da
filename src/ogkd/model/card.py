"""`model.json`: everything about a fitted model that is not a tensor, checked when read."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ogkd.backbones.base import Backbone
from ogkd.backbones.catalog import find_record
from ogkd.core.pooling import Pooling
from ogkd.datasets.bags import BagRule
from ogkd.errors import ConfigError
from ogkd.files import home, write_json
from ogkd.images import SliceRule
from ogkd.methods import METHODS, Method, make_method
from ogkd.records import read_record, sealed

SCHEMA = 2  # 1 unless the model answers several findings, which earlier versions do not know
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
        name, folder = backbone.name, home(backbone.name)
        # A folder is found again from wherever the model is used.
        if find_record(name) is None and folder.is_dir():
            name = str(folder.resolve())
        return cls(
            name=name,
            digest=backbone.digest,
            embed_dim=backbone.embed_dim,
            preprocessing=asdict(backbone.preprocessing),
            engine=backbone.engine,
        )

    @property
    def short_name(self) -> str:
        """The name to show: a hub id as it is, of a folder only the last part of its path."""
        parts = re.split(r"[/\\]", self.name.rstrip("/\\"))
        # A hub id is owner/name; a path starts at a root, a drive, ~ or a dot, or goes deeper.
        rooted = parts[0] == "" or parts[0].endswith(":") or parts[0].startswith(("~", "."))
        is_path = rooted or len(parts) > 2 or "\\" in self.name
        return parts[-1] if is_path else "/".join(parts)


class BagCard(BaseModel):
    """What makes a bag, and how its answer follows from those of its pictures."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    by: str | None = None  # see `BagRule`
    slices: str | None = None
    tau: float | None = Field(default=None, ge=0)  # None: infinite, the mean
    heat: float = Field(default=1.0, gt=0)
    usual: float = 0.0  # an older model: nothing is subtracted
    bias: tuple[float, ...] = ()
    pictures: int = Field(default=0, ge=0)  # that the model has learned from

    @property
    def rule(self) -> BagRule:
        return BagRule.of(self.by, self.slices) or BagRule()


class ModelCard(BaseModel):
    """What was fitted, on what, how. No image and no image's name is in it."""

    model_config = ConfigDict(frozen=True)

    schema_version: int = 1
    method: str
    plugin: str | None = None  # the name of the one that the method comes from; never imported
    preset: str | None = None
    config: dict[str, Any]
    findings: bool = False  # each name is a finding that is present or not, not one of the classes
    class_names: tuple[str, ...] = Field(min_length=1)
    normal: tuple[str, ...] = ()  # classes that stand for "nothing found"
    backbone: BackboneCard
    logit_scale: float = Field(gt=0, allow_inf_nan=False)
    prompts: str | None = None  # name of the bank; None: templates, or an older model
    prompts_sha256: str
    data_sha256: str
    support_counts: tuple[int, ...]  # images learned from: of each class, or with each finding
    support_images: tuple[str, ...] = ()  # which images, by content: 16 hex digits of a hash each
    support_pixels: tuple[str, ...] = ()  # the same by pixels; () in older models
    unlabelled_images: tuple[str, ...] = ()  # those without labels, by content and by pixels
    shots: int | None = None
    seed: int
    bags: BagCard | None = None  # None: it answers single images
    slice: str | None = None  # which slice of a volume was learned from, if it names none
    versions: dict[str, str]
    metrics: dict[str, Any] = {}
    imported_sha256: str | None = None  # of the checkpoint that it was imported from
    weights_sha256: str | None = None  # of the file beside this one; known once it is written
    support_sha256: str | None = None  # the same of the support's features

    @field_validator("class_names")
    @classmethod
    def _enough(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if len(names) < 2 and not info.data.get("findings"):
            raise ValueError("fewer than 2 classes")
        return names

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = self.class_names
        if not all(name.strip() for name in names) or len(set(names)) < len(names):
            raise ValueError("class names that are empty or occur twice")
        "".join(names).encode()  # a UnicodeEncodeError is a ValueError
        if len(self.support_counts) not in (0, len(names)):
            raise ValueError(f"{len(self.support_counts)} counts for {len(names)} classes")
        if self.bags is not None and len(self.bags.bias) not in (0, len(names)):
            raise ValueError(f"{len(self.bags.bias)} biases for {len(names)} classes")
        return self

    def write(self, path: Path) -> None:
        """Write it with a digest of itself."""
        write_json(path, sealed(self.model_dump(mode="json")), ours=True)

    @property
    def seen(self) -> frozenset[str]:
        """The images learned from, by content and by pixels."""
        return frozenset((*self.support_images, *self.support_pixels))

    @property
    def normal_labels(self) -> tuple[int, ...]:
        """Labels of the classes that mean "nothing found"."""
        return tuple(c for c, name in enumerate(self.class_names) if name in self.normal)

    @property
    def pooling(self) -> Pooling | None:
        """How the answer for a bag follows from those for pictures; None without bags."""
        found = self.bags
        if found is None:
            return None
        tau = math.inf if found.tau is None else found.tau
        return Pooling(tau, found.heat, found.bias, self.normal_labels, found.usual)

    @property
    def slice_rule(self) -> SliceRule | None:
        """Which slice of a volume the model learned from, if the volumes named none."""
        return None if self.slice is None else SliceRule.parse(self.slice)

    @classmethod
    def read(cls, path: Path) -> ModelCard:
        """Read and check; a folder of a newer version is refused with what to do."""
        try:
            return read_record(path, cls, newest=SCHEMA)
        except OSError as error:
            raise ConfigError(
                f"{path.parent} is not a model folder: there is no readable {path.name}. "
                "Give the folder of a fitted model."
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
