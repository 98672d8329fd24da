"""The known backbones: those of catalog.toml, and those that other packages add.

A package adds a backbone by an entry point in the group `ogkd.backbones`: a function
`(device) -> Backbone`, which is then known under the entry point's name, or a module that calls
`register_backbone`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ogkd import plugins
from ogkd.errors import BackboneError, OgkdError, did_you_mean
from ogkd.files import cache_dir, home, read_toml

if TYPE_CHECKING:
    import torch

    from ogkd.backbones.base import Backbone

    Loader = Callable[[torch.device], Backbone]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAME = re.compile(r"[a-z0-9][\w.-]*")
_SEE = "see the other package that provides it"

loaders: dict[str, Loader] = {}  # of other packages, by backbone name


class Record(BaseModel):
    """One backbone: where it is published and what is known about it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    # Of a folder (`_folder.FORMATS`, layouts.toml), or "builtin". None: told by the files.
    # "plugin": loaded by a function of another package.
    format: str | None = None
    hub_id: Annotated[str, Field(pattern=f"^{_HUB_ID.pattern}$")] | None = None
    revision: str | None = None
    weights: str | None = None
    also: tuple[str, ...] = ()  # weight files besides
    dataset: bool = False  # the hub's repository is one of data
    texts: str | None = None  # the hub's repository with the tokenizer
    tokenizer: str | None = None  # the URL of its tokenizer.json
    model_cfg: dict[str, Any] | None = None  # for open_clip_config.json, if none is published
    obtain: str = ""  # where to get a model that is not on the hub
    missing: str = ""  # why the model cannot be loaded
    signature: str = ""  # how a folder of such a model is recognised: `model_type`, or a key
    parameters: Annotated[int, Field(gt=0)] | None = None  # in millions
    patches: Literal["trained", "projected", "roughly", ""] = ""  # how they are in the shared space
    size: Annotated[int, Field(gt=0)] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    licence: str
    gated: bool = False
    modality: str
    note: str = ""
    examples: str | None = None  # folder of example images in the hub's repository

    @property
    def folder(self) -> Path:
        """Where its files are stored once fetched."""
        return cache_dir() / "backbones" / self.name.replace("/", "--")

    def require_loadable(self) -> None:
        """Raise if it is known that it cannot be loaded."""
        if self.missing:
            raise BackboneError(
                f"{self.name} cannot be loaded: {self.missing}", argument="backbone"
            )


def register_backbone(name: str, loader: Loader) -> None:
    """Make a backbone available under `name` in this process; `loader` takes a torch.device.

    Packages that are installed use an entry point instead, which every process sees.
    """
    if not _NAME.fullmatch(name):
        raise BackboneError(
            f"A backbone's name has small letters, digits, '-', '_' and '.', unlike '{name}'.",
            argument="name",
        )
    if name in _own_catalog() or loaders.get(name, loader) is not loader:
        raise BackboneError(f"There is already a backbone called '{name}'.", argument="name")
    loaders[name] = loader


def catalog() -> dict[str, Record]:
    _register_installed()
    about = {"format": "plugin", "licence": _SEE, "modality": _SEE}
    functions = {name: Record.model_validate({"name": name, **about}) for name in loaders}
    return {**_own_catalog(), **functions}


def find_record(name: str) -> Record | None:
    """The record with this name or hub id, in any letter case."""
    wanted = name.lower()
    for records in (_own_catalog, catalog):  # plugins only if it is none of ours
        for record in records().values():
            if wanted == record.name or (record.hub_id and wanted == record.hub_id.lower()):
                return record
    return None


def local_folder(name: str) -> Path | None:
    """The folder on this machine that a backbone's name is; None for a known name or a hub id.

    What is handed on names such a backbone by the last part of the path only.
    """
    folder = home(name)
    return folder.resolve() if find_record(name) is None and folder.is_dir() else None


def hub_record(hub_id: str) -> Record:
    """A minimal record for a repository outside the catalogue; an error if it is not a hub id."""
    if _HUB_ID.fullmatch(hub_id):
        modality, licence = "unknown", "unknown: see its page"
        return Record(name=hub_id, hub_id=hub_id, licence=licence, modality=modality)
    known = list(catalog())
    raise BackboneError(
        f"There is no backbone called '{hub_id}'.{did_you_mean(hub_id.lower(), known)} Give one of "
        f"{', '.join(known)}; or a folder; or a hub id such as org/name.",
        argument="backbone",
    )


@functools.cache
def _own_catalog() -> dict[str, Record]:
    tables = read_toml(Path(__file__).with_name("catalog.toml"))
    return {name: Record(name=name, **table) for name, table in tables.items()}


@functools.cache
def _register_installed() -> None:
    """Register the loaders of other packages, once per process."""
    for what, name, value in plugins.installed(plugins.BACKBONES):
        try:
            if callable(value):
                register_backbone(name, value)
            elif not isinstance(value, ModuleType):  # a module registers its own
                raise BackboneError(f"it is {type(value).__name__}, not a function")
        except OgkdError as error:
            raise BackboneError(f"{what} cannot be used: {error}. Fix or uninstall it.") from error
