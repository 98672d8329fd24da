"""Whatever fails at whatever moment: old or new, never neither; and the next run ends the same."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import sys

import pytest

from ogkd.export import write

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
    "evaluate": "evaluate model {data} --resamples 0 --out e.json",
    "predict": "predict model {data}/test --out p.csv",
    "embed": "embed {data}/test --backbone builtin --out e.safetensors",
    "split": "data split {data}/train --out s.csv",
    "phantoms": "phantoms us-breast --train 1 --test 1 --out drawn",
    "start": "start {data} --yes --backbone builtin --out s",
    "report": "evaluate model {data} --resamples 0 --report r.html",
    "check": "data check {data} --json c.json",
    "export": "export model --onnx m.onnx",
    "bench": "bench run g.toml --workers 0 --out runs",
    "bench again": "bench run g.toml --workers 0 --out runs-of-one",
}
COLD = {"fit", "embed"}  # without cached features


def prepared(root, folder, *, cold=False):
    """A folder as it is before the command."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("model", "runs-of-one", *([] if cold else ["cache"])):
        shutil.copytree(root / name, folder / (f".{name}" if name == "cache" else name))
    shutil.copy(root / "g.toml", folder)
    return folder


def state(folder):
    """The files that a user sees; of those that have times in them, the rest of what they say."""
    digests = harness.contents(folder)
    for name in digests:
        if name.endswith(".html"):
            digests[name] = re.sub(r"\d\d:\d\d", "", (folder / name).read_text())
        elif name.endswith("result.json"):
            result = json.loads((folder / name).read_text())
            digests[name] = json.dumps([result["metrics"], sorted(result)])
    return {
        name: digest
        for name, digest in digests.items()
        if not any(part.startswith(".") for part in name.split("/"))
        and not {"failed", "damaged"} & {*name.split("/")}  # what a benchmark says of bad runs
        and not name.endswith("training.jsonl")  # has the seconds that an epoch took
    }


def litter(folder):
    kept = (".out", ".err", ".cache", ".claims")
    return [p.name for p in folder.rglob(".*") if p.name not in kept and p.suffix != ".lock"]


# All commands in the long run, some that write in other ways otherwise.
@pytest.mark.parametrize(
    "name", COMMANDS if EVERY else ("train", "predict", "split", "bench again")
)
def test_any_failure_leaves_old_or_new_and_can_be_repeated(name, world, tmp_path, monkeypatch):
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "w" / ".cache"))
    if name == "export":  # the graph takes seconds, and no files
        monkeypatch.setattr(write, "build", lambda *_, **__: copy.deepcopy(world["graph"]))
    root = world["root"]
    words = COMMANDS[name].format(data=root / "data").split()
    seen, cold = tmp_path / "seen", name in COLD
    old = state(prepared(root, tmp_path / "w", cold=cold))
    calm = harness.run(words, tmp_path / "w", inside=break_at(-1, KILL, tmp_path / "w", seen))
    assert calm.code == 0, calm.errors
    new, points = state(tmp_path / "w"), seen.read_text()
    assert points.count("w") >= 2
    step = 1 if EVERY else max(1, len(points) // 5)
    for number in range(1, len(points) + 1, step):
        # A kill before a read leaves what a kill after the last change left.
        kills = [KILL] if "w" in points[max(0, number - step) : number] else []
        for how in (FAILURES[number % len(FAILURES)], *kills):
            folder = prepared(root, tmp_path / "w", cold=cold)
            where = f"{name}, operation {number} of {len(points)}, {'kill' if how == KILL else how}"
            broken = harness.run(words, folder, inside=break_at(number, how, folder, seen))
            if how == KILL:
                assert broken.code in (-9, 0), where
            else:
                assert broken.problem is None, f"{where}\n{broken}"
            now = state(folder)
            for file, digest in now.items():
                assert digest in (old.get(file), new.get(file)), f"{where}: {file} is neither"
            assert old.keys() - now.keys() <= {file for file in old if name == "fit again"}, where
            if broken.code == 0:  # what failed did not matter
                assert state(folder) == new, where
                continue
            complete = state(folder) == new  # `phantoms` refuses to draw where it has drawn
            again = harness.run(words, folder)
            assert again.problem is None, f"{where}, then again\n{again}"
            assert again.code == 0 or complete, f"{where}, then again\n{again.errors}"
            assert state(folder) == new, where
            assert not litter(folder), where
