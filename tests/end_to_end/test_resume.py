"""Kill -9 for real: the same command again ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"


def command(pictures, out, epochs=150):
    return [
        *(sys.executable, "-m", "ogkd", "fit", str(pictures), "--backbone", str(FIXTURE)),
        *("--out", str(out), "--seed", "3", "--method", "ogkd", "--set", "views=2"),
        *("--set", f"train.epochs={epochs}"),
        *("--set", "train.tolerance=0", "--set", "train.enough=0"),  # all of them
        *("--set", "train.checkpoint_every=1"),
    ]


def start(arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        arguments,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets what it starts in the background ignore Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_epoch(work, epoch, process, seconds=600):
    log = work / "training.jsonl"
    for _ in range(seconds * 50):
        if log.is_file() and len(log.read_text().splitlines()) >= epoch:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError("the training did not get that far")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_fit_resumes_to_the_same_bits(pictures, tmp_path, how):
    whole = start(command(pictures, tmp_path / "whole"))
    assert whole.wait(timeout=800) == 0, whole.communicate()
    whole.communicate()
    killed = start(command(pictures, tmp_path / "killed"))
    work = tmp_path / ".killed.training"
    wait_for_epoch(work, 5, killed)
    killed.send_signal(how)
    _, said = killed.communicate(timeout=300)
    assert not (tmp_path / "killed").exists()
    if how == signal.SIGINT:
        assert killed.returncode == 130
        assert "Run the same fit again" in said
        assert "Traceback" not in said
    again = start(command(pictures, tmp_path / "killed"))
    _, said = again.communicate(timeout=800)
    assert again.returncode == 0, said
    expected = load_file(tmp_path / "whole" / "weights.safetensors")
    found = load_file(tmp_path / "killed" / "weights.safetensors")
    assert all((expected[key] == found[key]).all() for key in expected)
    assert not work.exists()
    epochs = [
        json.loads(line)["epoch"]
        for line in (tmp_path / "killed" / "training.jsonl").read_text().splitlines()
    ]
    assert sorted(set(epochs)) == list(range(150))
