"""The command line in this process: words in, exit code and output out."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import ogkd as library
from ogkd.cli import main
from tiny_data import FAST


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def ogkd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`ogkd("fit", ...)` as a user's shell would run it."""

    def run(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ogkd", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), said.out, said.err)

    return run


@pytest.fixture
def refused(ogkd: Command, tmp_path: Path) -> Callable[..., str]:
    """The message of a command that must end in one message, code 2 and no trace on disk."""

    def run(*words: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        outcome = ogkd(*words)
        assert outcome.code == 2, outcome
        assert outcome.out == ""
        assert "Traceback" not in outcome.err
        assert outcome.err.count("Error") == 1, outcome.err
        assert sorted(tmp_path.rglob("*")) == before
        # A usage error is drawn in a box: join its lines.
        return " ".join(outcome.err.replace("│", " ").split())

    return run


@pytest.fixture(scope="session")
def fitted(clip: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that no test changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        out = tmp_path_factory.mktemp("models") / "fitted"
        library.fit(data, backbone=clip, method="ogkd", settings=FAST, out=out)
    return out


@pytest.fixture
def model(fitted: Path, tmp_path: Path) -> Path:
    """A copy of a model folder, to be changed."""
    return shutil.copytree(fitted, tmp_path / "model")
