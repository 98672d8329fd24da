"""Benchmark runs: what a run is, which runs a plan asks for, and finished runs on disk.

RUNS/runs/HASH/{spec.json, result.json, predictions.safetensors} is a finished run; the folder
appears by one rename. RUNS/plans/NAME.json says which runs a grid asks for and how tables name
them; RUNS/failed/HASH.json says why a run did not finish.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as array_bytes

from ogkd.datasets.splits import Sampling
from ogkd.errors import ConfigError, DataError
from ogkd.files import folder_atomically, write_json

SCHEMA = 1
Protocol = Literal["few-shot", "base-to-novel"]
Record = TypeVar("Record", bound=BaseModel)


class FrozenRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunSpec(FrozenRecord):
    """Everything that decides the result of one run, and the name that follows from it.

    Where files are is not part of it, so a folder of results may be moved.
    """

    protocol: Protocol = "few-shot"
    dataset: str
    data: str | None = None  # which collection the dataset is from; None: the paper's benchmarks
    method: str
    shots: int | None = Field(default=None, ge=1)
    seed: int = Field(default=1, ge=0)
    preset: str | None = None
    settings: dict[str, Any] = {}  # over the preset's: {"gamma": 0.3, "train.epochs": 20}
    flips: int = Field(default=0, ge=0)  # wrong labels per class
    budget: int | None = Field(default=None, ge=1)  # prompts per class that are used
    bank: str | None = None  # name of a prompt bank; None: templates, or the phantom's own
    sampling: Sampling = "released"
    backbone: str = "builtin"

    @property
    def hash(self) -> str:
        """The name of the run's folder: 20 hex digits of the specification's SHA-256."""
        return hashlib.sha256(self.without().encode()).hexdigest()[:20]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the test images that are measured: ("test",) or ("base", "novel")."""
        return ("base", "novel") if self.protocol == "base-to-novel" else ("test",)

    def without(self, *fields: str) -> str:
        """The specification as text, without `fields`: equal for runs that differ only in them."""
        content = self.model_dump(mode="json", exclude=set(fields))
        return json.dumps(content, sort_keys=True, ensure_ascii=True)

    def __str__(self) -> str:
        parts = [self.dataset, self.method, f"{self.shots or 'all'} shots", f"seed {self.seed}"]
        parts += [f"{key}={value}" for key, value in self.settings.items()]
        parts += [f"{self.flips} flips"] * bool(self.flips)
        parts += [f"{self.budget} prompts"] * bool(self.budget)
        return f"{self.protocol}: {', '.join(parts)}"


class Cell(FrozenRecord):
    label: str  # "OGKD", "B + GAD"
    spec: RunSpec


class Plan(FrozenRecord):
    """The runs of one grid: the input of tables and figures."""

    schema_version: int = SCHEMA
    name: str
    title: str
    table: str  # its kind: few-shot, base-to-novel, ablation, noise, sweep
    sweep: str | None = None  # the setting or field that varies along a figure's axis
    cells: tuple[Cell, ...]

    @property
    def specs(self) -> dict[str, RunSpec]:
        """The different runs by hash; two rows may ask for the same run."""
        return {cell.spec.hash: cell.spec for cell in self.cells}


@dataclass(frozen=True)
class Predictions:
    """A run's predictions for one part of the test images."""

    labels: NDArray[np.int64]  # [N]
    probabilities: NDArray[np.float32]  # [N, C]
    W: NDArray[np.float32]  # [C, C], the class graph of these classes


@dataclass(frozen=True)
class FinishedRun:
    spec: RunSpec
    result: Mapping[str, Any]
    folder: Path

    def metric(self, name: str, part: str = "test") -> float:
        """One metric of one part; NaN if it is not defined for these images."""
        value = self.result["metrics"][part][name]
        return float("nan") if value is None else float(value)

    @property
    def parts(self) -> tuple[str, ...]:
        """("test",), or ("base", "novel")."""
        return tuple(self.result["metrics"])

    def class_names(self, part: str) -> tuple[str, ...]:
        return tuple(self.result["class_names"][part])

    def predictions(self, part: str = "test") -> Predictions:
        path = self.folder / "predictions.safetensors"
        try:
            arrays = read_arrays(path.read_bytes())
            found = [arrays[f"{part}/{name}"] for name in ("labels", "probabilities", "W")]
        except (OSError, SafetensorError, KeyError) as error:
            raise DataError(
                f"{path} is missing or damaged ({error}). Remove {self.folder} and run again."
            ) from error
        return Predictions(*found)


def same_images(runs: Sequence[FinishedRun], part: str) -> list[Predictions]:
    """The predictions of runs that were tested on the same images; DataError if they were not."""
    found = [run.predictions(part) for run in runs]
    for run, mine in zip(runs, found, strict=True):
        if not np.array_equal(mine.labels, found[0].labels):
            raise DataError(
                f"{runs[0].folder} and {run.folder} were tested on different images of "
                f"{run.spec.dataset}. Remove the older one and run again."
            )
    return found


LabelledRuns = list[tuple[str, FinishedRun]]
"""Finished runs with the labels of their rows, in a plan's order."""


class _Failure(FrozenRecord):
    error: str
    spec: RunSpec


class _Result(BaseModel):
    """What every result has; there is more."""

    model_config = ConfigDict(extra="allow")
    metrics: dict[str, Any]
    class_names: dict[str, Any]
    normal: dict[str, Any]
    seconds: dict[str, Any]


class RunsFolder:
    """A folder of runs; several processes may work on it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder_of(self, spec: RunSpec) -> Path:
        return self.root / "runs" / spec.hash

    def has(self, spec: RunSpec) -> bool:
        return (self.folder_of(spec) / "result.json").is_file()

    def read(self, spec: RunSpec) -> FinishedRun:
        """A finished run; DataError if it is damaged."""
        return _read_run(self.folder_of(spec))

    def runs(self) -> list[FinishedRun]:
        """Every finished run, by hash; DataError if one is damaged."""
        return [_read_run(folder) for folder in self._folders()]

    def readable_runs(self) -> list[FinishedRun]:
        """Every finished run that can be read, by hash."""
        found = []
        for folder in self._folders():
            with contextlib.suppress(DataError):
                found.append(_read_run(folder))
        return found

    def _folders(self) -> list[Path]:
        place = self.root / "runs"
        folders = sorted(place.iterdir()) if place.is_dir() else []
        return [folder for folder in folders if not folder.name.startswith(".")]

    def write(
        self, spec: RunSpec, result: Mapping[str, Any], predictions: Mapping[str, Predictions]
    ) -> None:
        """Write a finished run, whole or not at all; a run that is already there is kept."""
        if self.has(spec):
            return
        arrays = {
            f"{part}/{name}": np.ascontiguousarray(value)
            for part, found in predictions.items()
            for name, value in vars(found).items()
        }
        with folder_atomically(self.folder_of(spec)) as place:
            (place / "predictions.safetensors").write_bytes(array_bytes(arrays))
            write_json(place / "spec.json", spec.model_dump(mode="json"))
            write_json(place / "result.json", {"schema_version": SCHEMA, **result})
        self.failure_of(spec).unlink(missing_ok=True)

    def failure_of(self, spec: RunSpec) -> Path:
        """The file that says why the run failed, if it did."""
        return self.root / "failed" / f"{spec.hash}.json"

    def write_failure(self, spec: RunSpec, error: str) -> None:
        content = _Failure(error=error, spec=spec).model_dump(mode="json")
        write_json(self.failure_of(spec), content)

    def failures(self) -> list[tuple[RunSpec, str]]:
        paths = sorted((self.root / "failed").glob("*.json"))
        found = [_read(path, _Failure, "Remove it.") for path in paths]
        return [(failure.spec, failure.error) for failure in found]

    def write_plan(self, plan: Plan) -> None:
        """Store the plan, so that tables need nothing but this folder."""
        write_json(self.root / "plans" / f"{plan.name}.json", plan.model_dump(mode="json"))

    def plans(self) -> dict[str, Plan]:
        """The plans of all grids that were run into this folder."""
        paths = sorted((self.root / "plans").glob("*.json"))
        return {path.stem: _read(path, Plan, "Run its grid again.") for path in paths}

    def finished(self, plan: Plan) -> LabelledRuns:
        """The finished runs of a plan with their labels, in the plan's order."""
        return [(cell.label, self.read(cell.spec)) for cell in plan.cells if self.has(cell.spec)]


def _read_run(folder: Path) -> FinishedRun:
    advice = f"Remove {folder} and run again."
    result = _read(folder / "result.json", _Result, advice).model_dump()
    spec = _read(folder / "spec.json", RunSpec, advice)
    if spec.hash != folder.name:
        raise DataError(f"{folder} contains another run than its name says. {advice}")
    return FinishedRun(spec, result, folder)


def _read(path: Path, record: type[Record], advice: str) -> Record:
    """A record from a file; ConfigError if a newer version of ogkd wrote it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        newer = isinstance(content, dict) and content.get("schema_version", 0) > SCHEMA
        if not newer:
            return record.model_validate(content)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise DataError(f"{path} is missing or damaged ({why}). {advice}") from error
    raise ConfigError(
        f"{path} was written by a newer ogkd (schema {content['schema_version']}; this version "
        f"reads up to {SCHEMA}). Upgrade with: pip install --upgrade ogkd."
    )
