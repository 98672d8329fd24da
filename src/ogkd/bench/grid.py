"""A grid file: which datasets, methods, shots, seeds and changes to settings make the runs."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ogkd.bench.results import Cell, Plan
from ogkd.bench.sources import Source, find_sources
from ogkd.bench.spec import Protocol, RunSpec
from ogkd.datasets.splits import Sampling
from ogkd.errors import ConfigError, did_you_mean
from ogkd.methods import METHODS, Method, make_method, presets

__all__ = ["Grid", "Row", "expand", "grid_names", "protocols", "read_grid"]


_FEWEST = 4  # classes for base-to-novel: two of each
_Positive = Annotated[int, Field(ge=1)]
_Whole = Annotated[int, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Row(_Record):
    """One row of the table: a method, perhaps with changes to its settings."""

    method: str
    label: str = ""
    preset: str | None = None  # instead of the grid's
    settings: dict[str, Any] = {}
    sweep: bool = True  # False: this row is run once, not for every value of the sweep


class Phantoms(_Record):
    """How many phantom images of each class are drawn."""

    train: int = Field(default=16, ge=1)
    val: int = Field(default=4, ge=1)
    test: int = Field(default=20, ge=1)


class Grid(_Record):
    """What a grid file says; every list multiplies the runs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    title: str = ""
    table: Literal["few-shot", "base-to-novel", "ablation", "noise", "sweep"] = "few-shot"
    protocol: Protocol = "few-shot"
    backbone: str = "biomedclip"
    data: str | None = None  # a folder of datasets, "phantoms", or None: the benchmarks by name
    datasets: list[str] = Field(min_length=1)  # names, or ["*"] for all that are there
    banks: dict[str, str] = {}  # prompt bank of a dataset that is not called like it
    shots: list[_Positive] = Field(default=[16], min_length=1)
    seeds: list[_Whole] = Field(default=[1, 2, 3], min_length=1)
    flips: list[_Whole] = Field(default=[0], min_length=1)
    budgets: list[_Positive | None] = Field(default=[None], min_length=1)
    sampling: Sampling = "released"
    preset: str = "auto"  # "{bank}" is replaced; a method without it takes "auto", or its defaults
    settings: dict[str, Any] = {}  # for every row whose method has them
    sweep: dict[str, list[Any]] = {}  # one setting and its values: runs with each
    methods: list[str] = []  # rows without changes, in short
    only: list[str] | None = None  # keep rows with these labels, or else of these methods
    rows: list[Row] = []
    phantoms: Phantoms = Phantoms()


def protocols() -> dict[str, str]:
    """The grids that come with the package, "paper/few-shot" and so on, and their titles."""
    found = {}
    top = files("ogkd.bench") / "protocols"
    for folder in sorted(top.iterdir(), key=lambda place: place.name):
        inside = folder.iterdir() if folder.is_dir() else [folder]
        prefix = f"{folder.name}/" if folder.is_dir() else ""
        for file in sorted(inside, key=lambda place: place.name):
            if file.name.endswith(".toml"):
                title = tomllib.loads(file.read_text(encoding="utf-8")).get("title", "")
                found[f"{prefix}{file.name.removesuffix('.toml')}"] = title
    return found


def read_grid(source: str | Path, changes: Mapping[str, Any] | None = None) -> Grid:
    """A grid from a file, or one of the package's by name; `changes` replace single fields."""
    text = _text(source)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}. Mend it and run again.") from None
    content |= {key: value for key, value in (changes or {}).items() if value is not None}
    content.setdefault("name", Path(source).stem)
    try:
        return Grid.model_validate(content)
    except ValidationError as error:
        found = error.errors()
        # A misspelled name is often the reason why another is missing.
        problem = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
        place = ".".join(str(part) for part in problem["loc"])
        fields = Row.model_fields if problem["loc"][0] == "rows" else Grid.model_fields
        hint = did_you_mean(str(problem["loc"][-1]), fields)
        raise ConfigError(
            f"{source}: '{place}' is wrong: {problem['msg']}.{hint} Known there: "
            f"{', '.join(fields)}."
        ) from None


def grid_names(source: str) -> list[str]:
    """The grids of a set of ours ("phantoms", "paper"), or just what was given.

    >>> grid_names("phantoms")[0]
    'phantoms/base-to-novel'
    """
    return [name for name in protocols() if name.startswith(f"{source.rstrip('/')}/")] or [source]


def _text(source: str | Path) -> str:
    path = Path(source)
    known = protocols()
    if not path.is_file() and str(source) in known:
        place = files("ogkd.bench").joinpath("protocols", *f"{source}.toml".split("/"))
        return place.read_text(encoding="utf-8")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"There is no grid '{source}' ({error}).{did_you_mean(str(source), known)} Give a TOML "
            f"file, or one of: {', '.join(known)}."
        ) from None


def expand(grid: Grid) -> tuple[Plan, dict[str, Source]]:
    """Every run of a grid, and where its datasets are."""
    sources = find_sources(grid.data, grid.datasets, grid.banks, grid.phantoms.model_dump())
    rows = [*(Row(method=name) for name in grid.methods), *grid.rows]
    if rows:
        _refuse_unknown_settings(grid, rows)
    if grid.only is not None:
        known = {name for row in rows for name in (row.method, row.label) if name}
        for name in grid.only:
            if name not in known:
                names = ", ".join(sorted(known))
                raise ConfigError(
                    f"Grid '{grid.name}' has no method '{name}'.{did_you_mean(name, known)} It "
                    f"has: {names}."
                )
        labels = {row.label or row.method for row in rows}
        chosen = set(grid.only)  # of a method that is no row's label, every row is meant
        rows = [
            row
            for row in rows
            if (row.label or row.method) in chosen or row.method in chosen - labels
        ]
    if not rows:
        raise ConfigError(f"Grid '{grid.name}' names no method. Add methods = [...] or [[rows]].")
    if len(grid.sweep) > 1:
        raise ConfigError(
            f"A grid sweeps one setting, but '{grid.name}' names {', '.join(grid.sweep)}."
        )
    sources = _suited(grid, rows, sources)
    cells: dict[tuple[str, str], Cell] = {}
    for source, row in itertools.product(sources.values(), rows):
        for cell in _cells(grid, source, row):
            cells.setdefault((cell.label, cell.spec.hash), cell)
    if len(grid.budgets) > 1 and (grid.sweep or len(grid.flips) > 1):
        raise ConfigError(
            f"A table has one axis beside shots, but '{grid.name}' has budgets and another one. "
            "Make a grid for each."
        )
    if (most := max(grid.flips)) > min(grid.shots):
        raise ConfigError(
            f"flips = {most} needs as many shots, but '{grid.name}' has shots = {min(grid.shots)}."
        )
    _refuse_equal_labels(grid, rows)
    axis = next(iter(grid.sweep), None)
    axis = axis or ("flips" if len(grid.flips) > 1 else None)
    axis = axis or ("budget" if len(grid.budgets) > 1 else None)
    plan = Plan(
        name=grid.name,
        title=grid.title or grid.name,
        table=grid.table,
        sweep=axis,
        cells=tuple(cells.values()),
    )
    return plan, sources


def _refuse_unknown_settings(grid: Grid, rows: Sequence[Row]) -> None:
    """A setting is for the methods that have it; one that none of them has is a mistake."""
    known = {name for row in rows for name in _method_class(row.method).Config.model_fields}
    for name in (*grid.settings, *grid.sweep):
        if (first := name.split(".")[0]) not in known:
            raise ConfigError(
                f"No method of grid '{grid.name}' has a setting '{name}'."
                f"{did_you_mean(first, known)} They have: {', '.join(sorted(known))}."
            )


def _refuse_equal_labels(grid: Grid, rows: Sequence[Row]) -> None:
    labels = [row.label or row.method for row in rows]
    for label in labels:
        mine = [row for row in rows if (row.label or row.method) == label]
        if any(row != mine[0] for row in mine):
            raise ConfigError(
                f"Two different rows of grid '{grid.name}' are called '{label}'. Give each a "
                "label of its own."
            )


def _suited(grid: Grid, rows: Sequence[Row], sources: dict[str, Source]) -> dict[str, Source]:
    """The datasets that the protocol can be done on; of "*" others are left out."""
    normal = any("gamma_normal" in (*grid.settings, *grid.sweep, *row.settings) for row in rows)
    if grid.protocol == "few-shot" and not normal:
        return sources
    reasons = {}
    for name, source in sources.items():
        if grid.protocol == "base-to-novel" and (count := len(source.class_names)) < _FEWEST:
            reasons[name] = (
                f"{name} has {count} classes, but base-to-novel needs {_FEWEST}: with one novel "
                "class every answer is right."
            )
        elif normal and not source.has_normal:
            reasons[name] = f"{name} has no class marked as normal, which gamma_normal is for."
    if reasons and (list(grid.datasets) != ["*"] or len(reasons) == len(sources)):
        raise ConfigError(f"{next(iter(reasons.values()))} Leave it out with --datasets.")
    return {name: source for name, source in sources.items() if name not in reasons}


def _cells(grid: Grid, source: Source, row: Row) -> Iterable[Cell]:
    method = _method_class(row.method)
    chosen = _preset(row, grid.preset, source)
    label = row.label or row.method
    ((axis, values),) = (grid.sweep or {"": [None]}).items()
    if axis and not row.sweep:
        values = [None]
    for value in values:
        settings = _settings(method, grid.settings, row.settings)
        if value is not None:
            settings[axis] = value
        instance = make_method(row.method, preset=chosen, settings=settings)
        _refuse_wrong_protocol(grid, instance)
        numbers = itertools.product(grid.shots, grid.flips, grid.budgets, grid.seeds)
        for shots, flips, budget, seed in numbers:
            yield Cell(
                label=label,
                spec=RunSpec(
                    protocol=grid.protocol,
                    dataset=source.name,
                    data=source.collection,
                    method=row.method,
                    shots=shots,
                    seed=seed,
                    preset=chosen,
                    settings=settings,
                    flips=flips,
                    budget=budget,
                    bank=source.bank,
                    sampling=grid.sampling,
                    # A folder may lie elsewhere on the next machine.
                    backbone=Path(grid.backbone).name,
                ),
            )


def _settings(
    method: type[Method], common: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """The grid's settings that the method has, then the row's."""
    fields = method.Config.model_fields
    return {key: value for key, value in common.items() if key.split(".")[0] in fields} | dict(own)


def _preset(row: Row, wanted: str, source: Source) -> str | None:
    known = presets(row.method)
    if row.preset is not None:
        return row.preset.replace("{bank}", str(source.bank))
    names = [wanted.replace("{bank}", str(source.bank)), "auto"]
    return next((name for name in names if name in known), None)


def _method_class(name: str) -> type[Method]:
    if name not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise ConfigError(f"Unknown method '{name}'.{did_you_mean(name, METHODS)} Known: {known}.")
    return METHODS[name]


def _refuse_wrong_protocol(grid: Grid, method: Method) -> None:
    if grid.protocol == "base-to-novel" and type(method).head_for is Method.head_for:
        able = [name for name, kind in METHODS.items() if kind.head_for is not Method.head_for]
        raise ConfigError(
            f"{method.name} knows only the classes that it saw images of, so it cannot be judged "
            f"on novel classes. Methods for base-to-novel: {', '.join(sorted(able))}."
        )
