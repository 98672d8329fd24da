"""The known benchmark datasets: those of catalog.toml, and those that other packages add.

A package adds datasets by an entry point in the group `ogkd.datasets` that resolves to the path
of a catalogue file. Nothing here reads images.
"""

from __future__ import annotations

import functools
import os
import tomllib
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ogkd.errors import ConfigError, did_you_mean

__all__ = ["Benchmark", "Counts", "benchmark", "benchmarks", "find_benchmark", "read_catalog"]

ENTRY_POINTS = "ogkd.datasets"
HUB = "https://huggingface.co"
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]  # one folder deep, no tricks


class Counts(BaseModel):
    """Images in each part of a split file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: Annotated[int, Field(ge=1)]
    val: Annotated[int, Field(ge=0)]
    test: Annotated[int, Field(ge=1)]


class Benchmark(BaseModel):
    """One dataset: where it is published, its classes and what its split file must contain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: _FileName
    title: str
    modality: str
    organ: str
    class_names: Annotated[tuple[str, ...], Field(min_length=2)]  # in label order
    base: int  # number of base classes; they are the first labels
    base_to_novel: bool = True  # whether the paper uses it in that protocol
    normal: tuple[str, ...] = ()
    graded: bool = False  # whether the classes are grades, in order
    archive: _FileName
    url: str
    archive_sha256: _Sha256 | None = None
    folder: _FileName  # of the images
    split_file: _FileName
    split_url: str | None = None  # for an archive without its split file
    split_sha256: _Sha256 | None = None
    counts: Counts
    citation: str
    licence: str
    note: str = ""

    @property
    def base_classes(self) -> tuple[str, ...]:
        """The classes learned from in the base-to-novel protocol."""
        return self.class_names[: self.base]

    @property
    def novel_classes(self) -> tuple[str, ...]:
        """The classes that protocol keeps unseen."""
        return self.class_names[self.base :]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({name.casefold() for name in self.class_names}) < len(self.class_names):
            raise ValueError(f"a class of {self.name} is named twice")
        if unknown := set(self.normal) - set(self.class_names):
            raise ValueError(f"normal classes that {self.name} does not have: {unknown}")
        if not 0 < self.base < len(self.class_names):
            raise ValueError(f"{self.name} needs base and novel classes, but base is {self.base}")
        return self


def read_catalog(path: Path) -> dict[str, Benchmark]:
    """Read and check a catalogue file."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        source = tables.pop("source")
        found = {}
        for name, table in tables.items():
            folder = table["folder"]
            archive, split_file = f"{folder}.zip", f"split_{folder}.json"
            found[name] = Benchmark(
                name=name,
                archive=archive,
                url=f"{HUB}/datasets/{source['hub']}/resolve/main/{archive}",
                split_file=split_file,
                split_url=f"{source['splits']}/{folder}/{split_file}",
                **table,
            )
        return found
    except OSError as error:
        raise ConfigError(f"The catalogue {path} cannot be read: {error.strerror}.") from error
    except (ValueError, ValidationError, TypeError, KeyError) as error:
        raise ConfigError(f"The catalogue {path} is not valid: {error}") from error


@functools.cache
def _catalog() -> MappingProxyType[str, Benchmark]:
    found = read_catalog(Path(__file__).with_name("catalog.toml"))
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            value = entry.load()
            if not isinstance(value, str | os.PathLike):
                raise TypeError(f"it is {type(value).__name__}, not a path")
            added = read_catalog(Path(value))
            if twice := sorted(added.keys() & found.keys()):
                raise ConfigError(f"There is already a dataset called '{twice[0]}'")
        except Exception as error:  # whatever another package's code raises
            raise ConfigError(
                f"The entry point {entry.name} = {entry.value} ({ENTRY_POINTS}) cannot be used: "
                f"{error}. Fix or uninstall the package that defines it."
            ) from error
        found |= added
    return MappingProxyType(dict(sorted(found.items())))


def benchmarks() -> dict[str, Benchmark]:
    """The benchmark datasets by name, in alphabetical order."""
    return dict(_catalog())


def find_benchmark(name: str) -> Benchmark | None:
    """The record of a dataset by its name or its folder's name (COVID_19), in any letter case."""
    wanted = name.strip().lower()
    for record in _catalog().values():
        if wanted in (record.name, record.folder.lower(), record.title.lower()):
            return record
    return None


def benchmark(name: str) -> Benchmark:
    """The record of a dataset, or an error that lists the known ones."""
    if (record := find_benchmark(name)) is not None:
        return record
    known, wanted = _catalog(), name.strip().lower()
    hint = did_you_mean(wanted, known)
    raise ConfigError(
        f"There is no benchmark dataset called '{name}'.{hint} Known names: {', '.join(known)}."
    )
