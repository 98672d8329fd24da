"""`bench plan` measures on the device: a slower one takes longer, and counts are the grid's."""

from __future__ import annotations

import time

import pytest
from bench_data import CLASSES
from typer.testing import CliRunner

from ogkd.backbones import load_backbone
from ogkd.backbones.open_clip_format import OpenClipBackbone
from ogkd.bench import probe as module
from ogkd.bench.grid import expand, read_grid
from ogkd.bench.probe import Probe
from ogkd.bench.runner import Runner, group_runs
from ogkd.cli import app

IMAGES = 12  # that the tiny datasets are judged on
PAUSE = 0.02


@pytest.fixture
def slow(monkeypatch):
    """A device that needs PAUSE for each image; all of them are counted."""
    encode, seen = OpenClipBackbone.encode_images, []

    def slowly(self, pixels, **more):
        seen.append(len(pixels))
        time.sleep(PAUSE * len(pixels))
        return encode(self, pixels, **more)

    monkeypatch.setattr(OpenClipBackbone, "encode_images", slowly)
    return seen


def planned(grid_file, **changes):
    plan, sources = expand(read_grid(grid_file, {"datasets": ["first"], "seeds": [1, 2]} | changes))
    return group_runs(list(plan.specs.values())), sources


def test_the_images_of_an_estimate_are_those_that_a_run_encodes(
    grid_file, slow, tmp_path, monkeypatch
):
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "cache"))
    rows = [{"method": "coop", "settings": {"views": "online"}}, {"method": "gda"}]
    rows.append({"method": "logistic"})  # sees the images of gda, which are kept
    groups, sources = planned(grid_file, rows=rows, methods=[], shots=[2])
    backbone = load_backbone(str(read_grid(grid_file).backbone), device="cpu")
    found = Probe(backbone).phases(groups, sources)
    slow.clear()
    runner = Runner(lambda: backbone, sources)
    for group in groups:
        runner.run(group)
    expected = PAUSE * sum(slow)
    images = sum(one.encode for one in found.values()) + found[groups[0].name].train
    assert groups[0].specs[0].method == "coop"
    assert images == pytest.approx(expected, rel=0.6)
    assert images > 0.9 * expected
    # coop: 12 images it is judged on, 2 epochs of 8 crops of 2 seeds; gda: those of both seeds.
    assert sum(slow) == IMAGES + 2 * 8 * 2 + len(CLASSES) * 2 * 2


def test_more_epochs_take_as_many_times_longer(grid_file, slow):
    seconds = []
    for epochs in (2, 20):
        settings = {"train.epochs": epochs, "views": "online"}
        groups, sources = planned(grid_file, rows=[], methods=["coop"], over=settings, shots=[2])
        backbone = load_backbone(str(read_grid(grid_file).backbone), device="cpu")
        seconds.append(Probe(backbone).phases(groups, sources)[groups[0].name].train)
    assert seconds[1] == pytest.approx(10 * seconds[0], rel=0.4)


def test_a_plan_measures_or_guesses_or_says_why_it_cannot_measure(grid_file, tmp_path, monkeypatch):
    def plan(*words):
        found = CliRunner().invoke(app, ["bench", "plan", str(grid_file), *words])
        assert found.exit_code == 0, found.output
        return found.output

    words = ("--methods", "gda,coop", "--datasets", "first", "--shots", "1")
    measured = plan(*words)
    assert "measured on cpu: encode" in measured
    monkeypatch.setattr(module, "Probe", None)
    assert "rough: no run of coop, gda is finished" in plan(*words, "--no-probe")
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path))
    absent = plan(*words, "--backbone", "biomedclip")
    assert "biomedclip is not on this machine" in absent
    assert "rough" in absent
