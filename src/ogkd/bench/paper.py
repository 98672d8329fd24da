"""The paper as data: its printed numbers and its methods (published/*.csv, paper.toml)."""

from __future__ import annotations

import csv
import functools
import io
import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files

from ogkd.bench.runs import RunSpec
from ogkd.datasets.catalog import benchmarks

__all__ = ["Paper", "Published", "benchmark_of", "paper", "plain_name", "published"]


@dataclass(frozen=True)
class Paper:
    """The paper's methods and settings by name; see published/paper.toml."""

    method: str
    baseline: str
    backbone: str
    graph_setting: str
    normal_settings: tuple[str, ...]


@dataclass(frozen=True)
class Published:
    """One printed number, in percent."""

    table: str
    dataset: str  # as in the catalogue, or "average"
    method: str  # as in our registry
    shots: int | None  # None: the method needs none
    part: str  # test, base, novel, hm
    flips: int
    setting: str  # the row of an ablation
    metric: str  # accuracy, or accuracy_gain: the paper's method minus its baseline
    value: float
    std: float | None


@functools.cache
def paper() -> Paper:
    """What published/paper.toml says."""
    text = (files("ogkd.bench") / "published" / "paper.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    return Paper(**content | {"normal_settings": tuple(content["normal_settings"])})


@functools.cache
def published() -> tuple[Published, ...]:
    """Every number in the paper's result tables."""
    found = []
    folder = files("ogkd.bench") / "published"
    for file in sorted(folder.iterdir(), key=lambda place: place.name):
        if not file.name.endswith(".csv"):
            continue
        for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))):
            numbers = {
                "shots": int(row["shots"]) if row["shots"] else None,
                "flips": int(row["flips"]),
                "value": float(row["value"]),
                "std": float(row["std"]) if row["std"] else None,
            }
            found.append(Published(**{**row, **numbers}))  # type: ignore[arg-type]
    return tuple(found)


def benchmark_of(spec: RunSpec) -> str | None:
    """The benchmark that a run is on ("COVID_19" is "covid"); None for others and phantoms."""
    if (spec.data or "").startswith("phantoms"):
        return None
    known: dict[str, str] = {}
    for name, record in benchmarks().items():
        known |= {plain_name(text): name for text in (name, record.title, record.folder)}
    return known.get(plain_name(spec.dataset)) or known.get(plain_name(spec.bank or ""))


def plain_name(text: str) -> str:
    """A name without case, spaces and punctuation, to compare spellings."""
    return re.sub(r"[^a-z0-9]", "", text.casefold())
