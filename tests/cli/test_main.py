from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Annotated

import pytest
import typer

from ogkd import progress
from ogkd.cli import app as ogkd_app
from ogkd.cli.commands import CommandGroup
from ogkd.errors import ConfigError, Interrupted, OgkdWarning

FULL = Path("/dev/full")


# A user's output is buffered, whatever the environment of the tests says.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def python(*words, **options):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=BUFFERED,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_starting_the_command_line_loads_nothing_heavy():
    heavy = ["torch", "transformers", "sklearn", "scipy", "numpy", "PIL", "huggingface_hub"]
    seen = f"print([name for name in {heavy} if name in sys.modules])"
    # pydantic is a third of what `ogkd --help` would take
    unused = seen.replace("'torch'", "'pydantic', 'torch'")
    assert python("-c", f"import sys, ogkd.cli; {unused}").stdout.strip() == "[]"
    run = "import atexit, sys, ogkd.cli; sys.argv[1:] = ['fit', '--help']"
    said = python("-c", f"{run}; atexit.register(lambda: {seen}); ogkd.cli.main()").stdout
    assert said.splitlines()[-1] == "[]"


def raising(monkeypatch, error):
    def app(**options):
        raise error

    monkeypatch.setattr("ogkd.cli.app", app)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "/secret"), "/secret: Permission denied."),
        (MemoryError(), "not enough memory"),
        (OSError(12, "Cannot allocate memory"), "not enough memory"),
    ],
    ids=str,
)
def test_what_the_machine_refuses_ends_in_one_message(refused, monkeypatch, error, message):
    raising(monkeypatch, error)
    assert message in refused("fit")


@pytest.mark.parametrize(
    ("message", "argument", "shown"),
    [
        ("on_error must be 'stop', but is 'x'.", "on_error", " but is 'x' (option --on-error)."),
        ("The file exists. Choose another.", "out", " Choose another (option --onnx)."),
        ("Nothing is there.", "data", "Nothing is there (argument DATA)."),
        ("--on-error is wrong.", "on_error", "--on-error is wrong."),
        ("It is not here.", "plugin", "It is not here (option --plugin)."),
        ("This is about nothing.", None, "This is about nothing."),
    ],
)
def test_an_error_of_the_library_is_shown_with_its_option(
    refused, monkeypatch, message, argument, shown
):
    app = CommandGroup("A test.")

    @app.callback()
    def root(plugin: str = ""):
        """An option of the group, not of the command."""

    @app.command("other")
    def other(on_error: str = "stop"):
        pytest.fail("The wrong command was run.")

    @app.command("one")
    def one(
        data: Path,
        on_error: Annotated[str, typer.Option("-e", "--on-error")] = "stop",
        onnx: str = "",
        classes: str = "",
    ):
        raise ConfigError(message, argument=argument)

    monkeypatch.setattr("ogkd.cli.app", app)
    said = refused("one", "x")
    assert said.startswith("Error: ")
    assert said.endswith(shown)


def test_an_interrupted_training_has_the_shells_exit_code(ogkd, monkeypatch):
    raising(monkeypatch, Interrupted("Stopped. Run the same command again."))
    outcome = ogkd("fit")
    assert (outcome.code, outcome.err) == (130, "Error: Stopped. Run the same command again.\n")


@pytest.mark.parametrize("rows", [1, 3000])
def test_a_reader_that_goes_away_is_no_error(rows):
    """With few rows the pipe breaks at the last flush, with many in the middle."""
    code = (
        "import sys, ogkd.cli\n"
        "def app(**options):\n"
        f"    for _ in range({rows}): print('x' * 100)\n"
        "    sys.exit(0)\n"
        "ogkd.cli.app = app\n"
        "sys.stdin.readline()\n"
        "ogkd.cli.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=BUFFERED,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()


@pytest.mark.skipif(not FULL.exists(), reason=f"needs {FULL}")
def test_output_to_a_full_disk_ends_in_one_message():
    with FULL.open("w") as full:
        outcome = subprocess.run(
            [sys.executable, "-m", "ogkd", "--version"],
            env=BUFFERED,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert outcome.returncode == 2
    assert outcome.stderr == "Error: Output: No space left on device.\n"


def test_an_interruption_is_one_line_and_130():
    code = (
        "import os, signal, ogkd.cli, ogkd.__main__\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "ogkd.cli.app = lambda **_: os.kill(os.getpid(), signal.SIGINT)\n"
        "ogkd.__main__.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"Stopped.\n")


def test_our_own_warnings_are_notes_and_those_of_libraries_are_not_shown(ogkd, monkeypatch):
    def app(**options):
        warnings.simplefilter("always")
        warnings.warn("Palette images with transparency", UserWarning, stacklevel=1)
        warnings.warn("invalid value encountered in divide", RuntimeWarning, stacklevel=1)
        warnings.warn("These are phantoms.", OgkdWarning, stacklevel=1)
        sys.exit(0)

    monkeypatch.setattr("ogkd.cli.app", app)
    monkeypatch.setattr(sys, "warnoptions", [])
    assert ogkd("fit").err == "Note: These are phantoms.\n"


def test_quiet_leaves_results_and_errors(ogkd, data, clip, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_INTERVAL", 0.0)
    words = ("fit", data, "-b", clip, "-m", "gda", "--out")
    assert ogkd(*words, tmp_path / "loud").err
    for line in ((*words, tmp_path / "a", "--quiet"), ("--quiet", *words, tmp_path / "b")):
        outcome = ogkd(*line)
        assert (outcome.code, outcome.err) == (0, "")
        assert "Fitted gda" in outcome.out
    outcome = ogkd("--quiet", *words, data)
    assert outcome.code == 2
    assert outcome.err.startswith("Error: ")


def commands(command, path=()):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def test_every_command_has_help(ogkd):
    assert ogkd("--version").out.startswith("ogkd 0.")
    for command in commands(typer.main.get_command(ogkd_app)):
        outcome = ogkd(*command, "--help")
        assert outcome.code == 0
        assert f"Usage: ogkd {' '.join(command)}".strip() in outcome.out
