"""The datasets of a grid: benchmarks by name, a folder of datasets, or phantoms.

Also what the benchmark knows about the paper beside its numbers (published/paper.toml).
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from filelock import FileLock

from ogkd.bench.runs import FrozenRecord, RunSpec
from ogkd.data.case import Dataset
from ogkd.data.catalog import benchmark, benchmarks, find_benchmark
from ogkd.data.fetch import read_benchmark
from ogkd.data.names import normal_labels
from ogkd.data.phantoms import PHANTOMS, phantom, write_folder
from ogkd.data.read import read_dataset
from ogkd.data.splits import separate_groups
from ogkd.data.tasks import require_classes
from ogkd.errors import ConfigError, did_you_mean
from ogkd.files import cache_dir, home
from ogkd.images.ref import as_stored
from ogkd.prompts.bank import OURS, bank_digest, read_bank, shipped_banks
from ogkd.prompts.released import RELEASED, require_released

_PHANTOMS = "phantoms"


class Paper(FrozenRecord):
    """The paper's methods and settings by name, so that no module names a method."""

    method: str
    baseline: str
    backbone: str
    prompts: str
    graph_setting: str


@cache
def paper() -> Paper:
    text = (files("ogkd.bench") / "published" / "paper.toml").read_text(encoding="utf-8")
    return Paper.model_validate(tomllib.loads(text))


class Source(FrozenRecord):
    """Where a dataset is; it is not opened yet."""

    name: str
    folder: str | None = None  # None: a downloaded benchmark
    bank: str | None = None  # its name in a run: a shipped bank's, "released", or NAME:DIGEST
    bank_file: str | None = None  # of a bank that is a file
    phantom: tuple[tuple[str, int], ...] = ()  # images per class to draw for each split
    upright: bool = True  # False: marks of cameras are ignored (fidelity.md, 54)

    @property
    def collection(self) -> str | None:
        """What distinguishes datasets of the same name: folder name, or number of phantoms."""
        if self.phantom:
            return f"{_PHANTOMS} {'/'.join(str(count) for _, count in self.phantom)}"
        return None if self.folder is None else Path(self.folder).resolve().parent.name

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes, without reading or drawing an image."""
        if self.phantom:
            return tuple(phantom(self.name).class_names)
        if self.folder is None:
            return benchmark(self.name).class_names
        folders = [path for path in Path(self.folder).glob("*/*") if path.is_dir()]
        return tuple(sorted({path.name.replace("_", " ") for path in folders}))

    @property
    def benchmark(self) -> str | None:
        """The benchmark whose presets and normal classes it gets; None: it is none of them."""
        return None if self.phantom else known_as(self.name)


@dataclass(frozen=True)
class OpenSource:
    """An open dataset and its prompts."""

    dataset: Dataset  # no patient is in both the test part and another
    bank: Mapping[str, Sequence[str]] | None

    @property
    def digests(self) -> dict[str, str]:
        """Digests of images and prompts, to compare with those of earlier runs."""
        return {"data_sha256": self.dataset.sha256, "bank_sha256": bank_digest(self.bank)}


def known_as(dataset: str) -> str | None:
    """The paper's benchmark that a dataset is, by any of its names ("COVID_19" is "covid")."""
    record = find_benchmark(dataset)
    return None if record is None else record.name


def benchmark_of(spec: RunSpec) -> str | None:
    """The benchmark that a run is on; None for others and phantoms."""
    return None if spec.of_phantoms else known_as(spec.dataset)


def find_sources(
    data: str | None,
    names: Sequence[str],
    phantoms: Mapping[str, int],
    prompts: str = OURS,
    *,
    upright: bool = True,
) -> dict[str, Source]:
    """Find every dataset before anything runs; an unknown name is an error.

    `prompts` is where banks come from: "ours", "released", or a folder of DATASET.json.
    """
    known: list[str] = []
    if data is None:
        known = list(benchmarks())
    elif data == _PHANTOMS:
        known = list(PHANTOMS)
    else:
        with suppress(OSError):  # a name that is too long
            known = sorted(path.parent.name for path in home(data).glob("*/train/"))
    if not known:
        raise ConfigError(
            f"There is no folder {data} of datasets: {{train,val,test}}/class.", argument="data"
        )
    chosen = known if list(names) == ["*"] else list(dict.fromkeys(names))
    for name in chosen:
        if name not in known:
            hint = did_you_mean(name, known, cutoff=0.4)
            raise ConfigError(f"Unknown dataset '{name}'.{hint}", argument="datasets")
    if data == _PHANTOMS and prompts != OURS:
        raise ConfigError("Phantoms have their own prompts.", argument="prompts")
    sources = {}
    for name in chosen:
        bank, file = _chosen_bank(name, prompts)
        sources[name] = Source(
            name=name,
            folder=str((home(data) / name).absolute()) if data not in (None, _PHANTOMS) else None,
            bank=bank,
            bank_file=file,
            phantom=tuple(phantoms.items()) if data == _PHANTOMS else (),
            upright=upright,
        )
    return sources


def texts_of(source: Source) -> dict[str, list[str]] | None:
    """The prompts of a dataset; None: templates."""
    if source.bank is None:
        return None
    if source.bank == RELEASED:
        return read_bank(require_released())
    return read_bank(shipped_banks().get(source.bank, Path(source.bank_file or source.bank)))


def _chosen_bank(dataset: str, prompts: str) -> tuple[str | None, str | None]:
    """The name of a dataset's bank as runs have it, and its file if it is one.

    A file's name has a digest of its texts, so that a run is named by them and not by a path.
    """
    if prompts == RELEASED:
        return RELEASED, None
    record = find_benchmark(dataset)
    if prompts == OURS:
        bank = dataset.lower() if record is None else record.name
        return bank if bank in shipped_banks() else None, None
    try:
        banks = {path.stem: path for path in home(prompts).glob("*.json")}
    except OSError:
        banks = {}
    for name in (dataset, known_as(dataset)):
        if name in banks:
            bank = f"{name}:{bank_digest(read_bank(banks[name]))[:12]}"
            return bank, str(banks[name].resolve())
    raise ConfigError(f"There is no file {prompts}/{dataset}.json.", argument="prompts")


def open_source(source: Source) -> OpenSource:
    """Read a dataset; phantoms are drawn once and kept in the cache."""
    bank: Mapping[str, Sequence[str]] | None
    normal: Sequence[str] | None
    if source.phantom:
        record = phantom(source.name)
        dataset = read_dataset(_drawn(source))
        bank = dict(zip(record.class_names, record.descriptions, strict=True))
        normal = [record.class_names[record.normal]]
    else:
        known = benchmarks().get(source.benchmark or "")
        bank = texts_of(source)
        normal = None if known is None else known.normal
        dataset = read_dataset(source.folder) if source.folder else read_benchmark(source.name)
        require_classes(dataset.task, "The benchmark")
        if source.folder and normal is not None and not set(normal) <= set(dataset.names):
            normal = None  # other class names: "normal" or "healthy" in a name decides
    if not source.upright:
        dataset = dataset.map(lambda case: replace(case, images=tuple(map(as_stored, case.images))))
    dataset = dataset.with_normal(normal_labels(dataset.names, normal))
    return OpenSource(separate_groups(dataset)[0], bank)


def _drawn(source: Source) -> Path:
    text = json.dumps([source.name, source.phantom])
    name = f"{source.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder = cache_dir() / _PHANTOMS / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{name}.lock")):  # one process draws, the others wait
        if not folder.is_dir():
            write_folder(source.name, folder, splits=dict(source.phantom), seed=1)
    return folder
