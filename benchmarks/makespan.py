"""How long a benchmark takes on 1 to 64 workers: a simulation with measured costs.

    python benchmarks/makespan.py --runs runs/few-shot     # groups of finished runs, as measured
    python benchmarks/makespan.py --grids paper/few-shot --out runs/makespan.json

With --runs every group takes what it took. With --grids a group takes what BiomedCLIP-size costs
of docs/performance.md say (one worker: two cores), by phase. Free workers take the next group:
in the grid's order, longest first as the Ray engine does, or longest first of a dataset whose
texts the worker holds.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ogkd.bench.grid import expand, protocols, read_grid
from ogkd.bench.results import RunsFolder
from ogkd.bench.run import Group, group_runs
from ogkd.bench.spec import RunSpec
from ogkd.datasets.catalog import benchmarks
from ogkd.files import write_json
from ogkd.methods import make_method

WORKERS = (1, 2, 4, 8, 16, 32, 64)
ORDERS = ("in order", "longest first", "own dataset first")
TRAINED = "clip-adapter tip-adapter-f linear-probe lp++ coop cocoop kgcoop prograd biomedcoop ogkd"

# docs/performance.md, two cores, BiomedCLIP's size: seconds of a step for each run of 1, 3 and
# 10 trained together, with 4 and 8 classes; of the text side's start-up; images a second.
TOGETHER = (1, 3, 10)
STEP = {4: (0.186, 0.141, 0.112), 8: (0.311, 0.237, 0.185)}
START_UP = {4: 5.4, 8: 11.7}
IMAGES_PER_S = 4.1
CHUNK = 256  # images of one task of the Ray engine
# Other methods on features alone, seconds a run: docs/methods.md (16 shots of 8 classes).
CHEAP = {"clip-adapter": 0.16, "tip-adapter": 0.52, "tip-adapter-f": 0.44, "linear-probe": 0.13}
PROMPTS = {"coop": 1.0, "cocoop": 1.0, "kgcoop": 1.0, "prograd": 1.66, "biomedcoop": 1.0}
PROMPTS["ogkd"] = 1.0  # the text tower is nearly all of a step; ProGrad goes back through it twice


@dataclass
class Task:
    """A group: what it takes by phase, and the setup that a worker or the cluster may have."""

    name: str
    dataset: str
    runs: int
    phases: dict[str, float]
    text: float = 0.0  # once for each worker and dataset
    support: float = 0.0  # once for each dataset and number of shots
    shots: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


def line(table: dict[int, float], classes: int) -> float:
    """A measure at 4 and 8 classes, drawn on in a straight line."""
    return table[4] + (table[8] - table[4]) * (classes - 4) / 4


def step_seconds(classes: int, together: int) -> float:
    """Seconds of one step for each of the runs trained together."""
    at = [float(np.interp(math.log(together), np.log(TOGETHER), STEP[known])) for known in (4, 8)]
    return line({4: at[0], 8: at[1]}, classes)


def steps(spec: RunSpec, images: int) -> int:
    """Batches of a training, as the loop counts them: a batch that is not full is dropped."""
    train = make_method(spec.method, preset=spec.preset, settings=spec.settings).config.train  # type: ignore[attr-defined]
    return int(train.epochs * max(1, images // train.batch_size))


def modelled(group: Group) -> Task:
    """A group at BiomedCLIP's size."""
    first = group.specs[0]
    every = len(benchmarks()[first.dataset].class_names)
    learned = math.ceil(every / 2) if first.protocol == "base-to-novel" else every
    images = (first.shots or 16) * learned
    runs = len(group.specs)
    train = CHEAP.get(first.method, 0.06) * runs
    if first.method in PROMPTS:
        each = steps(first, images) * step_seconds(learned, runs) * PROMPTS[first.method]
        train = each * runs
    elif first.method.startswith("zero-shot"):
        train = 0.0
    seeds = len({spec.seed for spec in group.specs})
    return Task(
        name=group.name,
        dataset=first.dataset,
        runs=runs,
        phases={"train": train, "test": 0.01 * runs},
        text=line(START_UP, every),
        support=0.0 if first.method.startswith("zero-shot") else seeds * images / IMAGES_PER_S,
        shots=first.shots or 0,
    )


def measured(root: Path) -> list[Task]:
    """The groups of finished runs, with the seconds that they took."""
    runs = {run.spec.hash: run for run in RunsFolder(root).runs()}
    tasks = []
    for group in group_runs([run.spec for run in runs.values()]):
        phases: dict[str, float] = {}
        for spec in group.specs:
            for phase, seconds in runs[spec.hash].result["seconds"].items():
                if phase != "load":
                    phases[phase] = phases.get(phase, 0.0) + seconds
        tasks.append(Task(group.name, group.specs[0].dataset, len(group.specs), phases))
    return tasks


def encode_seconds(datasets: Sequence[str], workers: int) -> float:
    """All test images once, in tasks of CHUNK images, before the groups."""
    chunks = []
    for name in datasets:
        left = benchmarks()[name].counts.test
        chunks += [min(CHUNK, left - start) / IMAGES_PER_S for start in range(0, left, CHUNK)]
    ends = [0.0] * workers
    for seconds in sorted(chunks, reverse=True):
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def simulate(tasks: Sequence[Task], workers: int, order: str, start: float) -> dict[str, float]:
    """List scheduling: whoever is free takes the next group."""
    waiting = list(tasks) if order == "in order" else sorted(tasks, key=lambda t: -t.seconds)
    free = [(start, number) for number in range(workers)]
    heapq.heapify(free)
    held: list[set[str]] = [set() for _ in range(workers)]
    encoded: set[tuple[str, int]] = set()
    busy, end = 0.0, start
    while waiting:
        now, worker = heapq.heappop(free)
        at = 0
        if order == "own dataset first":
            mine = (i for i, task in enumerate(waiting) if task.dataset in held[worker])
            at = next(mine, 0)
        task = waiting.pop(at)
        seconds = task.seconds
        if task.dataset not in held[worker]:
            seconds += task.text
            held[worker].add(task.dataset)
        if (task.dataset, task.shots) not in encoded:
            seconds += task.support
            encoded.add((task.dataset, task.shots))
        busy += seconds
        end = max(end, now + seconds)
        heapq.heappush(free, (now + seconds, worker))
    return {"makespan_s": end, "busy_s": busy + start * workers}


def duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def report(tasks: Sequence[Task], encode: Callable[[int], float]) -> dict[str, object]:
    """Every number of workers and order, with what no schedule can beat."""
    rows = []
    for workers in WORKERS:
        start = encode(workers)
        row: dict[str, object] = {"workers": workers, "encode_s": start}
        for order in ORDERS:
            found = simulate(tasks, workers, order, start)
            row[order] = found["makespan_s"]
            row[f"{order}, busy"] = found["busy_s"] / (found["makespan_s"] * workers)
        rows.append(row)
    phases: dict[str, float] = {}
    for task in tasks:
        for phase, seconds in task.phases.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    return {
        "runs": sum(task.runs for task in tasks),
        "groups": len(tasks),
        "phases_s": phases,
        "longest_group_s": max(task.seconds for task in tasks),
        "rows": rows,
    }


def show(content: dict[str, object]) -> None:
    print(f"{content['runs']} runs in {content['groups']} groups; seconds by phase:")
    print("  ", {name: round(value) for name, value in content["phases_s"].items()})  # type: ignore[attr-defined]
    print(f"   longest group: {duration(content['longest_group_s'])}")  # type: ignore[arg-type]
    print("| workers | encode | " + " | ".join(ORDERS) + " | speed-up | busy |")
    print("|" + "---|" * (len(ORDERS) + 4))
    rows = content["rows"]
    alone = rows[0]["longest first"]  # type: ignore[index]
    for row in rows:  # type: ignore[attr-defined]
        spans = " | ".join(duration(row[order]) for order in ORDERS)
        gain = alone / row["longest first"]
        print(
            f"| {row['workers']} | {duration(row['encode_s'])} | {spans} | {gain:.1f}x "
            f"| {row['longest first, busy']:.0%} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--runs", type=Path, help="a folder of finished runs")
    parser.add_argument("--grids", nargs="+", help="grids by name; `paper` for all of the paper")
    parser.add_argument("--methods", help="only these, with commas; `trained` for ten that train")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    if options.runs:
        content = report(measured(options.runs), lambda _: 0.0)
    else:
        names = options.grids or ["paper/few-shot"]
        if names == ["paper"]:
            names = [name for name in protocols() if name.startswith("paper/")]
        only = TRAINED.split() if options.methods == "trained" else options.methods
        only = only.split(",") if isinstance(only, str) else only
        specs: dict[str, RunSpec] = {}
        for name in names:
            plan, _ = expand(read_grid(name, {"only": only}))
            specs |= {cell.spec.hash: cell.spec for cell in plan.cells}
        tasks = [modelled(group) for group in group_runs(list(specs.values()))]
        datasets = sorted({task.dataset for task in tasks})
        content = report(tasks, lambda workers: encode_seconds(datasets, workers))
    show(content)
    if options.out:
        write_json(options.out, content)


if __name__ == "__main__":
    main()
