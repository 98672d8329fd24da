"""Experiments, their results in the repository, and the parts of pages that are made of them.

An experiment is a row of experiments.toml and a module of `benchmarks.experiments` with

    tables(frame) -> {name: Markdown}         what pages show between markers
    figures(frame) -> {name: Figure}          optional
    units() -> [Unit] and measure(unit) -> [row]    unless it runs grids of `ogkd bench`

Rows are measured unit by unit into a folder of runs, where a second command goes on. A finished
experiment is written to benchmarks/results: NAME.csv, and NAME.json with the commit, the date, the
machine, the versions and a digest of the code that it measures.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from ogkd.files import write_json, write_text
from ogkd.model.card import versions

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGES = ROOT / "docs" / "evidence"
PICTURES = PAGES / "pictures"
SHARED = Path(os.environ.get("OGKD_SHARED") or ROOT.parent / "shared")
BACKBONE = SHARED / "backbones" / "dinov2s14-minilm-med"

# Columns of a run of `ogkd bench` that tables are made of.
_GRID_COLUMNS = ["grid", "label", "dataset", "shots", "flips", "seed", "part", "setting"]
_GRID_METRICS = ["accuracy", "balanced_accuracy", "aurc", "ece", "seconds"]
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_MARKER = re.compile(r"<!-- table (\S+)/(\S+) -->\n(.*?)<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class Experiment:
    """One row of experiments.toml."""

    name: str
    question: str
    minutes: int  # of two cores, roughly
    depends: tuple[str, ...]  # folders and files whose code it measures, below src/ogkd
    grids: tuple[str, ...] = ()  # in benchmarks/grids

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(f"benchmarks.experiments.{self.name}")

    @property
    def frame(self) -> pd.DataFrame | None:
        """The rows that were measured last; None if it was never finished."""
        path = RESULTS / f"{self.name}.csv"
        return pd.read_csv(path) if path.exists() else None

    @property
    def record(self) -> dict[str, Any]:
        path = RESULTS / f"{self.name}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def digest(self) -> str:
        """Of the code that it measures, without comments and docstrings."""
        files: list[Path] = []
        for part in self.depends:
            path = ROOT / "src" / "ogkd" / part
            files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
        files.append(HERE / "experiments" / f"{self.name}.py")
        total = hashlib.sha256()
        for file in files:
            total.update(f"{file.relative_to(ROOT)}\n{code_of(file)}".encode())
        return total.hexdigest()[:16]

    @property
    def state(self) -> str:
        if not (record := self.record):
            return "never measured"
        if record["digest"] != self.digest:
            return f"measured on {record['date']}, older than its code"
        return f"measured on {record['date']}"


@cache
def code_of(file: Path) -> str:
    """What a file does: its syntax tree without docstrings."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


@cache
def experiments() -> dict[str, Experiment]:
    table = tomllib.loads((HERE / "experiments.toml").read_text())
    return {
        name: Experiment(
            name,
            row["question"],
            row["minutes"],
            tuple(row["depends"]),
            tuple(row.get("grids", ())),
        )
        for name, row in table.items()
    }


def run(experiment: Experiment, folder: Path) -> None:
    """Measure what is missing in `folder`, then write the results."""
    began = time.time()
    rows = _run_grids(experiment, folder) if experiment.grids else _run_units(experiment, folder)
    frame = pd.DataFrame(rows)
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{experiment.name}.csv", frame.to_csv(index=False, float_format="%.4g"))
    record = {
        "question": experiment.question,
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "date": date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "digest": experiment.digest,
        "minutes": round((time.time() - began) / 60, 1),
    }
    write_json(RESULTS / f"{experiment.name}.json", record)


def _run_units(experiment: Experiment, folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of every unit; a unit that is in the folder is not measured again."""
    units = experiment.module.units()
    for number, unit in enumerate(units, start=1):
        path = folder / experiment.name / f"{'-'.join(map(str, unit))}.json"
        if not path.exists():
            rows = experiment.module.measure(*unit)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, rows)
            print(f"{experiment.name}: {number} of {len(units)}, {path.stem}", flush=True)
        yield from json.loads(path.read_text())


def _run_grids(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """The runs of the experiment's grids, by the command that users have."""
    for grid in experiment.grids:
        command = [sys.executable, "-m", "ogkd", "bench", "run", str(HERE / f"grids/{grid}.toml")]
        command += ["--data", str(SHARED / "data"), "--backbone", str(BACKBONE)]
        subprocess.run([*command, "--out", str(folder / experiment.name)], check=True)
    return finished(experiment, folder)


def finished(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """The finished runs of the experiment's grids."""
    from ogkd.bench.runs import RunsFolder
    from ogkd.bench.tidy import collect

    frame = collect(RunsFolder(folder / experiment.name))
    frame = frame.rename(columns={"plan": "grid"})
    frame = frame[frame["grid"].isin(experiment.grids)]
    frame["setting"] = [json.dumps(value, sort_keys=True) for value in frame["settings"]]
    frame["seconds"] = frame["seconds_train"]
    rows: list[dict[str, Any]] = frame[_GRID_COLUMNS + _GRID_METRICS].to_dict("records")
    return rows


def machine() -> str:
    """The processor and its cores, without a name of the machine."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"model name\s*: (.*)", cpuinfo.read_text())
        model = found[1] if found else model
    return f"{model}, {os.cpu_count()} cores"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


# Pages


@cache
def tables_of(name: str) -> dict[str, str]:
    experiment = experiments()[name]
    frame = experiment.frame
    if frame is None:
        return {}
    tables: dict[str, str] = experiment.module.tables(frame)
    return tables | {"how": how(experiment)}


def how(experiment: Experiment) -> str:
    """One line about where and when an experiment was measured."""
    record = experiment.record
    return (
        f"`python -m benchmarks run {experiment.name}` (about {experiment.minutes} minutes of two "
        f"cores); measured on {record['date']} with {record['commit']}, {record['machine']}, "
        f"torch {record['versions']['torch']}.\n"
    )


def filled(text: str) -> str:
    """A page with the tables between its markers made anew."""

    def fill(match: re.Match[str]) -> str:
        table = tables_of(match[1])[match[2]]
        return f"<!-- table {match[1]}/{match[2]} -->\n{table.strip()}\n<!-- end -->"

    return _MARKER.sub(fill, text)


def pages() -> Sequence[Path]:
    return sorted(PAGES.glob("*.md"))


def write_pages() -> None:
    """Make the tables of all pages and the pictures again."""
    for page in pages():
        text = page.read_text()
        if (new := filled(text)) != text:
            write_text(page, new)
            print(f"{page.name} is written.")
    for experiment in experiments().values():
        draw = getattr(experiment.module, "figures", None)
        frame = experiment.frame
        if draw is None or frame is None:
            continue
        PICTURES.mkdir(exist_ok=True)
        for name, figure in draw(frame).items():
            file = PICTURES / f"{experiment.name}-{name}.png"
            figure.savefig(file, dpi=110, metadata={"Software": None})
