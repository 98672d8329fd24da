"""The paper as data: its printed numbers and its methods (published/*.csv, paper.toml)."""

from __future__ import annotations

import csv
import functools
import io
import re
import tomllib
from importlib.resources import files

from ogkd.bench.runs import FrozenRecord, RunSpec
from ogkd.datasets.catalog import benchmarks


class Paper(FrozenRecord):
    """The paper's methods and settings by name; see published/paper.toml."""

    method: str
    baseline: str
    backbone: str
    prompts: str
    graph_setting: str
    normal_settings: tuple[str, ...]


class Published(FrozenRecord):
    """One printed number, in percent."""

    table: str
    dataset: str  # as in the catalogue, or "average"
    method: str  # as in our registry
    shots: int | None = None  # None: the method needs none
    part: str  # test, base, novel, hm
    flips: int
    setting: str = ""  # the row of an ablation
    metric: str  # accuracy, or accuracy_gain: the paper's method minus its baseline
    value: float
    std: float | None = None


@functools.cache
def paper() -> Paper:
    text = (files("ogkd.bench") / "published" / "paper.toml").read_text(encoding="utf-8")
    return Paper.model_validate(tomllib.loads(text))


@functools.cache
def published() -> tuple[Published, ...]:
    """Every number in the paper's result tables."""
    folder = files("ogkd.bench") / "published"
    return tuple(
        Published.model_validate({key: value for key, value in row.items() if value})
        for file in sorted(folder.iterdir(), key=lambda place: place.name)
        if file.name.endswith(".csv")
        for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
    )


def benchmark_of(spec: RunSpec) -> str | None:
    """The benchmark that a run is on ("COVID_19" is "covid"); None for others and phantoms.

    A bank of prompts says nothing about the images: own images can be described with any.
    """
    if (spec.data or "").startswith("phantoms"):
        return None
    known: dict[str, str] = {}
    for name, record in benchmarks().items():
        known |= {plain_name(text): name for text in (name, record.title, record.folder)}
    return known.get(plain_name(spec.dataset))


def plain_name(text: str) -> str:
    """A name without case, spaces and punctuation, to compare spellings."""
    return re.sub(r"[^a-z0-9]", "", text.casefold())
