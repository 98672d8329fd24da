"""Choose a method's numbers on validation images: a small random search, as ordinary runs.

The trials are rows of a grid that is judged on validation images, so they are resumable, share
features and passes, and test images stay unseen. A method declares its numbers (`tunable`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ogkd.bench.grid import Grid, GridRow, Tuned
from ogkd.bench.runs import FinishedRun, Plan, RunsFolder
from ogkd.errors import ConfigError, DataError
from ogkd.files import write_text
from ogkd.methods import METHODS, make_method, presets


def tuning_grid(grid: Grid, *, trials: int, seed: int = 1) -> Grid:
    """The grid with `trials` settings of each method in `only` for rows; the first is the preset.

    Settings are drawn at random, none twice. Features come from the cache: where a preset trains
    on fresh crops, the trials see whole images.
    """
    if not grid.only:
        raise ConfigError("Name the methods to tune, such as ogkd.", argument="methods")
    rows = []
    for name in grid.only:
        numbers = METHODS[name].tunable if name in METHODS else {}
        if not numbers:
            able = ", ".join(sorted(known for known, kind in METHODS.items() if kind.tunable))
            raise ConfigError(
                f"'{name}' declares no numbers to tune. Methods that do: {able}.",
                argument="methods",
            )
        online = any(
            make_method(name, preset=preset).config.views == "online" for preset in presets(name)
        )
        fixed = {"views": 0} if online and "views" not in grid.settings else {}
        for number, settings in enumerate(_draws(numbers, trials, seed)):
            rows.append(GridRow(method=name, label=f"{name} {number}", settings=fixed | settings))
    return grid.model_copy(
        update={
            "name": f"tune-{grid.name}",
            "title": f"{grid.title or grid.name}, tuning",
            "table": "few-shot" if grid.protocol == "few-shot" else "base-to-novel",
            "judge": "val",
            "methods": [],
            "rows": rows,
            "only": None,
            "sweep": {},
            "flips": [0],
            "budgets": [None],
        }
    )


def _draws(
    numbers: Mapping[str, Sequence[float]], trials: int, seed: int
) -> list[dict[str, float]]:
    rng = random.Random(f"tune {seed}")
    count = min(trials - 1, math.prod(len(values) for values in numbers.values()))
    draws: dict[tuple[float, ...], dict[str, float]] = {}
    while len(draws) < count:
        drawn = {name: rng.choice(values) for name, values in numbers.items()}
        draws.setdefault(tuple(drawn.values()), drawn)
    return [{}, *draws.values()]


def best_settings(folder: RunsFolder, plan: Plan) -> Tuned:
    """The settings of the best trial of each method on each dataset.

    The best has the highest mean accuracy over shots and seeds (in base-to-novel, of base and novel
    classes), then the lowest mean NLL, then the earliest. An incomplete trial is a DataError.
    """
    rows = {cell.label: cell.spec for cell in plan.cells}
    wanted = Counter((cell.label, cell.spec.dataset) for cell in plan.cells)
    runs: dict[tuple[str, str], list[FinishedRun]] = {key: [] for key in wanted}
    for label, run in folder.finished(plan):
        runs[label, run.spec.dataset].append(run)
    best: Tuned = {}
    scores: dict[tuple[str, str], tuple[float, float]] = {}
    for (label, dataset), trial_runs in runs.items():
        if len(trial_runs) < wanted[label, dataset]:
            raise DataError(
                f"Trial '{label}' on {dataset} is not finished in {folder.root}. Run the same "
                "command again."
            )
        score = (_mean(trial_runs, "accuracy"), -_mean(trial_runs, "nll"))
        method = rows[label].method
        if score > scores.get((method, dataset), (-math.inf, -math.inf)):
            scores[method, dataset] = score
            tried = trial_runs[0].spec.settings
            kept = {key: tried[key] for key in METHODS[method].tunable if key in tried}
            best.setdefault(method, {})[dataset] = kept
    return best


def _mean(runs: Sequence[FinishedRun], metric: str) -> float:
    return float(np.mean([run.metric(metric, part) for run in runs for part in run.parts]))


def write_best(folder: RunsFolder, plan: Plan) -> Path:
    """Write the best settings as TOML into the folder: a table [METHOD.DATASET] for each."""
    lines = ["# Chosen on validation images; test images were not used.", ""]
    for method, datasets in best_settings(folder, plan).items():
        for dataset, settings in datasets.items():
            lines.append(f'["{method}"."{dataset}"]')
            lines += [f'"{name}" = {value!r}' for name, value in settings.items()]
            lines.append("")
    path = folder.root / "tuned.toml"
    write_text(path, "\n".join(lines), ours=True)
    return path
