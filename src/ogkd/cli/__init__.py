"""The `ogkd` command: parses options, calls the library, prints results.

Commands import torch and other heavy packages when they run, so that `ogkd --help` is fast.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer import Option

from ogkd.cli import backbones, bench, data, demo, deploy, doctor, evaluate, fit, predict, prompts
from ogkd.cli.options import CommandGroup
from ogkd.errors import OgkdError

__all__ = ["app", "main"]

app = CommandGroup(
    name="ogkd",
    help="Few-shot adaptation of frozen biomedical vision-language models.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("fit")(fit.fit)
app.command("predict")(predict.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("report")(evaluate.report)
app.command("calibrate")(evaluate.calibrate)
app.command("app")(deploy.app)
app.command("export")(deploy.export)
app.command("embed")(backbones.embed)
app.command("demo")(demo.demo)
app.command("phantoms")(data.phantoms)
app.command("import-checkpoint")(fit.import_checkpoint)
app.command("methods")(fit.methods)
app.command("doctor")(doctor.doctor)
app.add_typer(prompts.app, name="prompts")
app.add_typer(backbones.app, name="backbones")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"ogkd {version('ogkd')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    plugin: Annotated[
        list[str] | None,
        Option(
            "--plugin",
            metavar="FILE_OR_MODULE",
            help="Load code that adds methods, backbones or datasets. Accepted by every command, "
            "any number of times. It runs with your rights: name only code that you trust.",
        ),
    ] = None,
) -> None:
    """Few-shot adaptation of frozen biomedical vision-language models."""
    for name in plugin or ():
        from ogkd import plugins

        plugins.load(name)


def _plugins_first(words: Sequence[str]) -> list[str]:
    """Move every `--plugin X` to the front: it is an option of `ogkd`, wherever it is written."""
    first: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            others += [word, *rest]
        elif word == "--plugin":
            first += [word, *itertools.islice(rest, 1)]
        else:
            (first if word.startswith("--plugin=") else others).append(word)
    return first + others


def main() -> None:
    """Run the command line; a user's mistake ends in one message and exit code 2."""
    _accept_any_file_name()
    try:
        try:
            app(args=_plugins_first(sys.argv[1:]), prog_name="ogkd")
        finally:
            sys.stdout.flush()  # here, so that a closed pipe is handled below
    except OgkdError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has finished (`ogkd ... | head`): not an error.
        _drop_output()
        sys.exit(0)
    except OSError as error:
        # A last resort: what the file system refuses is not a bug, so show no traceback.
        _print_error(
            f"{error.filename or 'Output'}: {error.strerror or error}. Check it and retry."
        )
        _drop_output()
        sys.exit(2)


def _print_error(message: str) -> None:
    typer.secho("Error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(message, err=True)


def _accept_any_file_name() -> None:
    """Print file names that are not valid text as raw bytes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def _drop_output() -> None:
    """Discard unwritten output, so that Python does not fail on it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
