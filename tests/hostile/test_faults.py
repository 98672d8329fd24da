"""Whatever fails at whatever moment: old or new, never neither; and the next run ends the same."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from tiny_data import write_dataset

from . import harness
from .faults import FAILURES, KILL, break_at

EVERY = os.environ.get("OGKD_HOSTILE") == "all"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(4 * 3600 if EVERY else 900),
    pytest.mark.skipif(sys.platform != "linux", reason="forks"),
]
COMMANDS = {
    "fit": "fit {data} --method fused --backbone builtin --out m",
    "train": "fit {data} --method coop --backbone builtin --shots 2 --set train.epochs=2 "
    "--set train.checkpoint_every=1 --out m",
    "fit again": "fit {data} --method fused --backbone builtin --seed 5 --restart --out model",
    "calibrate": "calibrate model {data} --split test",
    "evaluate": "evaluate model {data} --resamples 0 --out e.json --csv e.csv",
    "predict": "predict model {data}/test --out p.csv",
    "embed": "embed {data}/test --backbone builtin --out e.safetensors",
    "split": "data split {data}/train --out s.csv",
    "phantoms": "phantoms us-breast --train 1 --test 1 --out drawn",
    "start": "start {data} --yes --backbone builtin --out s",
    "report": "report model {data} --resamples 0 --no-check --out r.html",
    "check": "data check {data} --json c.json",
    "export": "export model --onnx m.onnx",
    "bench": "bench run g.toml --workers 0 --out runs",
    "bench collect": "bench collect {runs}",
    "label": "label next {data}/train --backbone builtin --labels l.csv",
}
SOMETIMES = {"training.jsonl"}  # has the seconds that an epoch took


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("faults")
    os.environ["OGKD_CACHE"] = str(root / "cache")
    harness.warm_up()
    data = write_dataset(root / "data", splits={"train": 3, "test": 6})
    line = f"fit {data} --method fused --backbone builtin --shots 2 --out model"
    done = harness.run(line.split(), root)
    assert done.code == 0, done.errors
    return root


def start(world, folder):
    """A folder as it is before the command."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copytree(world / "model", folder / "model")
    return folder


def state(folder):
    """The files that a user sees."""
    found = harness.contents(folder)
    return {
        name: digest
        for name, digest in found.items()
        if not any(part.startswith(".") for part in name.split("/"))
        and name.split("/")[-1] not in SOMETIMES
    }


def litter(folder):
    return [
        p.name for p in folder.rglob(".*") if p.name not in (".out", ".err") and p.suffix != ".lock"
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_any_failure_leaves_old_or_new_and_can_be_repeated(name, world, tmp_path, monkeypatch):
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "cache"))
    words = COMMANDS[name].format(data=world / "data").split()
    seen = tmp_path / "seen"
    old = state(start(world, tmp_path / "w"))
    calm = harness.run(words, tmp_path / "w", inside=break_at(-1, KILL, tmp_path / "w", seen))
    assert calm.code == 0, calm.errors
    new, points = state(tmp_path / "w"), int(seen.read_text())
    assert points >= 2
    step = 1 if EVERY else max(1, points // 5)
    for number in range(1, points + 1, step):
        for how in (FAILURES[number % len(FAILURES)], KILL):
            folder = start(world, tmp_path / "w")
            where = f"{name}, operation {number} of {points}, {'kill' if how == KILL else how}"
            broken = harness.run(words, folder, inside=break_at(number, how, folder, seen))
            if how == KILL:
                assert broken.code in (-9, 0), where
            else:
                assert broken.problem is None, f"{where}\n{broken}"
            for file, digest in state(folder).items():
                assert digest in (old.get(file), new.get(file)), f"{where}: {file} is neither"
            assert old.keys() - state(folder).keys() <= {
                file for file in old if name == "fit again"
            }, where
            if broken.code == 0:  # what failed did not matter
                assert state(folder) == new, where
                continue
            again = harness.run(words, folder)
            assert again.code == 0, f"{where}, then again\n{again.errors}"
            assert state(folder) == new, where
            assert not litter(folder), where
