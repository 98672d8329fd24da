"""The benchmark datasets of catalog.toml and of plugins as checked records; no images."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ogkd import plugins
from ogkd.errors import ConfigError, did_you_mean
from ogkd.files import read_toml

HUB = "https://huggingface.co"
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]  # one folder deep, no tricks


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Counts(_Record):
    train: Annotated[int, Field(ge=1)]
    val: Annotated[int, Field(ge=0)]
    test: Annotated[int, Field(ge=1)]


class Benchmark(_Record):
    """One dataset: where it is published, its classes and what its split file must contain."""

    name: _FileName
    title: str
    modality: str
    organ: str
    class_names: tuple[str, ...]  # in label order
    base: int  # the first so many labels are base classes
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
    split_git_blob: Annotated[str, Field(pattern="^[0-9a-f]{40}$")] | None = None
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
    try:
        tables = read_toml(path)
        source = tables.pop("source")
        records = {}
        for name, table in tables.items():
            folder = table["folder"]
            archive, split_file = f"{folder}.zip", f"split_{folder}.json"
            records[name] = Benchmark(
                name=name,
                archive=archive,
                url=f"{HUB}/datasets/{source['hub']}/resolve/main/{archive}",
                split_file=split_file,
                split_url=f"{source['splits']}/{folder}/{split_file}",
                **table,
            )
        return records
    except (tomllib.TOMLDecodeError, ValidationError, TypeError, KeyError) as error:
        raise ConfigError(f"The catalogue {path} is not valid: {error}") from error


@functools.cache
def benchmarks() -> Mapping[str, Benchmark]:
    """The paper's benchmark datasets by name, in alphabetical order."""
    return MappingProxyType(read_catalog(Path(__file__).with_name("catalog.toml")))


@functools.cache
def known_benchmarks() -> Mapping[str, Benchmark]:
    """The paper's datasets and those of plugins, whose entry points are paths of such files."""
    known = dict(benchmarks())
    for what, _, path in plugins.installed(plugins.DATASETS):
        try:
            records = read_catalog(Path(path))
        except (OSError, TypeError, ConfigError) as error:
            raise ConfigError(f"{what} cannot be used: {error}") from error
        if twice := [name for name in records if _called(name, known)]:
            raise ConfigError(f"Two datasets are named '{twice[0]}', one of them in {path}.")
        known |= records
    return MappingProxyType(known)


def find_benchmark(name: str) -> Benchmark | None:
    """Find a dataset by its name, folder (COVID_19) or title, in any spelling of `plain_name`."""
    # Plugins are only loaded if it is none of the paper's.
    return _called(name, benchmarks()) or _called(name, known_benchmarks())


def _called(name: str, records: Mapping[str, Benchmark]) -> Benchmark | None:
    wanted = plain_name(name)
    for record in records.values():
        if wanted and wanted in map(plain_name, (record.name, record.folder, record.title)):
            return record
    return None


def plain_name(text: str) -> str:
    """A name without case, spaces and punctuation, to compare spellings."""
    return re.sub(r"[\W_]", "", text.casefold())


def benchmark(name: str | Benchmark) -> Benchmark:
    if isinstance(name, Benchmark):
        return name
    if (record := find_benchmark(name)) is not None:
        return record
    known = known_benchmarks()
    hint = did_you_mean(name.strip().lower(), known)
    raise ConfigError(
        f"There is no benchmark dataset called '{name}'.{hint} Known names: {', '.join(known)}.",
        argument="data",
    )
