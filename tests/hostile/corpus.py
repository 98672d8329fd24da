"""What strangers, accidents and attackers hand to a program, and where they put it.

KINDS make a file (or a name) that is wrong in one way. PLACES are commands in which {bad} is
replaced by it. Every kind meets every place. Beside these, every option of every command that takes
a text or a path meets SOME kinds: `options` finds them, so that a new command is here at once.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import socket
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


def _socket(path: Path) -> None:
    made = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        made.bind(path.name)
    finally:
        os.chdir(here)
        made.close()


def _folder_of(name: str, content: bytes) -> Kind:
    def make(path: Path) -> None:
        path.mkdir()
        (path / name).write_bytes(content)

    return make


def _images(names: list[str], count: int, *, blank: bool = False) -> Kind:
    def make(path: Path) -> None:
        for name in names:
            (path / name).mkdir(parents=True)
            for index in range(count):
                rng = np.random.default_rng([index, len(name)])
                pixels = np.zeros((20, 20)) if blank else rng.integers(0, 255, (20, 20))
                Image.fromarray(pixels.astype(np.uint8)).save(path / name / f"{index}.png")

    return make


def _deep_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train_images.npy", bytes(3_000_000))


def _safetensors(header: bytes, length: int | None = None) -> Kind:
    size = struct.pack("<Q", len(header) if length is None else length)
    return _bytes(size + header)


def _noise(path: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(5000))


def _large_image(path: Path) -> None:
    Image.new("1", (9000, 9000)).save(path, format="PNG")


def _not_utf8_name(path: Path) -> bytes:
    name = os.fsencode(path) + b"\xff\xfe"
    Path(os.fsdecode(name)).mkdir()
    return name


KINDS: dict[str, Kind] = {
    "absent": lambda path: None,
    "empty": _bytes(b""),
    "one byte": _bytes(b"\x00"),
    "noise": _noise,
    "not text": _bytes(b"path,label\n\xff\xfe\x80,a\n"),
    "lines": _bytes(b"\n" * 10_000),
    "long line": _bytes(b"a," * 100_000),
    "zeros": _bytes(bytes(100_000)),
    "pipe": lambda path: os.mkfifo(path),
    "socket": _socket,
    "endless device": lambda path: "/dev/zero",
    "empty device": lambda path: "/dev/null",
    "loop of links": lambda path: path.symlink_to(path),
    "dangling link": lambda path: path.symlink_to(path.with_name("nowhere")),
    "no home": lambda path: "~nosuchuser/x",
    "address": lambda path: "http://[::1",
    "long name": lambda path: "x" * 5000,
    "zero in name": lambda path: "a\udcffb",  # what a shell gives for a byte that is not UTF-8
    "empty word": lambda path: "",
    "dash": lambda path: "-",
    "option": lambda path: "--nonsense",
    "newline": lambda path: "a\nb",
    "formula": lambda path: "=cmd()",
    "markup": lambda path: "[bold]<script>alert(1)</script>",
    "folder": lambda path: path.mkdir(),
    "folder of text": _folder_of("a.txt", b"hello"),
    "folder of noise": _folder_of("a.png", b"\x89PNG nonsense"),
    "folder, not UTF-8": _not_utf8_name,
    "one class": _images(["only"], 3),
    "blank images": _images(["a", "b"], 3, blank=True),
    "misspelt split": _images(["train/a", "train/b", "tset/a"], 2),
    "json null": _json(None),
    "json list": _json([1, "a", None]),
    "json number": _json(1e308),
    "json empty": _json({}),
    "json of nulls": _json({"schema_version": None, "metrics": None, "train": None, "a": None}),
    "json of lists": _json({"schema_version": [], "train": {}, "a": [[]], "model_type": []}),
    "json, newer": _json({"schema_version": 99}),
    "json, not a number": _bytes(b'{"a": NaN, "temperature": Infinity}'),
    "json, deep": _bytes(b"[" * 5000 + b"]" * 5000),
    "json, many digits": _bytes(b'{"a": ' + b"1" * 5000 + b"}"),
    "json, half a character": _bytes(b'{"\\ud800": ["\\udc00 \\ud800"]}'),
    "json, twice": _bytes(b'{"a": ["x"], "a": ["y"]}'),
    "json, cut": _bytes(b'{"a": ["x"'),
    "toml, deep": _bytes(b"a = " + b"[" * 5000),
    "toml, nonsense": _bytes(b'[grid]\nmethods = 3\nbackbone = ["x"]\n'),
    "table, no rows": _bytes(b"path,label\n"),
    "table, other columns": _bytes(b"a,b\n1,2\n"),
    "table, labels nan": _bytes(b"path,label\na.png,nan\nb.png,b\nc.png,c\n"),
    "table, absent files": _bytes(b"path,label\na.png,a\nb.png,b\n"),
    "table, device": _bytes(b"path,label\n/dev/zero,a\n/dev/zero,b\n"),
    "png, cut": _bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00"),
    "png, large": _large_image,
    "npz, bomb": _deep_zip,
    "safetensors, empty": _safetensors(b"{}"),
    "safetensors, huge header": _safetensors(b"{}", 1 << 62),
    "safetensors, wrong shape": _safetensors(
        b'{"T":{"dtype":"F32","shape":[9,9],"data_offsets":[0,4]}}'
    ),
    "pickle": _bytes(b"\x80\x04cos\nsystem\n(S'echo broken > hacked'\ntR."),
    "python": _bytes(b"import os; open('hacked', 'w').write('x')\n"),
}

PLACES: dict[str, str] = {
    "fit data": "fit {bad} --method zero-shot --out new",
    "fit data, skip": "fit {bad} --method gda --backbone builtin --on-error skip --out new",
    "fit backbone": "fit {data} --method zero-shot --backbone {bad} --out new",
    "fit prompts": "fit {data} --method zero-shot --backbone builtin --prompts {bad} --out new",
    "fit preset": "fit {data} --backbone builtin --preset {bad} --out new",
    "fit out": "fit {data} --method zero-shot --backbone builtin --out {bad}",
    "fit root": "fit {table} --method zero-shot --backbone builtin --root {bad} --out new",
    "predict model": "predict {bad} {image}",
    "predict image": "predict {model} {bad}",
    "predict images": "predict {model} {image} {bad} --format jsonl",
    "predict out": "predict {model} {image} --out {bad}",
    "predict explain": "predict {model} {image} --explain {bad}",
    "predict backbone": "predict {model} {image} --backbone {bad}",
    "evaluate model": "evaluate {bad} {data} --resamples 0",
    "evaluate data": "evaluate {model} {bad} --resamples 0",
    "evaluate data, skip": "evaluate {model} {bad} --resamples 0 --on-error skip",
    "evaluate out": "evaluate {model} {data} --resamples 0 --out {bad}",
    "evaluate csv": "evaluate {model} {data} --resamples 0 --csv {bad}",
    "report out": "report {model} {data} --resamples 0 --no-check --no-images --out {bad}",
    "calibrate model": "calibrate {bad} {data} --split test",
    "calibrate data": "calibrate {model} {bad} --split test",
    "data check": "data check {bad}",
    "data check json": "data check {data} --json {bad}",
    "prompts check": "prompts check {bad}",
    "prompts show": "prompts show {bad}",
    "prompts new": "prompts new --from {bad} --out bank.json",
    "bench run": "bench run {bad} --out runs",
    "bench table": "bench table {bad}",
    "bench compare": "bench compare {bad}",
    "embed images": "embed {bad} --backbone builtin --out e.safetensors",
    "embed texts": "embed --texts {bad} --backbone builtin --out e.safetensors",
    "embed out": "embed {image} --backbone builtin --out {bad}",
    "backbones info": "backbones info {bad}",
    "backbones verify": "backbones info {bad} --verify",
    "checkpoint": "import-checkpoint {bad} --classes a,b --backbone builtin --out new",
    "export model": "export {bad} --onnx new.onnx",
    "phantoms out": "phantoms histology --train 1 --test 0 --out {bad}",
    "plugin": "methods --plugin {bad}",
}

# What options are added to: a command that is not here gets its required arguments from FILLED.
LINES = {
    "start": "start {data} --yes --backbone builtin --method zero-shot --out new",
    "fit": "fit {data} --method zero-shot --backbone builtin --out new",
    "predict": "predict {model} {image}",
    "evaluate": "evaluate {model} {data} --resamples 0",
    "report": "evaluate {model} {data} --resamples 0 --no-images --report r.html",
    "calibrate": "calibrate {copy} {data} --split test",
    "embed": "embed {image} --backbone builtin --out e.safetensors",
    "phantoms": "phantoms histology --train 1 --test 0 --out new",
    "prompts new": "prompts new --classes a,b --out b.json",
    "bench run": "bench run {grid} --workers 0 --out new",
    "app": "app {model} --port 0",
    "studio": "studio {data} --backbone builtin --out new --port 0",
}
FILLED = {"model": "{model}", "models": "{model}", "runs": "{runs}", "grid": "{grid}"}
FILLED |= {"image": "{image}", "images": "{image}", "name": "histology", "onnx": "new.onnx"}
SOME = ("absent", "empty", "noise", "pipe", "endless device", "loop of links", "no home", "address")
SOME = (*SOME, "long name", "zero in name", "newline", "markup", "folder", "json, deep")
SOME = (*SOME, "json, half a character", "toml, deep", "table, device", "safetensors, huge header")
NOT_TRIED = {"demo"}  # takes minutes and has no input


def commands(tree: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command below a group, with its full name."""
    for word, found in getattr(tree, "commands", {}).items():
        yield from commands(found, (*name, word))
    if not hasattr(tree, "commands"):
        yield " ".join(name), tree


def options() -> dict[str, str]:
    """A line for every argument and option that takes a text or a path, by "command --option"."""
    import typer.main

    from ogkd.cli import app

    lines = {}
    for name, command in commands(typer.main.get_command(app)):
        texts = [one for one in command.params if _takes_text(one)]
        needed = {
            one.name: FILLED.get(one.name, "{data}" if one.param_type_name == "argument" else "new")
            for one in command.params
            if one.required
        }
        for one in texts if name not in NOT_TRIED else ():
            flag = one.opts[0] if one.param_type_name == "option" else ""
            if name in LINES:
                words = LINES[name].split()
                if flag in words:
                    words[words.index(flag) + 1] = "{bad}"
                elif flag:
                    words += [flag, "{bad}"]
                else:
                    continue  # a place of its own
            else:
                words = name.split()
                for other in command.params:
                    word = "{bad}" if other is one else needed.get(other.name)
                    long = other.opts[0] if other.param_type_name == "option" else None
                    words += [w for w in (long, word) if w] if word else []
            lines[f"{name} {flag or one.name}"] = shlex.join(words)
    return lines


def _takes_text(parameter: Any) -> bool:
    kind = str(parameter.type_descriptor.annotation)
    return ("Path" in kind or "str" in kind) and "Literal" not in kind


# Files of a finished model, each replaced by each kind.
MODEL_FILES = ("model.json", "weights.safetensors", "support.safetensors", "calibration.json")

GRID = """data = "phantoms"
datasets = ["histology"]
methods = ["zero-shot", "gda"]
backbone = "builtin"
seeds = [1]
shots = [1]
phantoms = { train = 1, test = 1 }
"""
NUMBERS = ("nan", "inf", "-inf", "1e308", "-1e308", "1e-308", "-1", "0", "99999999999", "x", "[]")


def combinations() -> Iterator[tuple[str, str]]:
    """Every place with every kind, every option with some, every file of a model with every."""
    yield from ((place, kind) for place in PLACES for kind in KINDS)
    yield from ((place, kind) for place in options() for kind in SOME)
    yield from ((f"model file {name}", kind) for name in MODEL_FILES for kind in KINDS)
