"""The paper as data: its printed numbers and its methods (published/*.csv, paper.toml)."""

from __future__ import annotations

import csv
import functools
import io
import tomllib
from importlib.resources import files

from ogkd.bench.runs import FrozenRecord, RunSpec
from ogkd.bench.sources import known_as


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
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".csv")
        for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
    )


def benchmark_of(spec: RunSpec) -> str | None:
    """The benchmark that a run is on; None for others and phantoms."""
    return None if spec.of_phantoms else known_as(spec.dataset)
