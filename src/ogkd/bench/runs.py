"""Benchmark runs: what a run is, which runs a plan asks for, and finished runs on disk.

RUNS/runs/HASH/{spec.json, result.json, predictions.safetensors} is a finished run; the folder
appears by one rename. Its name is the digest of spec.json. A run that cannot be read is named and
left out.
RUNS/plans/NAME.json says which runs a grid asks for and how tables name them;
RUNS/failed/HASH.json says why a run did not finish.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ogkd.data.splits import MAX_SEED
from ogkd.errors import DataError, OgkdError, OgkdWarning
from ogkd.files import folder_atomically, write_json
from ogkd.records import Record, read_record, sealed

Protocol = Literal["few-shot", "base-to-novel"]
SCHEMA = 1
PREDICTIONS = "predictions.safetensors"
_ARRAYS = ("labels", "probabilities", "W")  # of each part


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
    seed: int = Field(default=1, ge=0, le=MAX_SEED)
    preset: str | None = None
    settings: dict[str, Any] = {}  # over the preset's: {"gamma": 0.3, "train.epochs": 20}
    flips: int = Field(default=0, ge=0)  # wrong labels per class
    budget: int | None = Field(default=None, ge=1)  # prompts per class that are used
    bank: str | None = None  # name of a prompt bank; None: templates, or the phantom's own
    sampling: Literal["released"] = "released"  # in the names of runs since there was another
    backbone: str = "builtin"
    judge: Literal["test", "val"] = "test"  # the images that it is judged on
    test_on: str | None = None  # whose images these are; None: the dataset's own

    @property
    def hash(self) -> str:
        """The name of the run's folder: 20 hex digits of the specification's SHA-256."""
        return hashlib.sha256(self.without().encode()).hexdigest()[:20]

    @property
    def of_phantoms(self) -> bool:
        """Whether its images are drawn: a phantom may have the name of a benchmark."""
        return (self.data or "").startswith("phantoms")

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the images that are measured: ("test",) or ("base", "novel").

        Of a run that is judged on validation images they are parts of those.
        """
        return ("base", "novel") if self.protocol == "base-to-novel" else ("test",)

    def without(self, *fields: str) -> str:
        """The specification as text, without `fields`: equal for runs that differ only in them."""
        content = self.model_dump(mode="json", exclude=set(fields))
        for name in ("judge", "test_on"):  # runs of before there was a choice keep their names
            if content.get(name) == RunSpec.model_fields[name].default:
                content.pop(name, None)
        return json.dumps(content, sort_keys=True, ensure_ascii=True)

    def __str__(self) -> str:
        parts = [self.dataset, self.method, f"{self.shots or 'all'} shots", f"seed {self.seed}"]
        parts += [f"{key}={value}" for key, value in self.settings.items()]
        parts += [f"{self.flips} flips"] * bool(self.flips)
        parts += [f"{self.budget} prompts"] * bool(self.budget)
        parts += ["on validation images"] * (self.judge == "val")
        parts += [f"tested on {self.test_on}"] * bool(self.test_on)
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


class Result(BaseModel):
    """What a run gave, apart from its predictions; None: not known of an older run."""

    model_config = ConfigDict(frozen=True)
    metrics: dict[str, dict[str, float | None]]  # of each part; None: not defined
    class_names: dict[str, list[str]]
    normal: dict[str, list[int]]
    seconds: dict[str, float]
    config: dict[str, Any] | None = None  # every setting, with defaults
    images_per_class: list[int] | None = None
    together: int | None = None  # runs of the same pass
    device: str | None = None
    engine: str | None = None
    backbone_digest: str | None = None
    data_sha256: str | None = None
    bank_sha256: str | None = None
    versions: dict[str, str] | None = None


@dataclass(frozen=True)
class FinishedRun:
    spec: RunSpec
    result: Result
    folder: Path

    def metric(self, name: str, part: str = "test") -> float:
        """One metric of one part; NaN if it is not defined for these images."""
        value = self.result.metrics[part].get(name)
        return float("nan") if value is None else value

    def class_names(self, part: str) -> tuple[str, ...]:
        return tuple(self.result.class_names[part])

    def predictions(self, part: str = "test") -> Predictions:
        """The predictions of one part; DataError if they are missing or damaged."""
        path = self.folder / PREDICTIONS
        try:
            arrays = load_file(path)
            return Predictions(*(arrays[f"{part}/{name}"] for name in _ARRAYS))
        except (OSError, SafetensorError, KeyError) as error:
            raise DataError(f"{path} is missing or damaged ({error}).") from error


def same_images(runs: Sequence[FinishedRun], part: str) -> list[Predictions]:
    """The predictions of runs that were tested on the same images; DataError if they were not."""
    predictions = [run.predictions(part) for run in runs]
    for run, prediction in zip(runs, predictions, strict=True):
        same = prediction.probabilities.shape == predictions[0].probabilities.shape
        if not same or not np.array_equal(prediction.labels, predictions[0].labels):
            raise DataError(
                f"{runs[0].folder} and {run.folder} were tested on different images or classes."
            )
    return predictions


LabelledRuns = list[tuple[str, FinishedRun]]
"""Finished runs with the labels of their rows, in a plan's order."""


class Failure(FrozenRecord):
    """Why a run did not finish."""

    error: str
    spec: RunSpec

    def __str__(self) -> str:
        """In one line: the end of a traceback, or the beginning of a message."""
        lines = [line.strip() for line in self.error.strip().splitlines()] or [""]
        return lines[-1] if lines[0].startswith("Traceback") else " ".join(lines[:2])


class RunsFolder:
    """A folder of runs; several processes may work on it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.claims = root / ".claims"  # locks of the runs that are being computed

    def folder_of(self, spec: RunSpec) -> Path:
        return self.root / "runs" / spec.hash

    def has(self, spec: RunSpec) -> bool:
        return (self.folder_of(spec) / "result.json").is_file()

    def read(self, spec: RunSpec) -> FinishedRun:
        """A finished run; DataError if it is damaged."""
        return _read_run(self.folder_of(spec))

    def runs(self) -> list[FinishedRun]:
        """Every finished run, by hash; damaged ones are left out with a warning."""
        return list(self._readable(sorted((self.root / "runs").glob("[!.]*"))).values())

    def finished(self, plan: Plan) -> LabelledRuns:
        """The finished runs of a plan with their labels, in the plan's order.

        Damaged ones are left out with a warning; DataError if there are no others.
        """
        runs = self._readable(self.folder_of(spec) for spec in plan.specs.values())
        hashes = ((cell.label, cell.spec.hash) for cell in plan.cells)
        return [(label, runs[name]) for label, name in hashes if name in runs]

    def _readable(self, folders: Iterable[Path]) -> dict[str, FinishedRun]:
        """The runs that are whole, by hash; DataError if there are only damaged ones."""
        runs, problems = {}, []
        for folder in filter(Path.exists, folders):
            try:
                runs[folder.name] = _read_run(folder)
            except OgkdError as error:
                problems.append(str(error))
        if problems and not runs:
            raise DataError(f"None of {len(problems)} runs can be used: {problems[0]}")
        for problem in problems:
            note = f"Skipped: {problem} Run its grid again to compute it again."
            warnings.warn(note, OgkdWarning, stacklevel=4)
        return runs

    def write(self, spec: RunSpec, result: Result, predictions: Mapping[str, Predictions]) -> None:
        """Write a finished run, whole or not at all; a run that is already there is kept."""
        if self.has(spec):
            return
        arrays = {
            f"{part}/{name}": np.ascontiguousarray(value)
            for part, prediction in predictions.items()
            for name, value in vars(prediction).items()
        }
        with folder_atomically(self.folder_of(spec)) as folder:
            save_file(arrays, folder / PREDICTIONS)
            write_json(folder / "spec.json", spec.model_dump(mode="json"))
            content = result.model_dump(mode="json")
            write_json(folder / "result.json", sealed({"schema_version": SCHEMA, **content}))
        self.failure_of(spec).unlink(missing_ok=True)

    def failure_of(self, spec: RunSpec) -> Path:
        """The file that says why the run failed, if it did."""
        return self.root / "failed" / f"{spec.hash}.json"

    def write_failure(self, spec: RunSpec, error: str) -> None:
        failure = Failure(error=error, spec=spec)
        write_json(self.failure_of(spec), failure.model_dump(mode="json"), ours=True)

    def failures(self) -> dict[str, Failure]:
        """The runs that failed, by hash."""
        paths = sorted((self.root / "failed").glob("*.json"))
        return {path.stem: _read(path, Failure) for path in paths}

    def attempts_of(self, spec: RunSpec) -> Path:
        """The file that counts processes that died while they worked on the run."""
        return self.claims / f"{spec.hash}.tries"

    def forget_failure(self, spec: RunSpec) -> None:
        """Let the next command try it again, and count its attempts from zero."""
        self.failure_of(spec).unlink(missing_ok=True)
        self.attempts_of(spec).unlink(missing_ok=True)

    def move_away(self, spec: RunSpec) -> Path:
        """Move a run that cannot be used out of the way, so that it is run again."""
        moved = self.root / "damaged" / f"{spec.hash}-{time.time_ns()}"
        moved.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another command was faster
            self.folder_of(spec).rename(moved)
        return moved

    def write_plan(self, plan: Plan) -> None:
        """Store the plan, so that tables need nothing but this folder."""
        path = self.root / "plans" / f"{plan.name}.json"
        write_json(path, plan.model_dump(mode="json"), ours=True)

    def plans(self) -> dict[str, Plan]:
        """The plans of all grids that were run into this folder."""
        paths = sorted((self.root / "plans").glob("*.json"))
        return {path.stem: _read(path, Plan) for path in paths}


def _read_run(folder: Path) -> FinishedRun:
    spec, result = _read(folder / "spec.json", RunSpec), _read(folder / "result.json", Result)
    by_part = (result.metrics, result.class_names, result.normal)
    if spec.hash != folder.name or any(set(spec.parts) != set(values) for values in by_part):
        raise DataError(f"{folder} contains another run than its name says.")
    return FinishedRun(spec, result, folder)


def _read(path: Path, kind: type[Record]) -> Record:
    """A record from a file; ConfigError if a newer version of ogkd wrote it."""
    try:
        return read_record(path, kind, newest=SCHEMA)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is missing or damaged ({error}).") from error
