"""Hooks of the documentation site: what is made from the commands and from data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from properdocs.structure.files import File, Files

from ogkd.cli import app
from ogkd.methods.registry import not_built

# "```bash test" marks a block that tests/docs runs; the site's renderer knows only the language.
_TESTED = re.compile(r"^```(\w+) test$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add reference/cli.md, which is not kept in the repository."""
    files.append(File.generated(config, "reference/cli.md", content=cli_page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Drop the mark of tested blocks; fill in the methods that are not built."""
    rows = [f"| {method} | {reason} |" for method, reason in not_built().items()]
    table = "\n".join(["| method | why not |", "|---|---|", *rows])
    return _TESTED.sub(r"```\1", markdown).replace("<!-- not built -->", table)


def cli_page() -> str:
    """Every command with its arguments and options, as Markdown."""
    root = typer.main.get_command(app)
    parts = [
        "# Command line",
        "Generated from the commands; `ogkd COMMAND --help` prints the same.",
    ]
    for path, command in _commands(root, ("ogkd",)):
        parts += _command(path, command)
    return "\n\n".join(parts) + "\n"


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        if not inner.hidden:
            yield from _commands(inner, (*path, name))


def _command(path: tuple[str, ...], command: Any) -> list[str]:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    usage = [*path, "[OPTIONS]", *(_metavar(p) for p in shown if p.param_type_name == "argument")]
    help_text = (command.help or "").split("\f")[0]
    parts = [f"## `{' '.join(path)}`", help_text.strip(), f"    {' '.join(usage)}"]
    if shown:
        rows = [_row(parameter) for parameter in shown]
        parts.append("\n".join(["| | | default |", "|---|---|---|", *rows]))
    return parts


def _metavar(argument: Any) -> str:
    name = str(argument.metavar or argument.name).upper()
    return name + ("..." if argument.nargs == -1 else "")


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{_metavar(parameter)}`"
    else:
        name = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
    text = (getattr(parameter, "help", None) or "").replace("|", "\\|").replace("\n", " ")
    return f"| {name} | {text} | {_default(parameter)} |"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value in ((), [], False) or callable(value) or "UNSET" in repr(value):
        return ""
    return f"`{value}`"
