"""A grid on the pretended accelerator: the same results, and they say where they come from."""

from __future__ import annotations

from pathlib import Path

import torch

from ogkd.backbones import engines
from ogkd.backbones.engines import with_engine
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.bench.grid import expand, read_grid
from ogkd.bench.runner import Runner, group_runs
from pretend_device import THERE, move, pretending

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"


def results(grid, backbone):
    plan, sources = expand(grid)
    runner = Runner(lambda: backbone, sources)
    found = [run for group in group_runs(list(plan.specs.values())) for run in runner.run(group)]
    return {run.spec.hash: run for run in found}


def test_every_kind_of_run_works_on_the_device(grid_file):
    here, there = (
        load_open_clip(FIXTURE, name="tiny", device=torch.device("cpu")) for _ in range(2)
    )
    move(there.model)
    there.device = THERE
    rows = [
        {"method": "ogkd", "label": "online", "settings": {"views": "online"}},
        {"method": "biomedcoop", "label": "crops", "settings": {"views": 2}},
        {"method": "lp++", "label": "as released", "settings": {"fidelity": "released"}},
        {"method": "tip-adapter"},
        {"method": "zero-shot-ensemble"},
    ]
    changes = {"rows": rows, "methods": [], "datasets": ["first"], "shots": [2]}
    grid = read_grid(grid_file, changes | {"settings": {"train.epochs": 1}})
    expected = results(grid, here)
    with pretending():
        found = results(grid, there)
    for key, run in found.items():
        assert run.result.device == THERE.type
        assert expected[key].result.device == "cpu"
        p, q = (one.predictions["test"].probabilities for one in (run, expected[key]))
        assert abs(p - q).max() < 5e-3, run.spec


def test_a_grid_in_half_precision_is_close_and_kept_apart(grid_file, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "half_problem", lambda *_: "")
    backbone = load_open_clip(FIXTURE, name="tiny", device=torch.device("cpu"))
    rows = [{"method": "ogkd", "settings": {"views": "online"}}, {"method": "gda"}]
    changes = {"rows": rows, "methods": [], "datasets": ["first"], "shots": [2], "seeds": [1]}
    grid = read_grid(grid_file, changes | {"settings": {"train.epochs": 1}})
    expected = results(grid, backbone)
    for key, run in results(grid, with_engine(backbone, "bf16")).items():
        plain = expected[key]
        assert (run.result.engine, plain.result.engine) == ("bf16", "torch")
        assert run.result.backbone_digest != plain.result.backbone_digest
        p, q = (one.predictions["test"].probabilities for one in (run, plain))
        assert 0 < abs(p - q).max() < 0.2, run.spec
