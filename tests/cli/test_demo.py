from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import ogkd.cli.demo as demo
import ogkd.fitting.pipeline as fitting
from ogkd.backbones.builtin import BUILTIN_FOLDER
from ogkd.model.load import load
from tiny_data import FAST, write_image


@pytest.fixture
def quick(tiny_builtin, monkeypatch):
    """The demo with a tiny backbone and few images and epochs."""
    real = fitting.fit

    def fit(*arguments, **options):
        short = FAST if options["method"] == "ogkd" else None
        return real(*arguments, **options, settings=short)

    monkeypatch.setattr(fitting, "fit", fit)
    monkeypatch.setattr(demo, "_SHOTS", 2)
    monkeypatch.setattr(demo, "_FEW", 1)
    monkeypatch.setattr(demo, "_VAL", 5)
    monkeypatch.setattr(demo, "_TEST", 2)


def test_the_demo_leaves_a_table_images_prompts_and_models(ogkd, quick, tmp_path):
    out = tmp_path / "d"
    outcome = ogkd("demo", "--out", out, "--datasets", "ct-kidney, ct-kidney")
    assert outcome.code == 0, outcome.err
    rows = json.loads((out / "results.json").read_text())
    shots = {row["method"]: row["shots"] for row in rows}
    assert shots == {"zero-shot": 0, "zero-shot-ensemble": 0, "fused": 2, "ogkd": 2}
    for method in shots:
        assert f"\n  {method} " in outcome.out.split("What each method uses:")[1]
    with (out / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["accuracy"] for row in table] == [str(row["accuracy"]) for row in rows]
    assert load(out / "models" / "ct-kidney").card.method == "fused"
    assert "1 labels per class are enough to start with" in outcome.out
    assert "ct-kidney: random images" in outcome.out
    images = rows[0]["test_images"]
    assert f"Each is measured on {images} images: ± {98 / images**0.5:.0f} points" in outcome.out
    assert json.loads((out / "prompts" / "ct-kidney.json").read_text())
    assert "Everything is in" in outcome.out
    command = next(line for line in outcome.out.splitlines() if line.startswith("Next: ogkd"))
    predicted = ogkd(*command.split()[2:])
    assert predicted.code == 0
    assert len(predicted.out.splitlines()) == 1 + rows[0]["test_images"]


def test_the_demo_ends_with_the_path_of_a_report_on_its_first_dataset(ogkd, quick, tmp_path):
    out = tmp_path / "d"
    outcome = ogkd("demo", "--out", out, "--datasets", "ct-kidney,cxr")
    assert outcome.code == 0, outcome.err
    last = outcome.out.splitlines()[-1]
    place = Path(last.split(": ", 1)[1])
    assert place == out / "report.html"
    page = place.read_text(encoding="utf-8")
    model = load(out / "models" / "ct-kidney")
    assert model.calibration is not None
    assert model.weights_sha256 in page
    for name in model.class_names:
        assert name in page
    assert "data:image/jpeg" in page
    assert "The data was not checked" not in page
    assert str(tmp_path) not in page
    assert load(out / "models" / "cxr").calibration is None


def _hits(**right):
    return {name.replace("_", "-"): np.arange(200) < count for name, count in right.items()}


def test_a_trained_method_below_an_untrained_one_is_explained():
    hits = _hits(zero_shot=60, zero_shot_ensemble=144, fused=150, ogkd=131)
    (note,) = demo._notes("us-breast", hits)
    assert note.startswith("us-breast: ogkd is 6.5 points below zero-shot-ensemble, more than ch")
    assert "written for these drawings" in note


def test_a_small_difference_is_called_chance():
    hits = _hits(zero_shot=150, zero_shot_ensemble=100, fused=149, ogkd=150)
    (note,) = demo._notes("cxr", hits)
    assert note.startswith("cxr: fused is 0.5 points below zero-shot, which may be chance (200 te")


def test_a_demo_prints_its_explanations(ogkd, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_notes", lambda name, hits: [f"{name}: {len(hits)} methods."])
    outcome = ogkd("demo", "--out", tmp_path / "d", "--datasets", "cxr")
    assert "\ncxr: 4 methods.\n" in outcome.out


def test_a_demo_replaces_an_earlier_demo_only(ogkd, refused, quick, tmp_path):
    out = tmp_path / "d"
    words = ["demo", "--out", out, "--datasets", "us-breast"]
    (out).mkdir()  # an empty folder will do
    assert ogkd(*words).code == 0
    (out / "models" / "stale").mkdir()
    assert ogkd(*words).code == 0
    assert not (out / "models" / "stale").exists()
    (out / "my notes.txt").write_text("x")
    assert "not written by a demo" in refused(*words)


def test_a_folder_that_only_looks_like_a_demo_is_left_alone(refused, quick, tmp_path):
    write_image(tmp_path / "mine" / "images" / "holiday.png")
    assert "not written by a demo" in refused("demo", "--out", tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    assert "not written by a demo" in refused("demo", "--out", tmp_path / "file")


@pytest.mark.parametrize(
    ("datasets", "message"), [("us-brest", "Did you mean 'us-breast'?"), (" , ", "at least one")]
)
def test_unknown_datasets_are_refused_before_the_work(refused, quick, tmp_path, datasets, message):
    assert message in refused("demo", "--out", tmp_path / "d", "--datasets", datasets)


@pytest.mark.skipif(
    not (BUILTIN_FOLDER / "model.safetensors").is_file(), reason="the built-in model is not there"
)
def test_learning_beats_zero_shot_on_phantoms(ogkd, tmp_path):
    outcome = ogkd("demo", "--out", tmp_path / "d", "--datasets", "endoscopy")
    assert outcome.code == 0, outcome.err
    rows = json.loads((tmp_path / "d" / "results.json").read_text())
    accuracy = {row["method"]: row["accuracy"] for row in rows}
    assert accuracy["ogkd"] > accuracy["zero-shot"] > 100 / rows[0]["classes"]
