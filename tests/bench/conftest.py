"""A folder of two tiny datasets and a grid over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ogkd.bench.grid import expand, read_grid
from ogkd.bench.runner import prepare
from ogkd.bench.runs import RunsFolder
from ogkd.bench.worker import Job
from tiny_runs import make_dataset

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"

GRID = """
name = "tiny"
title = "A tiny grid"
data = "{data}"
backbone = "{backbone}"
datasets = ["*"]
shots = [1, 3]
seeds = [1, 2]
methods = ["zero-shot", "gda", "coop"]

[settings]
"train.epochs" = 2

[[rows]]
label = "OGKD"
method = "ogkd"
"""


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("datasets")
    for seed, name in enumerate(("first", "second")):
        make_dataset(root / name, seed=seed)
    return root


@pytest.fixture
def grid_file(datasets: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(GRID.format(data=datasets, backbone=FIXTURE))
    return path


@pytest.fixture
def bench(grid_file, tmp_path):
    """A folder, a plan and its job, from the tiny grid with changes."""

    def make(out="runs", **changes):
        grid = read_grid(grid_file, changes)
        plan, sources = expand(grid)
        folder = RunsFolder(tmp_path / out)
        prepare(folder, plan, sources)
        job = Job(out=folder.root, plan=plan, sources=sources, backbone=grid.backbone, device="cpu")
        return folder, plan, job

    return make
