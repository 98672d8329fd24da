from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer

import ogkd as library
from ogkd.backbones import hub
from ogkd.cli.fit import fit
from ogkd.cli.options import HELP, read_settings
from ogkd.data.phantoms import write_folder
from ogkd.errors import ConfigError
from ogkd.fitting import choose
from ogkd.fitting.request import FitRequest
from tiny_data import CLASSES, write_dataset, write_image

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
        if field.name != "say":
            name = names.get(field.name, f"--{field.name.replace('_', '-')}")
            assert re.search(rf"(?<![\w-]){name}(?![\w-])", said), name
            assert field.name == "out" or HELP[field.name] in said, field.name
            same = field.name in ("data", "out")
            assert same or inspect.signature(fit).parameters[field.name].default == field.default
    assert "In Python" not in said
    assert "--say" not in said
    assert not re.search(r"--no-\w", said)


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "ogdk"], "Did you mean 'ogkd'?"),
        (["--preset", "paper/few-shot/nothing"], "Unknown preset of ogkd"),
        (["--set", "train.epochs=many"], "'train.epochs' of ogkd cannot be 'many'"),
        (["--set", "train.epochs"], "--set"),
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


def test_a_split_file_takes_its_images_from_a_root(ogkd, clip, tmp_path):
    rows = {"train": [], "val": [], "test": []}
    for split, count in (("train", 4), ("val", 1), ("test", 1)):
        for label, name in enumerate(CLASSES[:2]):
            for number in range(count):
                file = f"{split}{label}{number}.png"
                write_image(tmp_path / "images" / file, len(file) + number + 4 * label)
                rows[split].append([file, label, name])
    (tmp_path / "split.json").write_text(json.dumps(rows))
    words = ["--root", tmp_path / "images", "-b", clip, "--shots", 2, "--sampling", "nested"]
    outcome = ogkd("fit", tmp_path / "split.json", *words, "-o", tmp_path / "m", "-m", "gda")
    assert outcome.code == 0, outcome.err
    assert library.load(tmp_path / "m").card.support_counts == (2, 2)
    judged = ogkd("evaluate", tmp_path / "m", tmp_path / "split.json", *words[:2])
    assert judged.code == 0, judged.err


PAIR = "benign tumor, normal_lung"
WIDTH = 16  # of tiny_backbones' text tower


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model.pth.tar-100"
    torch.save({"state_dict": {"prompt_learner.ctx": torch.ones(4, WIDTH)}, "epoch": 100}, path)
    return path


def test_a_checkpoint_becomes_a_model_that_predicts(ogkd, clip, checkpoint, tmp_path):
    out = tmp_path / "m"
    outcome = ogkd("import-checkpoint", checkpoint, "--classes", PAIR, "-b", clip, "-o", out)
    assert outcome.code == 0, outcome.err
    assert f"ogkd predict {out}" in outcome.out
    model = library.load(out)
    assert model.class_names == ("benign tumor", "normal lung")
    assert torch.equal(model.head.extra["context"], torch.ones(4, WIDTH))
    image = write_image(tmp_path / "a.png")
    assert ogkd("predict", out, image).code == 0
    words = ("--dataset", "retina", "-b", clip, "-o", tmp_path / "n")
    assert ogkd("import-checkpoint", checkpoint, *words).code == 0
    names = ("diabetic retinopathy", "glaucoma", "cataract", "normal retina")
    assert library.load(tmp_path / "n").class_names == names


def test_what_cannot_be_imported_is_refused(refused, clip, checkpoint, tmp_path):
    """Damaged files are tests of the import itself."""

    def message(*words, file=checkpoint, out=tmp_path / "m", backbone=clip):
        return refused("import-checkpoint", file, "-b", backbone, "-o", out, *words)

    named = ("--classes", PAIR)
    assert "no file" in message(*named, file=tmp_path / "gone")
    assert "no backbone called" in message(*named, backbone="nothing")
    assert "--out" in message(*named, out=checkpoint)
    for both in ((), ("--dataset", "btmri", *named)):
        assert "either as --dataset btmri or as --classes" in message(*both)
    assert "Did you mean 'retina'" in message("--dataset", "retinas")
