"""The known backbones of catalog.toml as checked records."""

from __future__ import annotations

import functools
import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ogkd.errors import BackboneError, did_you_mean
from ogkd.files import cache_dir

__all__ = ["Record", "catalog", "find_record", "read_catalog", "record_for_hub_id", "unknown"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class Record(BaseModel):
    """One backbone: where it is published and what is known of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    format: Literal["builtin", "open_clip", "transformers"] | None = None  # None: look and see
    hub_id: Annotated[str, Field(pattern=f"^{_HUB_ID.pattern}$")] | None = None
    revision: str | None = None
    weights: str | None = None
    size: Annotated[int, Field(gt=0)] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    licence: str
    gated: bool = False
    modality: str
    note: str = ""
    examples: str | None = None  # folder of example images in the hub's repository

    @property
    def folder(self) -> Path:
        """Where it is kept once fetched."""
        return cache_dir() / "backbones" / self.name.replace("/", "--")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.hub_id is None) != (self.format == "builtin"):
            raise ValueError("every backbone but the built-in one needs a hub_id")
        if (self.sha256 or self.size) and not self.weights:
            raise ValueError("sha256 and size are of a file: name it in `weights`")
        return self


def read_catalog(path: Path) -> dict[str, Record]:
    """Read and check a catalogue file."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return {name: Record(name=name, **table) for name, table in tables.items()}
    except (tomllib.TOMLDecodeError, ValidationError, TypeError) as error:
        raise BackboneError(f"The catalogue {path} is not valid: {error}") from error


@functools.cache
def catalog() -> dict[str, Record]:
    """The backbones that ogkd knows, by name."""
    return read_catalog(Path(__file__).with_name("catalog.toml"))


def find_record(name: str) -> Record | None:
    """The record with this name or this hub id, in any letter case."""
    wanted = name.lower()
    for record in catalog().values():
        if wanted == record.name or (record.hub_id and wanted == record.hub_id.lower()):
            return record
    return None


def record_for_hub_id(hub_id: str) -> Record | None:
    """A bare record for a repository that is not in the catalogue; None if it is no hub id."""
    if not _HUB_ID.fullmatch(hub_id):
        return None
    return Record(
        name=hub_id, hub_id=hub_id, licence="not known here: see its page", modality="not known"
    )


def unknown(name: str) -> BackboneError:
    """The error for a name that is nothing we know."""
    known = list(catalog())
    hint = did_you_mean(name.lower(), known)
    return BackboneError(
        f"There is no backbone called '{name}'.{hint}\n"
        f"  Known names: {', '.join(known)}.\n"
        "  A folder: pass its path, such as ./my-model (with open_clip_config.json, or config.json "
        "of a CLIP, SigLIP or dual encoder).\n"
        "  Any other model of these formats: pass its hub id, such as org/name."
    )
