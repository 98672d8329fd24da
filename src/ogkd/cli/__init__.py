"""The `ogkd` command: parses options, calls the library, prints results.

Commands import torch and other heavy packages when they run, so that `ogkd --help` is fast.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from typer import Option

from ogkd import progress
from ogkd.cli import backbones, bench, data, demo, deploy, doctor, evaluate, fit, predict, prompts
from ogkd.cli.commands import CommandGroup
from ogkd.cli.options import say
from ogkd.errors import ConfigError, OgkdError, OgkdWarning, out_of_memory
from ogkd.notes import notes_to

__all__ = ["app", "main"]

app = CommandGroup(
    name="ogkd",
    help="Few-shot adaptation of frozen biomedical vision-language models.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _function in (
    *(fit.start, fit.fit, predict.predict, evaluate.evaluate, evaluate.calibrate),
    *(deploy.studio, deploy.app, deploy.export, backbones.embed, demo.demo, demo.phantoms),
    *(fit.methods, doctor.doctor),
):
    app.command()(_function)
for _group in (prompts, backbones, data, bench):
    app.add_typer(_group.app, name=_group.__name__.rpartition(".")[2])


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
            help="Load code that adds methods or backbones. Accepted by every command, "
            "any number of times. It runs with your rights: name only code that you trust.",
        ),
    ] = None,
    quiet: Annotated[
        bool,
        Option(
            "--quiet", help="Print results and errors only: no progress, no notes, no warnings."
        ),
    ] = False,
) -> None:
    """Few-shot adaptation of frozen biomedical vision-language models."""
    progress.quiet = quiet
    if quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    for name in plugin or ():
        from ogkd import plugins

        plugins.load(name)


def _own_options_first(words: Sequence[str]) -> list[str]:
    """Move `--quiet` and every `--plugin X` to the front, as options of `ogkd` itself."""
    first: list[str] = []
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            others += [word, *rest]
        elif word == "--plugin":
            first += [word, *itertools.islice(rest, 1)]
        else:
            ours = word == "--quiet" or word.startswith("--plugin=")
            (first if ours else others).append(word)
    return first + others


def main() -> None:
    """Run the command line; a user's mistake ends in one message and exit code 2."""
    _accept_any_file_name()
    try:
        try:
            if "" in sys.argv:
                raise ConfigError("An argument is empty: a variable of your script may not be set.")
            with _warnings_as_notes(), notes_to(say):
                app(args=_own_options_first(sys.argv[1:]), prog_name="ogkd")
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # typer has turned it into code 1
                raise end.__context__ from None
            raise
        finally:
            sys.stdout.flush()  # here, so that a closed pipe is handled below
    except OgkdError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has finished (`ogkd ... | head`): not an error.
        _drop_output()
        sys.exit(0)
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        if out_of_memory(error):
            _print_error("There is not enough memory: use fewer or smaller images at once.")
        elif isinstance(error, OSError):  # what the file system refuses is not a bug
            _print_error(f"{error.filename or 'Output'}: {error.strerror or error}.")
            _drop_output()
        else:
            raise
        sys.exit(2)


def _print_error(message: str) -> None:
    typer.secho("Error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(message, err=True)


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Print our own warnings as notes; those of libraries are for developers (`python -W`)."""

    def show(message: Warning | str, category: type[Warning], *a: object, **b: object) -> None:
        if issubclass(category, OgkdWarning):
            say(f"Note: {message}")

    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.showwarning = show
        yield


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
