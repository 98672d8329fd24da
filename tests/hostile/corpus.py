"""What strangers, accidents and attackers hand to a program, and where they put it.

KINDS make a file (or a name) that is wrong in one way. `places` are commands in which {bad} is
replaced by it: every argument that takes a text or a path meets every kind, every option SOME. They
are found, so that a new command is here at once.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Kind = Callable[[Path], object]  # writes the file, or returns another word to use


def _json(value: object) -> Kind:
    return lambda path: path.write_text(json.dumps(value))


def _bytes(content: bytes) -> Kind:
    return lambda path: path.write_bytes(content)


def _folder_of_noise(path: Path) -> None:
    path.mkdir()
    (path / "a.png").write_bytes(b"\x89PNG nonsense")


def _images(*names: str, most: int = 255) -> Kind:
    def make(path: Path) -> None:
        for name in names:
            (path / name).mkdir(parents=True)
            for index in range(3):
                pixels = np.random.default_rng([index, len(name)]).integers(0, most, (20, 20))
                Image.fromarray(pixels.astype(np.uint8)).save(path / name / f"{index}.png")

    return make


def _deep_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train_images.npy", bytes(3_000_000))


def _safetensors(header: bytes, length: int | None = None) -> Kind:
    return _bytes(struct.pack("<Q", length or len(header)) + header)


def _not_utf8_name(path: Path) -> bytes:
    name = os.fsencode(path) + b"\xff\xfe"
    Path(os.fsdecode(name)).mkdir()
    return name


KINDS: dict[str, Kind] = {
    "absent": lambda path: None,
    "empty": _bytes(b""),
    "noise": _bytes(random.Random(7).randbytes(5000)),
    "not text": _bytes(b"path,label\n\xff\xfe\x80,a\n"),
    "pipe": lambda path: os.mkfifo(path),
    "endless device": lambda path: "/dev/zero",
    "loop of links": lambda path: path.symlink_to(path),
    "dangling link": lambda path: path.symlink_to(path.with_name("nowhere")),
    "no home": lambda path: "~nosuchuser/x",
    "address": lambda path: "http://[::1",
    "long name": lambda path: "x" * 5000,
    "zero in name": lambda path: "a\udcffb",  # what a shell gives for a byte that is not UTF-8
    "empty word": lambda path: "",
    "markup": lambda path: "[bold]<script>alert(1)</script>",
    "folder": lambda path: path.mkdir(),
    "folder of noise": _folder_of_noise,
    "folder, not UTF-8": _not_utf8_name,
    "one class": _images("only"),
    "blank images": _images("a", "b", most=1),
    "misspelt split": _images("train/a", "train/b", "tset/a"),
    "json null": _json(None),
    "json list": _json([1, "a", None]),
    "json of nulls": _json({"schema_version": None, "metrics": None, "train": None, "a": None}),
    "json of lists": _json({"schema_version": [], "train": {}, "a": [[]], "model_type": []}),
    "json, not a number": _bytes(b'{"a": NaN, "temperature": Infinity}'),
    "json, deep": _bytes(b"[" * 5000 + b"]" * 5000),
    "json, many digits": _bytes(b'{"a": ' + b"1" * 5000 + b"}"),
    "json, half a character": _bytes(b'{"\\ud800": ["\\udc00 \\ud800"]}'),
    "json, twice": _bytes(b'{"a": ["x"], "a": ["y"]}'),
    "toml, deep": _bytes(b"a = " + b"[" * 5000),
    "toml, nonsense": _bytes(b'[grid]\nmethods = 3\nbackbone = ["x"]\n'),
    "table, other columns": _bytes(b"a,b\n1,2\n"),
    "table, absent files": _bytes(b"path,label\na.png,a\nb.png,b\n"),
    "table, device": _bytes(b"path,label\n/dev/zero,a\n/dev/zero,b\n"),
    "png, large": lambda path: Image.new("1", (9000, 9000)).save(path, format="PNG"),
    "npz, bomb": _deep_zip,
    "safetensors, huge header": _safetensors(b"{}", 1 << 62),
    "safetensors, wrong shape": _safetensors(
        b'{"T":{"dtype":"F32","shape":[9,9],"data_offsets":[0,4]}}'
    ),
    "pickle": _bytes(b"\x80\x04cos\nsystem\n(S'echo broken > hacked'\ntR."),
}

# What arguments and options are added to: a command that is not here gets what it requires.
LINES = {
    "start": "start {data} --yes --backbone builtin --method zero-shot --out new",
    "fit": "fit {data} --method zero-shot --backbone builtin --out new",
    "predict": "predict {model} {image} --format jsonl",
    "evaluate": "evaluate {model} {data} --resamples 0",
    "calibrate": "calibrate {copy} {data} --split test",
    "embed": "embed {image} --backbone builtin --out e.safetensors",
    "phantoms": "phantoms endoscopy --train 1 --test 0 --out new",
    "prompts new": "prompts new --classes a,b --out b.json",
    "prompts check": "prompts check b.json",
    "bench run": "bench run {grid} --workers 0 --out new",
    "app": "app {model} --port 0",
    "studio": "studio {data} --backbone builtin --out new --port 0",
}
MORE = {
    "fit data, skip": "fit {bad} --method gda --backbone builtin --on-error skip --out new",
    "plugin": "methods --plugin {bad}",
    "backbones verify": "backbones info {bad} --verify",
    "evaluate data, skip": "evaluate {model} {bad} --resamples 0 --on-error skip",
}
FILLED = {"model": "{model}", "models": "{model}", "runs": "{runs}", "grid": "{grid}"}
FILLED |= {"image": "{image}", "images": "{image}", "name": "endoscopy", "onnx": "new.onnx"}
SOME = (  # what options meet
    *("absent", "empty", "noise", "pipe", "endless device", "loop of links", "no home", "address"),
    *("long name", "zero in name", "markup", "folder", "json, deep", "toml, deep"),
    *("json, half a character", "table, device", "safetensors, huge header"),
)
NOT_TRIED = {"demo"}  # takes minutes and has no input


def commands(tree: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command below a group, with its full name."""
    for word, command in getattr(tree, "commands", {}).items():
        yield from commands(command, (*name, word))
    if not hasattr(tree, "commands"):
        yield " ".join(name), tree


def places() -> dict[str, str]:
    """A line for every argument and option that takes a text or a path, by "command --option"."""
    import typer.main

    from ogkd.cli import app

    lines = dict(MORE)
    for name, command in commands(typer.main.get_command(app)):
        at = len(name.split())  # of the next argument
        for parameter in command.params if name not in NOT_TRIED else ():
            words = LINES[name].split() if name in LINES else [*name.split(), *_required(command)]
            flag = parameter.opts[0] if parameter.param_type_name == "option" else ""
            if not flag:
                words[at : at + 1] = [
                    "{bad}",
                    *(word for word in words[at : at + 1] if word[0] == "-"),
                ]
                at += 1
            elif flag in words:
                words[words.index(flag) + 1] = "{bad}"
            else:
                words += [flag, "{bad}"]
            if _takes_text(parameter):
                lines[f"{name} {flag or parameter.name}"] = shlex.join(words)
    return lines


def _takes_text(parameter: Any) -> bool:
    typed = getattr(parameter, "type_descriptor", None)  # not before typer 0.28
    kind = str(parameter.type if typed is None else typed.annotation).lower()
    return ("path" in kind or "str" in kind) and "literal" not in kind


def _required(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.required and parameter.param_type_name == "option":
            yield from (parameter.opts[0], FILLED.get(parameter.name, "new"))
        elif parameter.required:
            yield FILLED.get(parameter.name, "{data}")


# Files of a finished model, each replaced by each kind.
MODEL_FILES = ("model.json", "weights.safetensors", "support.safetensors", "calibration.json")

GRID = """data = "phantoms"
datasets = ["endoscopy"]
methods = ["zero-shot", "gda"]
backbone = "builtin"
seeds = [1]
shots = [1]
phantoms = { train = 1, test = 1 }
"""
NUMBERS = ("nan", "inf", "-inf", "1e308", "-1e308", "1e-308", "-1", "0", "99999999999", "x", "[]")


def combinations() -> Iterator[tuple[str, str]]:
    """Every argument and every file of a model with every kind, every option with some."""
    for place in (*places(), *(f"model file {name}" for name in MODEL_FILES)):
        yield from ((place, kind) for kind in (SOME if " --" in place else KINDS))
