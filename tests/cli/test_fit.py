from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import typer

import ogkd as library
from ogkd.backbones import hub
from ogkd.cli.fit import fit
from ogkd.cli.options import HELP
from ogkd.data.phantoms import write_folder
from ogkd.fitting import choose
from ogkd.fitting.request import FitRequest

FAST = ["--method", "ogkd", "--set", "train.epochs=2", "--set", "views=1"]


def test_a_folder_becomes_a_model_that_says_what_is_next(ogkd, clip, data, tmp_path):
    out = tmp_path / "m"
    outcome = ogkd("fit", data, "--backbone", clip, "--shots", 2, "--out", out, *FAST)
    assert outcome.code == 0, outcome.err
    assert "6 images (benign tumor 2, malignant tumor 2, normal lung 2)" in outcome.out
    assert f"Next:  ogkd predict {out} IMAGES" in outcome.out
    card = library.load(out).card
    assert (card.shots, card.config["train"]["epochs"], card.config["views"]) == (2, 2, 1)
    again = ogkd("fit", data, "--backbone", clip, "--shots", 2, "--out", out, *FAST)
    assert "already fitted with these options: nothing to do." in again.err
    assert "before; --restart fits again." in again.out


def test_every_option_of_a_fit_is_on_the_command_line_with_its_text(ogkd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")
    said = " ".join(ogkd("fit", "--help").out.split())
    names = {"data": "data", "settings": "--set", "class_names": "--classes"}
    for field in fields(FitRequest):
        name = names.get(field.name, f"--{field.name.replace('_', '-')}")
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", said), name
        assert field.name == "out" or HELP[field.name] in said, field.name
        same = field.name in ("data", "out")
        assert same or inspect.signature(fit).parameters[field.name].default == field.default
    assert "In Python" not in said
    assert not re.search(r"--no-\w", said)


def test_phantoms_get_the_builtin_model(ogkd, tmp_path):
    out = tmp_path / "m"
    write_folder("endoscopy", tmp_path / "eyes", splits={"train": 2})
    outcome = ogkd("fit", tmp_path / "eyes", "-o", out, "-m", "zero-shot")
    assert outcome.code == 0, outcome.err
    assert "WARNING" not in outcome.err
    assert json.loads((out / "model.json").read_text())["backbone"]["name"] == "builtin"


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_a_backbone_is_fetched_only_after_a_yes(
    ogkd, data, clip, tmp_path, monkeypatch, answer
):
    fetched = []

    def fetch(record):
        fetched.append(record.name)
        monkeypatch.setattr(choose, "choose_backbone", lambda images: str(clip))

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: answer == "y")
    outcome = ogkd("fit", data, "-o", tmp_path / "m", "-m", "zero-shot")
    assert outcome.code == (0 if answer == "y" else 2), outcome.err
    assert fetched == (["biomedclip"] if answer == "y" else [])


def test_a_medmnist_file_gets_its_class_names_and_is_judged(ogkd, clip, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 6), ("val", 2), ("test", 4)):
        arrays[f"{split}_images"] = rng.integers(0, 255, (count, 28, 28), dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count) % 2)[:, None]
    np.savez(tmp_path / "tiny.npz", **arrays)
    names = ["--classes", "benign tumor, normal lung"]
    out = tmp_path / "m"
    outcome = ogkd("fit", tmp_path / "tiny.npz", *names, "-b", clip, "-o", out, *FAST)
    assert outcome.code == 0, outcome.err
    card = library.load(out).card
    assert card.class_names == ("benign tumor", "normal lung")
    assert card.normal == ("normal lung",)
    assert card.support_counts == (3, 3)
    judged = ogkd("evaluate", out, tmp_path / "tiny.npz", *names)
    assert judged.code == 0, judged.err
    assert "4 images" in judged.out
