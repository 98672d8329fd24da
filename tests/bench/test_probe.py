"""`bench plan` measures on the device: a slower one takes longer, and counts are the grid's."""

from __future__ import annotations

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


class Clock:
    """The probe's clock: it only moves where a test says that something takes time."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def slow(clock, monkeypatch):
    """A device that needs a second for each image; all of them are counted."""
    encode, seen = OpenClipBackbone.encode_images, []

    def slowly(self, pixels, **more):
        seen.append(len(pixels))
        clock.now += len(pixels)
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
    # Seeds may draw the same image, which is encoded once: that is not counted.
    groups, sources = planned(grid_file, rows=rows, methods=[], shots=[1], seeds=[1])
    backbone = load_backbone(str(read_grid(grid_file).backbone), device="cpu")
    found = Probe(backbone).phases(groups, sources)
    slow.clear()
    runner = Runner(lambda: backbone, sources)
    for group in groups:
        runner.run(group)
    assert groups[0].specs[0].method == "coop"
    images = sum(one.encode for one in found.values()) + found[groups[0].name].train
    assert images == pytest.approx(sum(slow))
    # coop: 12 images it is judged on, 2 epochs of a crop of each class; gda: one image of each
    # class to learn from and one to choose by.
    assert sum(slow) == IMAGES + (2 + 1 + 1) * len(CLASSES)


def test_views_and_validation_images_that_rivals_share_are_counted_once(
    grid_file, slow, tmp_path, monkeypatch
):
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "cache"))
    methods = ("tip-adapter", "clip-adapter", "tip-adapter-f")
    rows = [{"method": name, "settings": {"fidelity": "released"}} for name in methods]
    groups, sources = planned(grid_file, rows=rows, methods=[], settings={}, shots=[1])
    backbone = load_backbone(str(read_grid(grid_file).backbone), device="cpu")
    counted = sum(one.encode for one in Probe(backbone).phases(groups, sources).values())
    slow.clear()
    runner = Runner(lambda: backbone, sources)
    for group in groups:
        runner.run(group)
    assert counted == sum(slow)


def test_texts_that_depend_on_the_image_make_testing_long(grid_file, clock, monkeypatch):
    groups, sources = planned(grid_file, rows=[], methods=["coop", "cocoop"], shots=[1])
    backbone = load_backbone(str(read_grid(grid_file).backbone), device="cpu")
    encode = OpenClipBackbone.encode_text

    def slowly(self, embeddings, *more, **named):
        clock.now += len(embeddings)
        return encode(self, embeddings, *more, **named)

    monkeypatch.setattr(OpenClipBackbone, "encode_text", slowly)
    found = Probe(backbone).phases(groups, sources)
    coop, cocoop = (found[group.name].test for group in groups)
    assert coop == 0
    # Each of two runs encodes the texts of all classes for each image.
    assert cocoop == pytest.approx(2 * IMAGES * len(CLASSES))


def test_more_epochs_take_as_many_times_longer(grid_file, slow):
    seconds = []
    for epochs in (2, 20):
        settings = {"train.epochs": epochs, "views": "online"}
        groups, sources = planned(grid_file, rows=[], methods=["coop"], over=settings, shots=[2])
        backbone = load_backbone(str(read_grid(grid_file).backbone), device="cpu")
        seconds.append(Probe(backbone).phases(groups, sources)[groups[0].name].train)
    assert seconds[1] == pytest.approx(10 * seconds[0])
    assert seconds[0] > 0


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
