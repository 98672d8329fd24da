"""No input ends in a traceback, a hang, a number that is none, or a changed file of the user.

A sample runs with all tests; `make hostile` runs every combination.
"""

from __future__ import annotations

import copy
import errno
import os
import random
import shlex
import shutil
import socket
import sys

import pytest

from ogkd.export import write

from . import harness
from .corpus import KINDS, NUMBERS, PLACES, combinations, options

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks, pipes and devices of Linux"),
]
EVERY = os.environ.get("OGKD_HOSTILE") == "all"
SAMPLE = 40
OPTIONS = options()


def sample(cases):
    """All of them in the long run, the same few otherwise."""
    listed = list(cases)
    return listed if EVERY else random.Random(20).sample(listed, min(SAMPLE, len(listed)))


def words_for(place, kind, world, folder):
    """The command; what it is given is made in `folder`."""
    bad = folder / "bad"
    if place.startswith("model file "):
        shutil.copytree(world["model"], folder / "m")
        file = folder / "m" / place.removeprefix("model file ")
        file.unlink()
        made = KINDS[kind](file)
        if isinstance(made, str) and made.startswith("/dev/"):
            file.symlink_to(made)
        return ["predict", folder / "m", world["image"], "--format", "jsonl"]
    made = KINDS[kind](bad)
    word = os.fsdecode(made) if isinstance(made, str | bytes) else str(bad)
    line = shlex.split(PLACES.get(place) or OPTIONS[place])
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
    # Nothing that was there has changed, but for what a calibration adds to its own model.
    if not place.startswith("calibrate data"):
        assert {name: harness.contents(world[name]) for name in inputs} == inputs, str(done)
    now = harness.contents(tmp_path)
    if place.startswith("model file "):
        assert {name: now.get(name) for name in given} == given
    elif "bad" in given and kind != "empty":  # an empty file has nothing to lose
        assert now.get("bad") == given["bad"], f"{done.words} overwrote its input"
    if place.startswith("model file ") and os.path.lexists(tmp_path / "m" / place.split()[-1]):
        assert done.code == 2, f"{done.words}: a damaged model answered"


def settings_of_methods():
    from ogkd.methods import METHODS

    def flat(values, prefix=""):
        for name, value in values.items():
            if isinstance(value, dict) and value:
                yield from flat(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"

    for method in sorted(METHODS):
        for name in flat(METHODS[method].Config().model_dump(mode="json")):
            for value in NUMBERS:
                yield method, name, value


@pytest.mark.parametrize(("method", "name", "value"), sample(settings_of_methods()))
def test_no_setting_gives_a_model_that_answers_nonsense(method, name, value, world, tmp_path):
    fast = ["--set", "train.epochs=1"] if _trains(method) and name != "train.epochs" else []
    fit = ["fit", world["data"], "--backbone", "builtin", "--method", method, "--out", "m"]
    done = harness.run([*fit, "--shots", "2", *fast, "--set", f"{name}={value}"], tmp_path)
    if done.code is None and name in ("train.epochs", "views", "epochs", "steps"):
        return  # it does what it was asked for, for as long as it takes
    assert done.problem is None, str(done)
    if done.code == 0:
        answer = harness.run(["predict", "m", world["image"], "--format", "jsonl"], tmp_path)
        assert answer.problem is None, str(answer)
        assert answer.code == 0, f"{done.words} gave a model that cannot be used:\n{answer.errors}"


def _trains(method):
    from ogkd.methods import METHODS

    return METHODS[method].needs_training


def test_every_option_that_takes_a_text_is_tried():
    assert len(OPTIONS) > 60
    assert {"bench figure --out", "studio --out"} <= OPTIONS.keys()
