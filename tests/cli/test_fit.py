from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest
import typer

import ogkd as library
from ogkd.backbones import hub
from ogkd.cli.fit import fit
from ogkd.cli.options import HELP, read_settings
from ogkd.data.phantoms import write_folder
from ogkd.errors import ConfigError
from ogkd.fitting import choose
from ogkd.fitting.request import FitRequest
from ogkd.methods import DEFAULT
from tiny_data import write_dataset

FAST = ["--method", "ogkd", "--set", "train.epochs=2", "--set", "views=1"]


def test_a_folder_becomes_a_model_that_says_what_is_next(ogkd, clip, data, tmp_path):
    out = tmp_path / "m"
    outcome = ogkd("fit", data, "--backbone", clip, "--shots", 2, "--out", out, *FAST)
    assert outcome.code == 0, outcome.err
    assert "6 images (benign tumor 2, malignant tumor 2, normal lung 2)" in outcome.out
    assert f"Next:  ogkd predict {out} IMAGES" in outcome.out
    card = library.load(out).card
    assert (card.shots, card.config["train"]["epochs"], card.config["views"]) == (2, 2, 1)


def test_the_same_command_again_says_that_there_is_nothing_to_do(ogkd, clip, data, tmp_path):
    words = ["fit", data, "--backbone", clip, "--out", tmp_path / "m", *FAST]
    assert ogkd(*words).code == 0
    weights = (tmp_path / "m" / "weights.safetensors").stat().st_mtime_ns
    outcome = ogkd(*words)
    assert outcome.code == 0, outcome.err
    assert "already fitted with these options: nothing to do." in outcome.err
    assert "before; --restart fits again." in outcome.out
    assert (tmp_path / "m" / "weights.safetensors").stat().st_mtime_ns == weights
    assert "already fitted" not in ogkd(*words, "--restart").err


def test_every_option_of_a_fit_is_on_the_command_line_with_its_text(ogkd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")
    said = " ".join(ogkd("fit", "--help").out.split())
    names = {"data": "data", "settings": "--set", "class_names": "--classes"}
    for field in fields(FitRequest):
        if field.name != "say":
            name = names.get(field.name, f"--{field.name.replace('_', '-')}")
            assert re.search(rf"(?<![\w-]){name}(?![\w-])", said), name
            assert field.name == "out" or HELP[field.name] in said, field.name
    assert "In Python" not in said
    assert "--say" not in said
    assert not re.search(r"--no-\w", said)


def test_the_command_line_has_the_defaults_of_a_fit():
    options = inspect.signature(fit).parameters
    assert options["method"].default == DEFAULT
    for field in fields(FitRequest):
        if field.name not in ("data", "out", "say"):
            assert options[field.name].default == field.default


def test_phantoms_get_the_builtin_model_and_other_images_are_refused(ogkd, refused, tmp_path):
    out = tmp_path / "m"
    write_folder("endoscopy", tmp_path / "eyes", splits={"train": 2})
    outcome = ogkd("fit", tmp_path / "eyes", "-o", out, "-m", "zero-shot")
    assert outcome.code == 0, outcome.err
    assert "WARNING" not in outcome.err
    assert json.loads((out / "model.json").read_text())["backbone"]["name"] == "builtin"
    data = write_dataset(tmp_path / "noise")
    said = refused("fit", data, "-o", tmp_path / "n", "-m", "zero-shot")
    assert "knows only phantoms" in said
    assert "ogkd backbones fetch biomedclip` (0.8 GB)" in said
    assert "--backbone" in said


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_a_backbone_is_fetched_only_after_a_yes(
    ogkd, data, clip, tmp_path, monkeypatch, answer
):
    fetched = []

    def fetch(record):
        fetched.append(record.name)
        monkeypatch.setattr(choose, "choose_backbone", lambda images, say: str(clip))

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: answer == "y")
    outcome = ogkd("fit", data, "-o", tmp_path / "m", "-m", "zero-shot")
    assert outcome.code == (0 if answer == "y" else 2), outcome.err
    assert fetched == (["biomedclip"] if answer == "y" else [])


@pytest.mark.parametrize("splits", [{"": 0}, {"test": 2}])
def test_data_that_cannot_be_learned_from_is_refused(refused, clip, tmp_path, splits):
    data = write_dataset(tmp_path / "data", ["cyst", "tumor"], splits)
    assert refused("fit", data, "-b", clip, "-o", tmp_path / "m", *FAST)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "ogdk"], "Did you mean 'ogkd'?"),
        (["--preset", "paper/few-shot/nothing"], "Unknown preset of ogkd"),
        (["--set", "train.epoch=5"], "Did you mean 'train.epochs'?"),
        (["--set", "train.epochs=many"], "'train.epochs' of ogkd cannot be 'many'"),
        (["--set", "train.epochs"], "--set"),
        (["--set", "=5"], "--set"),
        (["--shots", "0"], "shots must be at least 1"),
        (["--seed", "-1"], "--seed"),
        (["--backbone", "nothing"], "no backbone called 'nothing'"),
        (["--prompts", "gone.json"], "gone.json"),
    ],
)
def test_options_that_cannot_work_are_refused(refused, clip, data, tmp_path, words, message):
    given = {"--backbone": clip, "--method": "ogkd"}
    base = [
        word for option, value in given.items() if option not in words for word in (option, value)
    ]
    assert message in refused("fit", data, "-o", tmp_path / "m", *base, *words)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"benign tumor": [', "not valid JSON"),
        ('{"cyst": ["x"]}', "no prompts for"),
    ],
)
def test_prompts_that_cannot_be_used_are_refused(refused, clip, data, tmp_path, content, message):
    path = tmp_path / "bank.json"
    path.write_text(content)
    words = ["fit", data, "-b", clip, "--prompts", path, "-o", tmp_path / "m", *FAST]
    assert message in refused(*words)


def test_values_are_json_where_they_can_be():
    pairs = ["a=1", "b.c=0.5", "d=online", "e=[0.1, 0.2]", "f=true", "g=a=b", " h = x", "i="]
    assert read_settings(pairs) == {
        "a": 1,
        "b.c": 0.5,
        "d": "online",
        "e": [0.1, 0.2],
        "f": True,
        "g": "a=b",
        "h": " x",
        "i": "",
    }
    with pytest.raises(ConfigError, match="'abc'"):
        read_settings(["abc"])


def test_a_method_shows_its_settings_and_presets(ogkd, refused):
    """The list of methods and their JSON are golden outputs."""
    outcome = ogkd("methods", "ogkd")
    assert outcome.code == 0, outcome.err
    assert "train.epochs = 100" in outcome.out
    assert "paper/few-shot/btmri" in outcome.out
    assert "Did you mean 'ogkd'?" in refused("methods", "ogdk")
