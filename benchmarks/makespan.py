"""How long a benchmark takes on 1 to 64 workers: a simulation with measured costs.

    python benchmarks/makespan.py --runs runs/few-shot     # groups of finished runs, as measured
    python benchmarks/makespan.py --grids paper/few-shot --out runs/makespan.json
    python benchmarks/makespan.py --grids paper/few-shot --views 0   # whole images, no crops

With --runs every group takes as long as it did. With --grids its time is put together by phase from
the costs measured at BiomedCLIP's size (docs: performance; one worker has two cores); the paper's
settings encode a new crop of every image in every epoch (views = "online"), in each run. A free
worker takes the next group: in the order in which workers claim them, or strictly longest first.
The first worker on a dataset encodes its test images; others that need them wait.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ogkd.bench.grid import expand, protocols, read_grid
from ogkd.bench.runner import RunGroup, group_runs, method_of
from ogkd.bench.runs import RunsFolder, RunSpec
from ogkd.bench.worker import claim_order
from ogkd.core.optimisers import TrainConfig
from ogkd.data.catalog import benchmarks
from ogkd.files import write_json

WORKERS = (1, 2, 4, 8, 16, 32, 64)
ORDERS = ("as claimed", "longest first")
TRAINED = "clip-adapter tip-adapter-f linear-probe lp++ coop cocoop kgcoop prograd biomedcoop ogkd"

# Docs, performance; two cores, BiomedCLIP's size: seconds of a step for each run of 1, 3 and
# 10 trained together, with 4 and 8 classes; of the text side's start-up; images a second.
TOGETHER = (1, 3, 10)
STEP = {4: (0.186, 0.141, 0.112), 8: (0.311, 0.237, 0.185)}
START_UP = {4: 5.4, 8: 11.7}
IMAGES_PER_S = 4.1  # 4.0 with patches; batches from 1 to 16 are alike
VAL_SHOTS = 4  # images of a class to validate on, at most
# Other methods on features alone, seconds a run (docs, methods: 16 shots of 8 classes).
CHEAP = {"clip-adapter": 0.16, "tip-adapter": 0.52, "tip-adapter-f": 0.44, "linear-probe": 0.13}
PROMPTS = {"coop": 1.0, "cocoop": 1.0, "kgcoop": 1.0, "prograd": 1.66, "biomedcoop": 1.0}
PROMPTS["ogkd"] = 1.0  # the text tower is nearly all of a step; ProGrad goes back through it twice


@dataclass
class Task:
    """A group: its time by phase, and setup that is done once for a worker or the cluster."""

    name: str
    dataset: str
    runs: int
    phases: dict[str, float]
    text: float = 0.0  # once for each worker and dataset
    # Seconds for images that stay in the cache; the first group that needs them encodes them.
    cached: dict[tuple[object, ...], float] = field(default_factory=dict)
    patches: bool = False
    crops: int = 0  # encoded in training
    alike: int = 0  # of which another run of the group encodes the same: equal seed and images

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


def line(table: dict[int, float], classes: int) -> float:
    """A cost measured at 4 and 8 classes, interpolated or extrapolated linearly."""
    return table[4] + (table[8] - table[4]) * (classes - 4) / 4


def step_seconds(classes: int, together: int) -> float:
    """Seconds of one step for each of the runs trained together."""
    at = [float(np.interp(math.log(together), np.log(TOGETHER), STEP[known])) for known in (4, 8)]
    return line({4: at[0], 8: at[1]}, classes)


def steps_and_images(train: TrainConfig, images: int) -> tuple[int, int]:
    """Batches of a training and their images; the last is dropped if not full (fidelity.md, 26)."""
    size = train.batch_size
    if train.drop_last and images >= size:
        images -= images % size
    return train.epochs * math.ceil(images / size), train.epochs * images


def modelled(group: RunGroup) -> Task:
    """A group at BiomedCLIP's size."""
    first = group[0]
    method = method_of(first)
    every = len(benchmarks()[first.dataset].class_names)
    classes = {"base": math.ceil(every / 2), "novel": every // 2}
    if first.protocol == "base-to-novel":
        del classes["novel"]  # images of base classes are those of the few-shot draw
    learned = sum(classes.values())
    shots, runs = first.shots or 16, len(group)
    seeds = sorted({spec.seed for spec in group})
    task = Task(group[0].hash, first.dataset, runs, {}, line(START_UP, every))
    task.patches = method.uses_patches
    task.phases = {"crops": 0.0, "train": CHEAP.get(first.method, 0.06) * runs}
    if first.method.startswith("zero-shot"):
        task.phases["train"] = 0.0
    if first.method in PROMPTS:
        steps, seen = steps_and_images(method.config.train, shots * learned)  # type: ignore[attr-defined]
        each = steps * step_seconds(learned, runs) * PROMPTS[first.method]
        task.phases["train"] = each * runs
        if method.config.views == "online":  # every run encodes its own crops (training.py)
            task.crops, task.alike = seen * runs, seen * (runs - len(seeds))
            task.phases["crops"] = task.crops / IMAGES_PER_S
    task.phases["test"] = 0.01 * runs
    per_class: dict[object, int] = {}  # images that stay in the cache, for each seed
    if method.needs_images and method.config.views != "online":
        views = max(1, method.config.views)
        per_class[views] = shots * views
    if method.needs_images and method.uses_validation:
        per_class["val"] = min(shots, VAL_SHOTS)
    for (part, count), seed in itertools.product(classes.items(), seeds):
        for what, images in per_class.items():
            task.cached[first.dataset, part, shots, seed, what] = count * images / IMAGES_PER_S
    return task


def measured(root: Path) -> list[Task]:
    """The groups of finished runs, with the seconds that they took."""
    runs = {run.spec.hash: run for run in RunsFolder(root).runs()}
    tasks = []
    for group in claim_order(group_runs([run.spec for run in runs.values()])):
        phases: dict[str, float] = {}
        for spec in group:
            for phase, seconds in runs[spec.hash].result.seconds.items():
                if phase != "load":
                    phases[phase] = phases.get(phase, 0.0) + seconds
        tasks.append(Task(group[0].hash, group[0].dataset, len(group), phases))
    return tasks


def simulate(
    tasks: Sequence[Task], workers: int, order: str, encode: Mapping[str, float]
) -> dict[str, float]:
    """List scheduling: whoever is free takes the next group."""
    waiting = list(tasks)
    if order == "longest first":
        waiting.sort(key=lambda task: -task.seconds)
    free = [(0.0, number) for number in range(workers)]
    heapq.heapify(free)
    texts: list[set[str]] = [set() for _ in range(workers)]
    encoded: set[tuple[tuple[object, ...], bool]] = set()  # which images, with patches or not
    ready: dict[str, float] = {}  # when the test images of a dataset are encoded
    busy = end = 0.0
    for task in waiting:
        now, worker = heapq.heappop(free)
        seconds = task.seconds
        if task.dataset not in ready:
            seconds += encode.get(task.dataset, 0.0)
            ready[task.dataset] = now + encode.get(task.dataset, 0.0)
        else:
            now = max(now, ready[task.dataset])
        if task.dataset not in texts[worker]:
            seconds += task.text
            texts[worker].add(task.dataset)
        for which, cost in task.cached.items():
            if not encoded & {(which, True), (which, task.patches)}:
                seconds += cost
                encoded.add((which, task.patches))
        busy += seconds
        end = max(end, now + seconds)
        heapq.heappush(free, (now + seconds, worker))
    once = busy - sum(task.seconds for task in tasks)  # texts, and images that stay in the cache
    return {"makespan_s": end, "busy_s": busy, "once_s": once}


def duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def report(tasks: Sequence[Task], encode: Mapping[str, float]) -> dict[str, object]:
    """Every number of workers and order, with what no schedule can beat."""
    rows = []
    for workers in WORKERS:
        row: dict[str, object] = {"workers": workers}
        for order in ORDERS:
            result = simulate(tasks, workers, order, encode)
            row[order] = result["makespan_s"]
            row[f"{order}, busy"] = result["busy_s"] / (result["makespan_s"] * workers)
            row[f"{order}, texts and cached images s"] = result["once_s"]
        rows.append(row)
    longest = max(tasks, key=lambda task: task.seconds)
    phases: dict[str, float] = {}
    for task in tasks:
        for phase, seconds in task.phases.items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    return {
        "runs": sum(task.runs for task in tasks),
        "groups": len(tasks),
        "runs_with_crops": sum(task.runs for task in tasks if task.crops),
        "crops": sum(task.crops for task in tasks),
        "crops_alike_in_their_group": sum(task.alike for task in tasks),
        "phases_s": phases,
        "longest_group_phases_s": longest.phases,
        "longest_group_s": longest.seconds,
        "rows": rows,
    }


def show(content: dict[str, Any]) -> None:
    print(f"{content['runs']} runs in {content['groups']} groups; by phase:")
    print("  ", {name: duration(value) for name, value in content["phases_s"].items()})
    first = ORDERS[0]
    once = content["rows"][0][f"{first}, texts and cached images s"]
    print(f"   texts and images that stay in the cache, one worker: {duration(once)}")
    alike = content["crops_alike_in_their_group"]
    print(f"   {content['runs_with_crops']} runs encode {content['crops']} crops in training,")
    print(f"   of which {alike} were encoded for another run of the group already")
    parts = {name: duration(value) for name, value in content["longest_group_phases_s"].items()}
    print(f"   longest group: {duration(content['longest_group_s'])}", parts)
    enough = math.ceil(content["rows"][0][first] / content["longest_group_s"])
    print(f"   so more than {enough} workers gain nothing")
    print("| workers | " + " | ".join(ORDERS) + " | speed-up | busy |")
    print("|" + "---|" * (len(ORDERS) + 3))
    rows = content["rows"]
    for row in rows:
        spans = " | ".join(duration(row[order]) for order in ORDERS)
        gain = rows[0][first] / row[first]
        print(f"| {row['workers']} | {spans} | {gain:.1f}x | {row[f'{first}, busy']:.0%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="a folder of finished runs")
    parser.add_argument("--grids", nargs="+", help="grids by name; `paper` for all of the paper's")
    parser.add_argument(
        "--methods", help="only these, separated by commas; `trained`: the ten that train"
    )
    parser.add_argument("--views", type=int, help="cached crops of each image; 0: whole images")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    options = parser.parse_args()
    if options.runs:
        content = report(measured(options.runs), {})
    else:
        names = options.grids or ["paper/few-shot"]
        if names == ["paper"]:
            names = [name for name in protocols() if name.startswith("paper/")]
        only = TRAINED.split() if options.methods == "trained" else options.methods
        only = only.split(",") if isinstance(only, str) else only
        settings = None if options.views is None else {"views": options.views}
        specs: dict[str, RunSpec] = {}
        for name in names:
            plan, _ = expand(read_grid(name, {"only": only, "settings": settings}))
            specs |= {cell.spec.hash: cell.spec for cell in plan.cells}
        tasks = [modelled(group) for group in claim_order(group_runs(list(specs.values())))]
        names = {task.dataset for task in tasks}
        encode = {name: benchmarks()[name].counts.test / IMAGES_PER_S for name in names}
        content = report(tasks, encode)
    show(content)
    if options.out:
        write_json(options.out, content)


if __name__ == "__main__":
    main()
