"""What sharing gains: the same runs with shared work, and each run on its own.

Interleaved rounds on phantoms with the built-in backbone. "alone" runs every run without a common
cache of features, as a loop over scripts does. "shared" is what `ogkd bench run` does. Neither
includes loading Python and the backbone.

    python benchmarks/sharing.py --out runs/sharing.json
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from ogkd.backbones import load_backbone
from ogkd.bench.grid import Grid, expand
from ogkd.bench.runner import Runner, group_runs, prepare
from ogkd.bench.runs import RunsFolder
from ogkd.files import write_json

GRID = {
    "name": "sharing",
    "data": "phantoms",
    "backbone": "builtin",
    "datasets": ["us-breast"],
    "shots": [4],
    "settings": {"train.epochs": 5},
    "methods": ["gda", "coop", "biomedcoop", "ogkd"],
}


def shared(grid: Grid, root: Path) -> float:
    """Seconds of all runs with shared features, texts and passes."""
    plan, sources = expand(grid)
    folder = RunsFolder(root / "runs")
    prepare(folder, plan, sources)
    backbone = load_backbone("builtin")
    runner = Runner(lambda: backbone, sources)
    began = time.perf_counter()
    for group in group_runs(list(plan.specs.values())):
        for run in runner.run(group):
            folder.write(run.spec, run.result, run.predictions)
    return time.perf_counter() - began


def exclusive_lock(grid: Grid, root: Path) -> float:
    """Seconds of the same runs, each with an empty cache and its own pass."""
    plan, sources = expand(grid)
    backbone = load_backbone("builtin")
    total = 0.0
    for number, cell in enumerate(plan.cells):
        os.environ["OGKD_CACHE"] = str(root / str(number))
        runner = Runner(lambda: backbone, sources)
        runner._open(cell.spec.dataset)  # draw the phantoms before the measurement
        began = time.perf_counter()
        runner.run(group_runs([cell.spec])[0])
        total += time.perf_counter() - began
    return total


def main() -> None:
    """Measure both and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/sharing.json"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    grid = Grid.model_validate({**GRID, "seeds": list(range(1, arguments.seeds + 1))})
    found: dict[str, list[float]] = {"shared": [], "alone": []}
    for _ in range(arguments.rounds):
        for name, measure in (("shared", shared), ("alone", exclusive_lock)):
            with tempfile.TemporaryDirectory() as folder:
                os.environ["OGKD_CACHE"] = str(Path(folder) / "cache")
                expanded = expand(grid)
                Runner(lambda: load_backbone("builtin"), expanded[1])._open("us-breast")
                found[name].append(measure(grid, Path(folder)))
    runs = 4 * arguments.seeds
    ratio = median(found["alone"]) / median(found["shared"])
    write_json(arguments.out, {"runs": runs, "seconds": found, "ratio": ratio})
    print(
        f"{runs} runs: shared {median(found['shared']):.1f} s, alone {median(found['alone']):.1f} s"
    )
    print(f"ratio of medians: {ratio:.1f}x")


if __name__ == "__main__":
    main()
