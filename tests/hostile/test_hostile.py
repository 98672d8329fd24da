"""No input ends in a traceback, a hang, a number that is none, or a changed file of the user.

A sample runs with all tests; `make hostile` runs every combination.
"""

from __future__ import annotations

import copy
import errno
import json
import os
import random
import resource
import shlex
import shutil
import socket
import sys
from pathlib import Path

import pytest

import ogkd
from ogkd.errors import ConfigError, OgkdError
from ogkd.export import write
from tiny_backbones import make_clip

from . import harness
from .corpus import KINDS, NUMBERS, combinations, places

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, pipes and devices of Linux"),
]
EVERY = os.environ.get("OGKD_HOSTILE") == "all"
SAMPLE = 40
PLACES = places()


def sample(cases):
    """All of them in the long run, the same few otherwise."""
    listed = list(cases)
    return listed if EVERY else random.Random(20).sample(listed, min(SAMPLE, len(listed)))


def words_for(place, kind, world, folder):
    """The command; what it is given is made in `folder`."""
    if place.startswith("model file "):
        shutil.copytree(world["model"], folder / "m")
        file = folder / "m" / place.removeprefix("model file ")
        file.unlink()
        made = KINDS[kind](file)
        if isinstance(made, str) and made.startswith("/dev/"):
            file.symlink_to(made)
        return ["predict", folder / "m", world["image"], "--format", "jsonl"]
    made = KINDS[kind](folder / "bad")
    word = os.fsdecode(made) if isinstance(made, str | bytes) else str(folder / "bad")
    line = shlex.split(PLACES[place])
    if "{copy}" in line:
        shutil.copytree(world["model"], folder / "m")
    return [word if part == "{bad}" else part.format(**world, copy=folder / "m") for part in line]


def isolated(graph):
    """What to call in a child: a server ends at once, no other machine can be reached, and an
    export does not spend seconds on the graph."""

    def install():
        import uvicorn

        def refuse(*_, **__):
            raise OSError(errno.ENETUNREACH, "no network here")

        uvicorn.Server.run = lambda *_, **__: None
        socket.socket.connect = socket.getaddrinfo = refuse
        write.build = lambda *_, **__: copy.deepcopy(graph)

    return install


@pytest.mark.parametrize(("place", "kind"), sample(combinations()), ids=lambda text: text)
def test_a_hostile_input_ends_in_one_message_or_a_right_answer(place, kind, world, tmp_path):
    words = words_for(place, kind, world, tmp_path)
    inputs = {name: harness.contents(world[name]) for name in ("data", "model", "runs")}
    given = harness.contents(tmp_path)
    done = harness.run(words, tmp_path, inside=isolated(world["graph"]))
    assert done.problem is None, str(done)
    assert not (tmp_path / "hacked").exists()
    assert {name: harness.contents(world[name]) for name in inputs} == inputs, str(done)
    now = harness.contents(tmp_path)
    if place.startswith("model file "):
        assert {name: now.get(name) for name in given} == given
        if os.path.lexists(tmp_path / "m" / place.split()[-1]):
            assert done.code == 2, f"{done.words}: a damaged model answered"
    elif "bad" in given and kind != "empty":  # an empty file has nothing to lose
        assert now.get("bad") == given["bad"], f"{done.words} overwrote its input"


def settings_of_methods():
    """Every setting of every method; values that many methods share are divided among them."""
    from ogkd.methods import METHODS

    def flat(values, prefix=""):
        for name, value in values.items():
            nested = isinstance(value, dict) and value
            yield from flat(value, f"{prefix}{name}.") if nested else [f"{prefix}{name}"]

    having: dict[str, list[str]] = {}
    for method in sorted(METHODS):
        for name in flat(METHODS[method].Config().model_dump(mode="json")):
            having.setdefault(name, []).append(method)
    for name, methods in having.items():
        shares = min(len(methods), len(NUMBERS) // 2)  # at least two values of each setting
        for turn, method in enumerate(methods):
            yield from ((method, name, value) for value in NUMBERS[turn % shares :: shares])


@pytest.mark.parametrize(("method", "name", "value"), sample(settings_of_methods()))
def test_no_setting_gives_a_model_that_answers_nonsense(method, name, value, world, tmp_path):
    trains = ogkd.methods.METHODS[method].needs_training and name != "train.epochs"
    fit = ["fit", world["data"], "--backbone", "builtin", "--method", method, "--out", "m"]
    fit += ["--shots", "2", *(["--set", "train.epochs=1"] if trains else [])]
    done = harness.run([*fit, "--set", f"{name}={value}"], tmp_path)
    if done.late and name in ("train.epochs", "views", "epochs", "steps"):
        return  # it does what it was asked for, for as long as it takes
    assert done.problem is None, str(done)
    if done.code == 0:
        answer = harness.run(["predict", "m", world["image"], "--format", "jsonl"], tmp_path)
        assert answer.problem is None, str(answer)
        assert answer.code == 0, f"{done.words} gave a model that cannot be used:\n{answer.errors}"


def test_every_option_that_takes_a_text_is_tried():
    assert len(PLACES) > 80
    assert {"bench figure --out", "studio --out", "predict images", "data check data"} <= {*PLACES}


# What no computation survives is refused in seconds.


def refused(words, folder):
    """The message of a command that must fail well within the time limit."""
    done = harness.run(words, folder)
    assert done.problem is None, str(done)
    assert done.code == 2, f"{done.words}: {done.output[-300:]}"
    return done.errors


@pytest.mark.parametrize("number", ["9" * 20, *(["9" * 11, "1" * 5000] if EVERY else [])], ids=len)
@pytest.mark.parametrize(
    "line",
    [
        "fit {data} --backbone builtin --method gda --seed {number} --out m",
        "fit {data} --backbone builtin --method coop --set train.epochs={number} --out m",
        "fit {data} --backbone builtin --method coop --set context.n_ctx={number} --out m",
        "fit {data} --backbone builtin --method coop --set views={number} --out m",
        "evaluate {model} {data} --resamples {number}",
        "phantoms endoscopy --train {number} --out new",
        "phantoms endoscopy --train 1 --size {number} --out new",
        "phantoms endoscopy --train 1 --test 0 --val 0 --seed {number} --out new",
        "bench run phantoms/few-shot --out new --dry-run --seeds {number}",
        "bench run phantoms/few-shot --out new --dry-run --seeds 1-{number}",
        "bench run phantoms/few-shot --out new --dry-run --shots 1-{number}",
        "bench run phantoms/few-shot --workers {number} --out runs",
        "app {model} --port {number}",
    ],
)
def test_a_number_that_multiplies_work_has_a_limit(line, number, world, tmp_path):
    refused(line.format(number=number, **world).split(), tmp_path)


SIZES = {
    "num_hidden_layers": 10**9,
    "hidden_size": 10**9,
    "vocab_size": 10**12,
    "image_size": 10**8,
    "intermediate_size": 10**9,
    "max_position_embeddings": 10**9,
    "num_attention_heads": 10**9,
}


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("number", [None, 100_000, 1e300][: None if EVERY else 1])
def test_a_configuration_of_an_impossible_network_is_refused_before_it_is_built(
    key, number, world, tmp_path
):
    make_clip(tmp_path / "b")
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    for tower in ("text_config", "vision_config"):
        if key in config[tower]:
            config[tower][key] = SIZES[key] if number is None else number
    (tmp_path / "b" / "config.json").write_text(json.dumps(config))
    message = refused(["embed", world["data"], "--backbone", "b", "--out", "e"], tmp_path)
    assert key in message or number == 100_000, message


HALF = "a\ud800b"  # in a JSON file; a folder's name that is not UTF-8 gives "a\udcffb"


@pytest.mark.parametrize("name", [HALF, "a\udcffb", "a\x1b[31mb", "a\0b"], ids=ascii)
def test_class_names_that_are_not_text_are_refused(name, world):
    for attempt in (
        lambda: ogkd.zero_shot([name, "other"], backbone="builtin"),
        lambda: ogkd.fit(world["data"], backbone="builtin", class_names=[name, "other"]),
        lambda: ogkd.read_dataset(world["data"], class_names=[name, "other"]),
    ):
        with pytest.raises(OgkdError):
            attempt()


@pytest.mark.filterwarnings("ignore::ogkd.errors.OgkdWarning")
@pytest.mark.parametrize("bank", [{HALF: ["x"], "other": ["y"]}, {"a": ["x"], "other": [HALF]}])
def test_prompts_that_are_not_text_are_refused(bank, world):
    with pytest.raises(ConfigError, match="half a character"):
        ogkd.fit(world["data"], backbone="builtin", method="zero-shot", prompts=bank)


def test_class_folders_that_are_not_utf8_are_refused(world, tmp_path):
    first, second = sorted((world["data"] / "train").iterdir())[:2]
    for source, name in ((first, b"plain"), (second, b"caf\xe9")):
        shutil.copytree(source, tmp_path / "bad" / os.fsdecode(name))
    for line in ("fit bad --method gda --backbone builtin --out m", "data check bad"):
        assert "characters that are not text" in refused(line.split(), tmp_path)


def short_of_memory(megabytes):
    """What to call in a child: it may have so much more memory than it has now."""

    def limit():
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    return limit


@pytest.mark.parametrize("megabytes", [1, 4, 8, 16, 32, 64] if EVERY else [8])
@pytest.mark.parametrize(
    "line",
    [
        "fit {data} --backbone builtin --method fused --out m",
        "fit {data} --backbone builtin --method coop --shots 2 --set train.epochs=1 --out m",
        "predict {model} {data}",
        "evaluate {model} {data} --resamples 200",
    ],
)
def test_memory_that_runs_out_is_one_message(line, megabytes, world, tmp_path):
    words = line.format(**world).split()
    done = harness.run(words, tmp_path, inside=short_of_memory(megabytes))
    assert done.problem is None, str(done)
    assert done.code == 0 or "not enough memory" in done.errors, str(done)
