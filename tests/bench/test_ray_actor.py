"""What a worker of a cluster answers, without a cluster."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from ogkd.bench.grid import expand, read_grid
from ogkd.bench.ray_workers import RunActor
from ogkd.bench.workers import make_job
from ogkd.errors import ConfigError, StorageError
from ogkd.features.ray_cluster import folders


@pytest.fixture
def job(grid_file):
    grid = read_grid(grid_file, {"shots": [1], "seeds": [1]})
    plan, sources = expand(grid)
    return make_job(plan, sources, grid.backbone, device="cpu")


def worker(job, tmp_path, ogkd=None):
    return RunActor(
        job.model_dump_json(), folders(), str(tmp_path / "marker"), ogkd or version("ogkd")
    )


def test_a_worker_says_what_its_node_lacks(job, tmp_path, datasets):
    assert "same version" in worker(job, tmp_path, "0.0.0").start().problem
    moved = {
        name: source.model_copy(update={"folder": source.folder.replace(str(datasets), "/nowhere")})
        for name, source in job.sources.items()
    }
    elsewhere = job.model_copy(update={"sources": moved})
    problem = worker(elsewhere, tmp_path).start().problem
    assert "no folder /nowhere/first" in problem
    assert "shared storage" in problem
    gone = job.model_copy(update={"backbone": "/no/backbone"})
    assert "/no/backbone" in worker(gone, tmp_path).start().problem


def test_a_worker_answers_with_what_the_runner_gives_or_why_not(job, tmp_path, monkeypatch):
    mine = worker(job, tmp_path)
    (tmp_path / "marker").touch()
    state = mine.start()
    assert (state.problem, state.shares_cache) == ("", True)
    group = job.groups()[0]
    answer = mine.run(group)
    assert answer.results is not None
    assert [run.spec for run in answer.results] == list(group.specs)
    assert answer.results[0].result["backbone_digest"] == state.digest

    def fail(error):
        def run(_):
            raise error

        monkeypatch.setattr(mine._runner, "run", run)
        return mine.run(group)

    assert fail(ConfigError("too many prompts")).error == "too many prompts"
    assert "a mistake" in fail(ValueError("a mistake")).error
    assert fail(StorageError("full")).no_space
