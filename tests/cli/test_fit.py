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
from tiny_data import write_dataset, write_image

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
    assert "not the phantoms that the built-in model knows" in said
    assert "ogkd backbones fetch biomedclip` (0.8 GB)" in said
    assert "--backbone" in said


def test_the_builtin_model_can_be_named_but_warns(ogkd, data, tmp_path):
    words = ["-b", "builtin", "-o", tmp_path / "m", "-m", "gda"]
    outcome = ogkd("fit", data, *words)
    assert outcome.code == 0, outcome.err
    assert "WARNING: The built-in model" in outcome.err


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


def test_a_preset_and_settings_are_laid_over_each_other(ogkd, clip, data, tmp_path):
    words = ["--preset", "paper/few-shot/busi", "--set", "lambda_lgd=0", "--seed", 4]
    assert ogkd("fit", data, "-b", clip, "-o", tmp_path / "m", *FAST, *words).code == 0
    card = library.load(tmp_path / "m").card
    assert (card.preset, card.seed) == ("paper/few-shot/busi", 4)
    assert (card.config["lambda_sccm"], card.config["lambda_lgd"]) == (0.75, 0)


def test_a_table_and_a_prompt_bank_are_read(ogkd, clip, tmp_path):
    for number in range(4):
        write_image(tmp_path / f"{number}.png", number)
    rows = [f"{number}.png,{('benign', 'normal')[number % 2]}" for number in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]))
    bank = {"benign": ["a benign tumor"], "normal": ["the normal lung"]}
    (tmp_path / "bank.json").write_text(json.dumps(bank))
    words = ["--prompts", tmp_path / "bank.json", "-b", clip, "-o", tmp_path / "m"]
    outcome = ogkd("fit", tmp_path / "t.csv", *words, *FAST)
    assert outcome.code == 0, outcome.err
    assert library.load(tmp_path / "m").class_names == ("benign", "normal")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "ogdk"], "Did you mean 'ogkd'?"),
        (["--preset", "paper/few-shot/nothing"], "Unknown preset of ogkd"),
        (["--method", "zero-shot", "--preset", "auto"], "Unknown preset of zero-shot"),
        (["--set", "no_such=1"], "no_such"),
        (["--set", "train.epoch=5"], "Did you mean 'train.epochs'?"),
        (["--set", "epochs=5"], "Did you mean 'train.epochs'?"),
        (["--set", "train.epochs=many"], "'train.epochs' of ogkd cannot be 'many'"),
        (["--set", "train.epochs"], "--set takes key=value"),
        (["--set", "=5"], "--set takes key=value"),
        (["--shots", "0"], "shots must be at least 1"),
        (["--seed", "-1"], "--seed"),
        (["--backbone", "nothing"], "no backbone called 'nothing'"),
        (["--backbone", "./gone"], "no folder gone"),
        (["--device", "warp"], "no device 'warp'"),
        (["--prompts", "gone.json"], "gone.json"),
    ],
)
def test_options_that_cannot_work_are_refused(refused, clip, data, tmp_path, words, message):
    given = {"--backbone": clip, "--method": "ogkd"}
    base = [
        word for option, value in given.items() if option not in words for word in (option, value)
    ]
    assert message in refused("fit", data, "-o", tmp_path / "m", *base, *words)


def nothing(folder):
    folder.mkdir()


def one_class(folder):
    write_dataset(folder, ["cyst"], {"": 2})


def only_test(folder):
    write_dataset(folder, ["cyst", "tumor"], {"test": 2})


def empty_class(folder):
    write_dataset(folder, ["cyst"], {"": 2})
    (folder / "tumor").mkdir()


def class_only_in_test(folder):
    write_dataset(folder, ["cyst", "tumor"], {"train": 1})
    write_image(folder / "test" / "stone" / "0.png")


def same_names(folder):
    write_dataset(folder, ["Cyst", "cyst"], {"": 2})


def no_pictures(folder):
    for name in ("cyst", "tumor"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.txt").write_text("x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "no folder or table"),
        (nothing, "0 class folder(s)"),
        (one_class, "1 class folder(s)"),
        (only_test, "no split 'train'"),
        (empty_class, "No images in the class folder(s) tumor"),
        (class_only_in_test, "learn from for: stone"),
        (same_names, "differ only in case"),
        (no_pictures, "No images in the class folder(s) cyst, tumor"),
    ],
)
def test_data_that_cannot_be_learned_from_is_refused(refused, clip, tmp_path, make, message):
    make(tmp_path / "data")
    assert message in refused("fit", tmp_path / "data", "-b", clip, "-o", tmp_path / "m", *FAST)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"file,class\na.png,b\n", "needs the columns path and label"),
        ("path,label\na.png,gr\xf6\xdfer\n".encode("latin-1"), "UTF-8"),
        (b"path,label\na.png,\nb.png,x\n", "line 2: label is empty"),
        (b"path,label\na.png,x\nb.png,y\n", "2 file(s) of the data are missing"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(refused, clip, tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    assert message in refused("fit", tmp_path / "t.csv", "-b", clip, "-o", tmp_path / "m", *FAST)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"benign tumor": [', "not valid JSON"),
        ('{"cyst": ["x"]}', "no prompts for"),
        ('{"benign tumor": []}', "has no prompts"),
        ('["benign tumor"]', "must be an object"),
    ],
)
def test_prompts_that_cannot_be_used_are_refused(refused, clip, data, tmp_path, content, message):
    path = tmp_path / "bank.json"
    path.write_text(content)
    words = ["fit", data, "-b", clip, "--prompts", path, "-o", tmp_path / "m", *FAST]
    assert message in refused(*words)


def test_unreadable_images_are_listed_all_at_once(refused, clip, tmp_path):
    write_dataset(tmp_path / "data", splits={"": 2})
    for name in ("benign_tumor/0.png", "normal_lung/1.png"):
        (tmp_path / "data" / name).write_bytes(b"no picture")
    message = refused("fit", tmp_path / "data", "-b", clip, "-o", tmp_path / "m", *FAST)
    assert "2 file(s)" in message
    assert "benign_tumor/0.png" in message
    assert "normal_lung/1.png" in message


def test_out_is_never_someones_file_or_folder(refused, clip, tmp_path):
    data = write_dataset(tmp_path / "data")
    (tmp_path / "file").write_text("x")
    for out in (data, tmp_path / "file", tmp_path, tmp_path / "data" / "train"):
        assert "not a model folder" in refused("fit", data, "-b", clip, "-o", out, *FAST)
    assert "Cannot write" in refused("fit", data, "-b", clip, "-o", tmp_path / "file" / "m", *FAST)


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
