"""The `ogkd` command. Each command is a thin skin over the library, one module each.

Commands import torch and the rest when they run, so that `ogkd --help` answers at once.
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

from ogkd import plugins
from ogkd.cli import app as app_page
from ogkd.cli import (
    backbones,
    bench,
    calibrate,
    data,
    demo,
    doctor,
    embed,
    evaluate,
    export,
    fit,
    import_checkpoint,
    methods,
    phantoms,
    predict,
    prompts,
    report,
)
from ogkd.errors import OgkdError

__all__ = ["app", "main"]

app = typer.Typer(
    name="ogkd",
    help="Few-shot adaptation of frozen biomedical vision-language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("fit")(fit.fit)
app.command("predict")(predict.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("report")(report.report)
app.command("calibrate")(calibrate.calibrate)
app.command("app")(app_page.app_command)
app.command("embed")(embed.embed)
app.command("phantoms")(phantoms.phantoms)
app.command("demo")(demo.demo)
app.command("export")(export.export)
app.command("import-checkpoint")(import_checkpoint.import_checkpoint)
app.add_typer(prompts.app, name="prompts")
app.add_typer(backbones.app, name="backbones")
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.command("methods")(methods.methods)
app.command("doctor")(doctor.doctor)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"ogkd {version('ogkd')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="FILE_OR_MODULE",
            help="Load code that adds methods, backbones or datasets. Accepted by every command, "
            "any number of times. It runs with your rights: name only code that you trust.",
        ),
    ] = None,
) -> None:
    """Few-shot adaptation of frozen biomedical vision-language models."""
    for name in plugin or ():
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
            sys.stdout.flush()  # here, where a reader that went away can still be dealt with
    except OgkdError as error:
        _complain(f"{error} (option --plugin)" if error.argument == "plugin" else str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away (`ogkd ... | head`): nothing is wrong.
        _drop_output()
        sys.exit(0)
    except OSError as error:
        # The last resort: what the file system refuses is never the program's mistake.
        _complain(f"{error.filename or 'Output'}: {error.strerror or error}. Check it and retry.")
        _drop_output()
        sys.exit(2)


def _complain(message: str) -> None:
    typer.secho("Error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(message, err=True)


def _accept_any_file_name() -> None:
    """A name that is not valid text is printed as the bytes it is, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def _drop_output() -> None:
    """Send what is left to nowhere, so that Python does not complain at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
