"""All results in one table: a row for each row of a plan, run and part of the test images."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ogkd.bench.results import Run, RunsFolder
from ogkd.bench.summary import METRICS
from ogkd.errors import DataError
from ogkd.files import write_json, write_text

__all__ = ["collect", "result_rows"]

Row = dict[str, Any]


def collect(folder: RunsFolder) -> list[Row]:
    """Write results.csv and results.json into the folder, and return their rows."""
    rows = result_rows(folder)
    if not rows:
        raise DataError(
            f"{folder.root} has no finished runs. Make some with: ogkd bench run GRID --out "
            f"{folder.root}."
        )
    write_text(_place(folder, "csv"), _csv(rows))
    write_json(_place(folder, "json"), rows)
    return rows


def result_rows(folder: RunsFolder) -> list[Row]:
    """The rows, by plan and in its order; runs that are in no plan come last, plan empty."""
    runs = {run.spec.hash: run for run in folder.runs()}
    rows: list[Row] = []
    seen = set()
    for name, plan in folder.plans().items():
        for cell in plan.cells:
            if run := runs.get(cell.spec.hash):
                rows += _rows(name, cell.label, run)
                seen.add(cell.spec.hash)
    for key, run in runs.items():
        if key not in seen:
            rows += _rows("", run.spec.method, run)
    return rows


def _rows(plan: str, label: str, run: Run) -> Iterable[Row]:
    result = run.result
    seconds = {f"seconds_{phase}": value for phase, value in result["seconds"].items()}
    other = {
        name: result.get(name)
        for name in ("together", "peak_mib", "backbone_digest", "data_sha256")
    }
    for part in run.parts:
        measured: Mapping[str, Any] = result["metrics"][part]
        yield {
            "plan": plan,
            "label": label,
            "run": run.spec.hash,
            **run.spec.model_dump(mode="json"),
            "part": part,
            "classes": len(run.class_names(part)),
            **{name: measured.get(name) for name in METRICS},
            **{name: value for name, value in measured.items() if name not in METRICS},
            **seconds,
            **other,
            "versions": result.get("versions"),
        }


def _csv(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _flat(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _flat(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value


def _place(folder: RunsFolder, ending: str) -> Path:
    return folder.root / f"results.{ending}"
