"""The benchmark datasets of catalog.toml as checked records; no images."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

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


def read_catalog(path: Path) -> dict[str, Benchmark]:
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


@functools.cache
def benchmarks() -> Mapping[str, Benchmark]:
    """The paper's benchmark datasets by name, in alphabetical order."""
    return MappingProxyType(read_catalog(Path(__file__).with_name("catalog.toml")))


def find_benchmark(name: str) -> Benchmark | None:
    """Find a dataset by its name, folder (COVID_19) or title, in any spelling of `plain_name`."""
    wanted = plain_name(name)
    for record in benchmarks().values():
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
    known = benchmarks()
    hint = did_you_mean(name.strip().lower(), known)
    raise ConfigError(
        f"There is no benchmark dataset called '{name}'.{hint} Known names: {', '.join(known)}.",
        argument="data",
    )
