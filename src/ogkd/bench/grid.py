"""Grids: which datasets, methods, shots, seeds and settings a benchmark runs.

A grid is a TOML file. The package's own are ten protocols in three variants (protocols/).
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from ogkd.bench.runs import Cell, Plan, Protocol, RunSpec
from ogkd.bench.sources import Source, find_sources
from ogkd.data.names import fold_name
from ogkd.data.phantoms import MOST_IMAGES
from ogkd.data.splits import MAX_SEED
from ogkd.errors import ConfigError, did_you_mean
from ogkd.files import read_toml
from ogkd.methods import METHODS, Method, make_method, presets
from ogkd.prompts.bank import OURS
from ogkd.records import first_problem

_FEWEST = 4  # classes for base-to-novel: two base, two novel
_DATASET = "{dataset}"  # in the name of a preset: replaced by that of the benchmark
_PHANTOMS = {"train": 16, "val": 4, "test": 20}
_Drawn = Annotated[int, Field(ge=1, le=MOST_IMAGES)]
_Positive = Annotated[int, Field(ge=1, le=1_000_000)]
_Whole = Annotated[int, Field(ge=0, le=MAX_SEED)]


class _Record(BaseModel):  # not imported: ruff must see that defaults are pydantic's
    model_config = ConfigDict(frozen=True, extra="forbid")


class GridRow(_Record):
    """One row of the table: a method, perhaps with other settings."""

    method: str
    label: str = ""
    preset: str | None = None  # instead of the grid's
    settings: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return self.label or self.method


class Grid(_Record):
    """The fields of a grid file; every list multiplies the runs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    title: str = ""
    table: Literal["few-shot", "base-to-novel", "ablation", "noise", "sweep"] = "few-shot"
    protocol: Protocol = "few-shot"
    backbone: str = "biomedclip"
    data: str | None = None  # a folder of datasets, "phantoms", or None: the benchmarks by name
    datasets: list[str] = Field(min_length=1)  # names, or ["*"] for all in `data`
    prompts: str = OURS  # whose prompts: "ours", "released", or a folder of DATASET.json
    shots: list[_Positive] = Field(default=[16], min_length=1)
    seeds: list[_Whole] = Field(default=[1, 2, 3], min_length=1)
    flips: list[_Whole] = Field(default=[0], min_length=1)
    budgets: list[_Positive | None] = Field(default=[None], min_length=1)
    upright: bool = True  # turn photographs as their camera's mark says (fidelity.md, 54)
    judge: Literal["test", "val"] = "test"  # which images: "val" to choose settings by
    test_on: str | None = None  # test on this dataset, which has the same classes, or some of them
    preset: str = "auto"  # "{dataset}" is replaced; see _preset
    settings: dict[str, Any] = {}  # for every row whose method has them
    over: dict[str, Any] = {}  # the same, but instead of a row's own, too
    sweep: dict[str, list[Any]] = Field(default={}, max_length=1)  # one setting and its values
    methods: list[str] = []  # rows without other settings, in short
    only: list[str] | None = None  # keep the rows with these labels, or else of these methods
    rows: list[GridRow] = []
    row_sets: dict[str, list[str]] = {}  # methods by the name of a choice, instead of all rows
    phantoms: dict[Literal["train", "val", "test"], _Drawn] = {}  # images of each class

    @property
    def swept(self) -> list[str]:
        """What varies beside shots: a setting, "flips" or "budget"."""
        varied = {"flips": len(self.flips), "budget": len(self.budgets)}
        return [*self.sweep, *(name for name, count in varied.items() if count > 1)]

    @property
    def all_rows(self) -> list[GridRow]:
        return [*(GridRow(method=name) for name in self.methods), *self.rows]

    @model_validator(mode="after")
    def _check(self) -> Self:
        # Label noise may be swept beside a setting; the prompts' budget only alone.
        if "budget" in self.swept[1:]:
            raise ValueError(f"a table has one axis beside shots, not {', '.join(self.swept)}")
        if self.test_on is not None and self.protocol == "base-to-novel":
            raise ValueError("test_on is for the few-shot protocol")
        if max(self.flips) > min(self.shots):
            raise ValueError(f"flips = {max(self.flips)} is more than its shots")
        rows = {row.name: row for row in self.all_rows}
        if not rows:
            raise ValueError("it names no method")
        for row in self.all_rows:
            if row != rows[row.name]:
                raise ValueError(f"two different rows are called '{row.name}'")
        return self


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """The package's grids by name: every protocol in every variant, put together.

    A later table replaces single fields of an earlier one: the variant's, the variant's for the
    protocol (few-shot or base-to-novel), the file's own, the file's for the variant.
    """
    folder = files("ogkd.bench") / "protocols"
    content = {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    }
    variants = content.pop("variants")
    grids = {}
    for variant, name in itertools.product(sorted(variants), sorted(content)):
        protocol = dict(content[name])
        here = {key: protocol.pop(key, {}) for key in variants}[variant]
        common = dict(variants[variant])
        by_protocol = {key: common.pop(key, {}) for key in ("few-shot", "base-to-novel")}
        common |= by_protocol[protocol["protocol"]]
        grids[f"{variant}/{name}"] = {"name": name} | common | protocol | here
    return grids


def protocols() -> dict[str, str]:
    """The names of the package's grids, "paper/few-shot" and so on, and their titles."""
    return {name: content["title"] for name, content in _shipped().items()}


def grid_names(source: str) -> list[str]:
    """The grids of a variant ("phantoms", "paper"), or just what was given.

    >>> grid_names("phantoms")[0]
    'phantoms/base-to-novel'
    """
    return [name for name in protocols() if name.startswith(f"{source.rstrip('/')}/")] or [source]


def read_grid(
    source: str | Path, changes: Mapping[str, Any] | None = None, *, row_set: str | None = None
) -> Grid:
    """A grid from a file, or one of the package's by name; `changes` replace single fields.

    `row_set` names a choice of other rows, which makes a plan beside that of the grid's own rows.
    """
    path, shipped = Path(source), _shipped()
    try:
        known = str(source) in shipped and not path.is_file()
        content = dict(shipped[str(source)]) if known else read_toml(path)
    except (OSError, ValueError) as error:
        hint = did_you_mean(str(source), shipped)
        raise ConfigError(f"Cannot read grid '{source}': {error}.{hint}", argument="grid") from None
    content |= {key: value for key, value in (changes or {}).items() if value is not None}
    try:
        grid = Grid.model_validate({"name": path.stem} | content)
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_problem(error)}.", argument="grid") from None
    if row_set is None:
        return grid
    _refuse_unknown("choice of rows", [row_set], set(grid.row_sets), "rows")
    title = f"{grid.title or grid.name}, {row_set}"
    changed = {"name": f"{grid.name}-{row_set}", "title": title, "rows": []}
    return grid.model_copy(update=changed | {"methods": grid.row_sets[row_set]})


def expand(grid: Grid) -> tuple[Plan, dict[str, Source]]:
    """Every run of a grid, and where its datasets are."""
    counts = _PHANTOMS | {str(split): count for split, count in grid.phantoms.items()}
    find = partial(find_sources, phantoms=counts, prompts=grid.prompts, upright=grid.upright)
    sources = find(grid.data, grid.datasets)
    others = {} if grid.test_on is None else find(grid.data, [grid.test_on])
    rows = _rows(grid)
    sources = _suitable(grid, sources, others)
    cells: dict[tuple[str, str], Cell] = {}
    for source, row in itertools.product(sources.values(), rows):
        for cell in _cells(grid, source, row):
            cells.setdefault((cell.label, cell.spec.hash), cell)
    plan = Plan(
        name=grid.name,
        title=grid.title or grid.name,
        table=grid.table,
        sweep=grid.swept[0] if grid.swept else None,
        cells=tuple(cells.values()),
    )
    return plan, others | sources


def _rows(grid: Grid) -> list[GridRow]:
    """The rows that were asked for."""
    rows = grid.all_rows
    # A setting applies to the methods that have it; one that none has is a mistake.
    fields = {name for row in rows for name in _method_class(row.method).Config.model_fields}
    names = {name.split(".")[0] for name in (*grid.settings, *grid.over, *grid.sweep)}
    _refuse_unknown("setting", names, fields, "settings")
    if grid.only is None:
        return rows
    labels = {row.name for row in rows}
    _refuse_unknown("method", grid.only, labels | {row.method for row in rows}, "methods")
    chosen = set(grid.only)
    # A method's name that is not also a row's label means all rows of the method.
    return [row for row in rows if row.name in chosen or row.method in chosen - labels]


def _refuse_unknown(what: str, names: Iterable[str], known: set[str], argument: str) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"The grid has no {what} '{name}'.{hint}", argument=argument)


def _suitable(
    grid: Grid, sources: dict[str, Source], others: Mapping[str, Source]
) -> dict[str, Source]:
    """The datasets on which the protocol is possible; with "*", the others are left out."""
    reasons = {}
    for name, source in sources.items():
        if grid.protocol == "base-to-novel" and (count := len(source.class_names)) < _FEWEST:
            reasons[name] = f"{name} has {count} classes, but base-to-novel needs {_FEWEST}."
        for other in others.values():
            known = set(map(fold_name, source.class_names))
            if absent := [c for c in other.class_names if fold_name(c) not in known]:
                reasons[name] = f"{name} has no class '{absent[0]}', which {other.name} has."
    if reasons and (list(grid.datasets) != ["*"] or len(reasons) == len(sources)):
        raise ConfigError(next(iter(reasons.values())), argument="datasets")
    return {name: source for name, source in sources.items() if name not in reasons}


def _cells(grid: Grid, source: Source, row: GridRow) -> Iterable[Cell]:
    preset = _preset(grid, source, row)
    fields = set(METHODS[row.method].Config.model_fields)
    common = {key: value for key, value in grid.settings.items() if key.split(".")[0] in fields}
    over = {key: value for key, value in grid.over.items() if key.split(".")[0] in fields}
    axis, values = next(iter(grid.sweep.items()), ("", [None]))
    for value in values:
        settings = common | row.settings | over | ({} if value is None else {axis: value})
        method = make_method(row.method, preset=preset, settings=settings)  # checks the settings
        if grid.protocol == "base-to-novel" and type(method).head_for is Method.head_for:
            raise ConfigError(
                f"{method.name} cannot be tested on novel classes: it knows only those that it "
                "learned from.",
                argument="methods",
            )
        numbers = itertools.product(grid.shots, grid.flips, grid.budgets, grid.seeds)
        for shots, flips, budget, seed in numbers:
            yield Cell(
                label=row.name,
                spec=RunSpec(
                    protocol=grid.protocol,
                    dataset=source.name,
                    data=source.collection,
                    method=row.method,
                    shots=shots,
                    seed=seed,
                    preset=preset,
                    settings=settings,
                    flips=flips,
                    budget=budget,
                    bank=source.bank,
                    judge=grid.judge,
                    test_on=None if grid.test_on == source.name else grid.test_on,
                    # A folder may be elsewhere on the next machine.
                    backbone=Path(grid.backbone).name,
                ),
            )


def _preset(grid: Grid, source: Source, row: GridRow) -> str | None:
    """The preset of a row on a dataset.

    The grid's is for the methods that have presets of its kind ("paper/..."); others take "auto",
    or their defaults. So do datasets for which there is none: those that are not the paper's. Any
    other preset that does not exist is an error (of `make_method`).
    """
    known = presets(row.method)
    pattern = grid.preset if row.preset is None else row.preset
    wanted = pattern.replace(_DATASET, str(source.benchmark))
    has_kind = any(name.partition("/")[0] == pattern.partition("/")[0] for name in known)
    without = not has_kind or wanted == "auto" or (_DATASET in pattern and source.benchmark is None)
    if wanted in known or row.preset is not None or not without:
        return wanted
    return "auto" if "auto" in known else None


def _method_class(name: str) -> type[Method]:
    if name not in METHODS:
        hint = did_you_mean(name, METHODS)
        raise ConfigError(f"Unknown method '{name}'.{hint}", argument="methods")
    return METHODS[name]
