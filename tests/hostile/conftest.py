"""One world for all hostile tests: labelled images, a table, a calibrated model, finished runs."""

from __future__ import annotations

import os

import pytest

import ogkd
from ogkd.export import write
from tiny_data import write_dataset

from . import harness
from .corpus import GRID


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    os.environ["OGKD_CACHE"] = str(root / "cache")
    harness.warm_up()
    data = write_dataset(root / "data", splits={"train": 4, "test": 8})
    rows = [f"{path.relative_to(root)},{path.parent.name}" for path in data.rglob("*.png")]
    (root / "table.csv").write_text("\n".join(["path,label", *sorted(rows)]) + "\n")
    (root / "g.toml").write_text(GRID)
    for line in (
        "fit data --method fused --backbone builtin --out model",
        "calibrate model data --split test",
        "bench run g.toml --workers 0 --out runs",
        "bench run g.toml --workers 0 --methods gda --out runs-of-one",
    ):
        done = harness.run(line.split(), root)
        assert done.code == 0, done.errors
    names = {"table": "table.csv", "grid": "g.toml"}
    paths = {name: root / names.get(name, name) for name in ("data", "model", "runs", *names)}
    # The graph takes seconds, and no files.
    graph = write.build(ogkd.load(root / "model"))
    image = next((data / "test").rglob("*.png"))
    return {**paths, "root": root, "image": image, "graph": graph}
