"""Runs judged on validation images: the test images could as well not be there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ogkd.bench.grid import expand, read_grid
from ogkd.bench.runner import prepare
from ogkd.bench.runs import RunsFolder, RunSpec
from ogkd.bench.tables import make_table
from ogkd.bench.worker import Job, work
from tiny_runs import make_dataset

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"


def run(folder, grid):
    plan, sources = expand(grid)
    prepare(folder, plan, sources)
    written = []
    work(
        Job(out=folder.root, plan=plan, sources=sources, backbone=grid.backbone),
        lambda: written.append(1),
    )
    assert not folder.failures()
    return plan, written


@pytest.fixture
def grid(tmp_path):
    make_dataset(tmp_path / "data" / "mine")
    for name in ("train", "val"):  # more validation images than one of each class
        for kind in (tmp_path / "data" / "mine" / name).iterdir():
            shutil.copy(kind / "0.png", kind / "again.png")
    (tmp_path / "grid.toml").write_text(
        f"data = '{tmp_path / 'data'}'\nbackbone = '{FIXTURE}'\ndatasets = ['*']\n"
        "shots = [2]\nseeds = [1, 2]\nmethods = ['kgcoop', 'gda']\n"
        "[settings]\n'train.epochs' = 1\n"
    )
    return tmp_path / "grid.toml"


def test_a_judge_is_part_of_a_run_but_runs_on_test_images_keep_their_names(grid):
    (test, _), (val, _) = (expand(read_grid(grid, {"judge": name})) for name in ("test", "val"))
    assert not set(test.specs) & set(val.specs)
    spec = RunSpec(dataset="busi", method="ogkd")
    assert "judge" not in spec.without()
    assert spec.hash == "7ee5f551ef8601de544a"


def test_validation_images_judge_and_test_images_are_not_read(grid, tmp_path):
    shutil.rmtree(tmp_path / "data" / "mine" / "test")
    folder = RunsFolder(tmp_path / "runs")
    plan, written = run(folder, read_grid(grid, {"judge": "val", "only": ["kgcoop"]}))
    assert written
    for _, done in folder.finished(plan):
        assert len(done.predictions().labels) == 8  # 4 classes, 2 validation images each
    assert "Judged on validation images" in make_table(folder, plan)
