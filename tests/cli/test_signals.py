"""The moments around a command: Ctrl-C at any time, closed streams, warnings, no memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings

import pytest

from ogkd import cli
from ogkd.errors import OgkdWarning

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and shells of Unix")
ENV = {**os.environ, "PYTHONUNBUFFERED": ""}
# Says when the command line has begun to listen: before, an interruption is Python's own matter. A
# command that ends well waits to be interrupted too: it may be faster than the test, or have lost
# the interruption.
STARTED = """
import signal, time, ogkd.__main__
listen = signal.signal
def say(number, handler):
    signal.signal = listen
    found = listen(number, handler)
    print('started', flush=True)
    return found
signal.signal = say
try:
    ogkd.__main__.main()
except SystemExit as end:
    if end.code:
        raise
    time.sleep(600)
"""


def _hear():
    """Let Ctrl-C reach a child, also if these tests run in the background, where it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("delay", [0, 0.02, 0.1, 0.3, 1.0])
def test_an_interruption_at_any_moment_is_quiet(delay):
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, "backbones", "info", "builtin", "--verify"],
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear,
    )
    try:
        assert process.stdout.readline() == "started\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode in (130, -signal.SIGINT)  # a shell shows both as 130
    assert said == ""


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
