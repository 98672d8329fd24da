"""Settings are chosen on validation images: the test images could as well not be there."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest

from ogkd.bench.grid import best_settings, expand, read_grid, tuning_grid, write_best
from ogkd.bench.runner import prepare
from ogkd.bench.runs import RunsFolder, RunSpec
from ogkd.bench.tables import make_table
from ogkd.bench.worker import Job, work
from ogkd.errors import ConfigError, DataError
from ogkd.methods import METHODS
from tiny_runs import make_dataset, make_plan, write_run

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


def test_the_best_trial_is_found_by_accuracy_then_nll(tmp_path):
    folder = RunsFolder(tmp_path)
    cells, values = [], {0: (0.5, 1.0), 1: (0.7, 0.9), 2: (0.7, 0.8), 3: (0.6, 0.1)}
    for number, (accuracy, nll) in values.items():
        settings = {"weight": float(number), "views": 0, "train.epochs": 1}
        spec = RunSpec(dataset="d", method="kgcoop", shots=1, judge="val", settings=settings)
        write_run(folder, spec, accuracy, nll=nll)
        cells.append((f"kgcoop {number}", spec))
    assert best_settings(folder, make_plan(cells, "few-shot")) == {"kgcoop": {"d": {"weight": 2.0}}}
    more = RunSpec(dataset="d", method="kgcoop", shots=1, judge="val", settings={"weight": 9.0})
    with pytest.raises(DataError, match="'kgcoop 4' on d is not finished"):
        best_settings(folder, make_plan([*cells, ("kgcoop 4", more)], "few-shot"))


def test_tuning_resumes_and_its_file_is_used_by_the_next_grid(grid, tmp_path):
    shutil.rmtree(tmp_path / "data" / "mine" / "test")  # test images are not needed
    folder = RunsFolder(tmp_path / "tuning")
    search = tuning_grid(read_grid(grid, {"only": ["kgcoop"]}), trials=3)
    plan, written = run(folder, search)
    assert written
    assert run(folder, search)[1] == []  # nothing is done twice
    for _, done in folder.finished(plan):
        assert len(done.predictions().labels) == 8  # 4 classes, 2 validation images each
    assert "Judged on validation images" in make_table(folder, plan)
    tuned = best_settings(folder, plan)
    path = write_best(folder, plan)
    assert tomllib.loads(path.read_text()) == tuned
    later, _ = expand(read_grid(grid, {"tuned": str(path)}))
    for cell in later.cells:
        chosen = tuned["kgcoop"]["mine"] if cell.spec.method == "kgcoop" else {}
        assert chosen.items() <= cell.spec.settings.items()
        assert cell.spec.judge == "test"


def test_the_first_trial_is_the_preset_and_no_other_is_tried_twice():
    grid = tuning_grid(read_grid("paper/few-shot", {"only": ["kgcoop", "ogkd"]}), trials=20)
    rows = [row.settings for row in grid.rows if row.method == "kgcoop"]
    assert rows[0] == {"views": 0}  # on the feature cache, not on fresh crops
    assert sorted(row["weight"] for row in rows[1:]) == sorted(METHODS["kgcoop"].tunable["weight"])
    settings = [tuple(row.settings.items()) for row in grid.rows if row.method == "ogkd"]
    assert len(set(settings)) == 20
    assert grid.judge == "val"
    for methods in (["gda"], None):
        with pytest.raises(ConfigError) as caught:
            tuning_grid(read_grid("paper/few-shot", {"only": methods}), trials=3)
        assert caught.value.argument == "methods"


@pytest.mark.parametrize("name", sorted(name for name, kind in METHODS.items() if kind.tunable))
def test_every_declared_number_is_a_setting(name):
    from ogkd.methods import make_method

    for key, values in METHODS[name].tunable.items():
        assert len(set(values)) == len(values) > 1
        for value in values:
            make_method(name, settings={key: value})
            assert np.isfinite(value)
