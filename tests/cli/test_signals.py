"""The moments around a command: Ctrl-C, a reader that leaves, warnings, no memory."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from ogkd import cli
from ogkd.errors import OgkdWarning

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and shells of Unix")


def shell(line, **options):
    line = line.replace("ogkd", f"{sys.executable} -m ogkd")
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, **options
    )


def test_an_interruption_is_one_line_and_130():
    code = (
        "import os, signal, ogkd.cli, ogkd.__main__\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "ogkd.cli.app = lambda **_: os.kill(os.getpid(), signal.SIGINT)\n"
        "ogkd.__main__.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"Stopped.\n")


def test_a_reader_that_wants_one_line_gets_it():
    done = shell("set -o pipefail; ogkd bench run phantoms/few-shot --out runs --dry-run | head -1")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_our_own_warnings_are_notes_and_those_of_libraries_are_not_shown(ogkd, monkeypatch):
    def app(**options):
        warnings.simplefilter("always")
        warnings.warn("Palette images with transparency", UserWarning, stacklevel=1)
        warnings.warn("invalid value encountered in divide", RuntimeWarning, stacklevel=1)
        warnings.warn("These are phantoms.", OgkdWarning, stacklevel=1)
        sys.exit(0)

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "warnoptions", [])
    assert ogkd("fit").err == "Note: These are phantoms.\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=str,
)
def test_memory_that_runs_out_is_one_message(refused, monkeypatch, error):
    def app(**options):
        raise error

    monkeypatch.setattr(cli, "app", app)
    assert "not enough memory" in refused("fit")
