"""What commands print or write: notes, JSON, tables, CSV."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import typer

from ogkd.files import write_atomically


def say(note: str) -> None:
    """Print a line on standard error, so that it is kept out of results."""
    typer.echo(note, err=True)


def print_json(value: Any, *, ascii: bool = False) -> None:
    """Print JSON; in ASCII if it may have file names, which need not be valid text."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=ascii))


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], *, numbers: Sequence[str] = ()
) -> None:
    """Print a table without borders; the columns `numbers` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        right = heading in numbers
        table.add_column(heading, overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*map(str, row))
    Console(markup=False, emoji=False).print(table)  # names of classes are not markup


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print a line for each name with a value; values are aligned."""
    width = max(map(len, facts))
    for name, value in facts.items():
        if value:
            typer.echo(f"{name:{width}}  {value}")


@contextlib.contextmanager
def write_csv(path: Path) -> Iterator[TextIO]:
    """Open a text file that appears at `path` once everything is written."""
    with (
        write_atomically(path, suffixes=(".csv", ".tsv", ".jsonl", ".txt")) as aside,
        # A file name that is not valid text is written as the bytes it consists of.
        aside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        yield file
