"""Finished runs on disk: RUNS/runs/HASH/{spec.json, result.json, predictions.safetensors}.

A run's folder appears by one rename. RUNS/plans/NAME.json says which runs a grid asks for and
how they are called in tables; RUNS/failed/HASH.json why a run did not finish.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as array_bytes

from ogkd.bench.spec import RunSpec
from ogkd.errors import ConfigError, DataError
from ogkd.files import folder_atomically, write_json

__all__ = ["SCHEMA", "Cell", "Plan", "Predictions", "Run", "RunsFolder"]

SCHEMA = 1


@dataclass(frozen=True)
class Predictions:
    """What a run said of one part of the test images ("test", or "base" and "novel")."""

    labels: NDArray[np.int64]  # [N]
    probabilities: NDArray[np.float32]  # [N, C]
    W: NDArray[np.float32]  # [C, C], the class graph of these classes


@dataclass(frozen=True)
class Run:
    """A finished run, read back."""

    spec: RunSpec
    result: Mapping[str, Any]
    folder: Path

    def metric(self, name: str, part: str = "test") -> float:
        """One measure of one part: "accuracy" of "test", "aurc" of "novel"."""
        value = self.result["metrics"][part][name]
        return float("nan") if value is None else float(value)

    @property
    def parts(self) -> tuple[str, ...]:
        """("test",), or ("base", "novel")."""
        return tuple(self.result["metrics"])

    def class_names(self, part: str = "test") -> tuple[str, ...]:
        """Names in the order of the columns."""
        return tuple(self.result["class_names"][part])

    def normal(self, part: str = "test") -> tuple[int, ...]:
        """Labels of the classes that stand for "nothing found"."""
        return tuple(self.result["normal"][part])

    def predictions(self, part: str = "test") -> Predictions:
        """Labels, probabilities and class graph of a part."""
        path = self.folder / "predictions.safetensors"
        try:
            arrays = read_arrays(path.read_bytes())
            found = [arrays[f"{part}/{name}"] for name in ("labels", "probabilities", "W")]
        except (OSError, SafetensorError, KeyError) as error:
            raise DataError(
                f"{path} is missing or damaged ({error}). Remove {self.folder} and run again."
            ) from error
        return Predictions(*found)


class Cell(BaseModel):
    """One run of a plan, with the name of its row and the value of a sweep, if it is in one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str  # "OGKD", "B + GAD"
    spec: RunSpec


class Plan(BaseModel):
    """The runs of one grid: what a table or a figure is made from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    name: str
    title: str
    table: str  # which table it makes: few-shot, base-to-novel, ablation, noise, sweep
    sweep: str | None = None  # the setting or field that goes along a figure's axis
    cells: tuple[Cell, ...]


class RunsFolder:
    """A folder of results; several processes may work on one."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder_of(self, spec: RunSpec) -> Path:
        """Where a finished run of this specification is."""
        return self.root / "runs" / spec.hash

    def has(self, spec: RunSpec) -> bool:
        """Whether the run is finished."""
        return (self.folder_of(spec) / "result.json").is_file()

    def read(self, spec: RunSpec) -> Run:
        """A finished run; a damaged one is a DataError that says what to do."""
        folder = self.folder_of(spec)
        return _read_run(folder)

    def runs(self) -> list[Run]:
        """Every finished run, by name; damaged ones are a DataError."""
        place = self.root / "runs"
        folders = sorted(place.iterdir()) if place.is_dir() else []
        return [_read_run(folder) for folder in folders if not folder.name.startswith(".")]

    def readable_runs(self) -> list[Run]:
        """Every finished run that can be read."""
        place = self.root / "runs"
        found = []
        for folder in sorted(place.iterdir()) if place.is_dir() else []:
            with contextlib.suppress(DataError):
                found.append(_read_run(folder))
        return found

    def write(
        self, spec: RunSpec, result: Mapping[str, Any], predictions: Mapping[str, Predictions]
    ) -> None:
        """Write a finished run, whole or not at all; an equal run that was first stays."""
        arrays = {
            f"{part}/{name}": np.ascontiguousarray(value)
            for part, found in predictions.items()
            for name, value in vars(found).items()
        }
        if self.has(spec):
            return
        with folder_atomically(self.folder_of(spec)) as aside:
            (aside / "predictions.safetensors").write_bytes(array_bytes(arrays))
            write_json(aside / "spec.json", spec.model_dump(mode="json"))
            write_json(aside / "result.json", {"schema_version": SCHEMA, **result})
        self.failure_of(spec).unlink(missing_ok=True)

    def failure_of(self, spec: RunSpec) -> Path:
        """Where the reason is written if the run fails."""
        return self.root / "failed" / f"{spec.hash}.json"

    def write_failure(self, spec: RunSpec, error: str) -> None:
        """Record why a run did not finish."""
        write_json(self.failure_of(spec), {"error": error, "spec": spec.model_dump(mode="json")})

    def failures(self) -> list[tuple[RunSpec, str]]:
        """Every run that failed, and why."""
        found = []
        for path in sorted((self.root / "failed").glob("*.json")):
            content = _read_json(path)
            try:
                spec = RunSpec.model_validate(content["spec"])
                found.append((spec, str(content["error"])))
            except (KeyError, ValidationError) as error:
                raise DataError(f"{path} is damaged ({error}). Remove it.") from None
        return found

    def write_plan(self, plan: Plan) -> None:
        """Keep what was asked for, so that tables need only this folder."""
        write_json(self.root / "plans" / f"{plan.name}.json", plan.model_dump(mode="json"))

    def plans(self) -> dict[str, Plan]:
        """Every grid that was run into this folder."""
        found = {}
        for path in sorted((self.root / "plans").glob("*.json")):
            content = _read_json(path)
            _refuse_newer(path, content)
            try:
                found[path.stem] = Plan.model_validate(content)
            except ValidationError as error:
                raise DataError(f"{path} is damaged ({error.errors()[0]['msg']}).") from None
        return found

    def finished(self, plan: Plan) -> list[tuple[str, Run]]:
        """The finished runs of a plan with their labels, in the plan's order."""
        return [(cell.label, self.read(cell.spec)) for cell in plan.cells if self.has(cell.spec)]


def _read_run(folder: Path) -> Run:
    result = _read_json(folder / "result.json")
    content = _read_json(folder / "spec.json")
    _refuse_newer(folder, result)
    try:
        spec = RunSpec.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DataError(
            f"{folder / 'spec.json'} is damaged ({problem['msg']}). Remove {folder} and run again."
        ) from None
    missing = {"metrics", "class_names", "normal", "seconds"} - set(result)
    if spec.hash != folder.name or missing:
        raise DataError(
            f"{folder} is not the run that its name says, or not whole. Remove it and run again."
        )
    return Run(spec, result, folder)


def _refuse_newer(path: Path, content: Mapping[str, Any]) -> None:
    found = content.get("schema_version")
    if isinstance(found, int) and found > SCHEMA:
        raise ConfigError(
            f"{path} was written by a newer ogkd (schema {found}, this one reads up to {SCHEMA}). "
            "Upgrade with: pip install --upgrade ogkd."
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is missing or damaged ({error}). Remove {path.parent} and run again."
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is damaged: not an object. Remove {path.parent} and run again.")
    return content


def labels_in_order(cells: Sequence[tuple[str, Run]]) -> list[str]:
    """The labels of runs in the order of their first appearance."""
    return list(dict.fromkeys(label for label, _ in cells))
