"""What commands share: options and how their values are read, and how results are printed."""

from __future__ import annotations

import contextlib
import csv
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer
from typer import Argument, Option

from ogkd import progress
from ogkd.errors import ConfigError
from ogkd.files import check_replaceable, write_atomically
from ogkd.fitting.request import FitRequest

if TYPE_CHECKING:
    from ogkd.data.case import Case
    from ogkd.data.tables import Sheet
    from ogkd.images import ImageRef

# What the options of a fit do; other commands have some of them too.
HELP = {
    name: re.sub(r"\s+", " ", text[0].upper() + text[1:]).partition(" In Python")[0]
    for name, text in re.findall(
        r"^ {4}(\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(FitRequest) or "", re.MULTILINE
    )
}

_COMMAS = "Separated by commas; a name with a comma in double quotes."

# Data
DataArgument = Annotated[Path, Argument(help=HELP["data"])]
IMAGES = Argument(help="Image files, or folders, which are searched recursively.")
SplitOption = Annotated[str, Option(help="Which split to use, if the data has splits.")]
ClassesOption = Annotated[str | None, Option("--classes", help=f"{HELP['class_names']} {_COMMAS}")]
FindingsOption = Annotated[str | None, Option("--findings", help=f"{HELP['findings']} {_COMMAS}")]
ColumnsOption = Annotated[
    str | None,
    Option("--columns", metavar="NAME=HEADING,...", help=HELP["columns"]),
]
SliceOption = Annotated[str | None, Option(help=HELP["slice"])]
CasesOption = Annotated[str | None, Option(help=HELP["cases"])]

# Models
ModelArgument = Annotated[Path, Argument(help="A folder written by `ogkd fit --out`.")]
ModelOut = Annotated[Path, Option("--out", "-o", help="The model folder to write.")]
BackboneOption = Annotated[str, Option("--backbone", "-b", help=HELP["backbone"])]
MovedBackbone = Annotated[
    str | None, Option("--backbone", "-b", help="Where the backbone is, if it is not found.")
]
DeviceOption = Annotated[str, Option(help=HELP["device"])]
EngineOption = Annotated[str, Option(help=HELP["engine"])]
EngineOverride = Annotated[
    str | None,
    Option(help="Encode images with another engine than the fit: torch, bf16, fp16, auto."),
]

# Guarantees: `Policy` checks their values, `Decider` whether the model can give them
MaxRiskOption = Annotated[
    float | None,
    Option(help="Abstain so that at most this share of the other predictions is wrong."),
]
CoverageOption = Annotated[
    float | None,
    Option(help="How often the set of classes contains the true one (default: 0.9)."),
]
SensitivityOption = Annotated[
    float | None,
    Option(
        help="Several findings: answer no so that at least this share of the images with one is "
        "not missed."
    ),
]

OnErrorOption = Annotated[
    Literal["stop", "skip"], Option(help="Unreadable files: stop and list them, or skip them.")
]


# Output
def _replaceable(path: Path | None) -> Path | None:
    if path is not None:
        check_replaceable(path)
    return path


def output_file(*names: str, help: str) -> Any:
    """An option for a file to write; refuses a folder, and a file that must not be replaced."""
    return Option(*names, help=help, dir_okay=False, callback=_replaceable)


JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]
OutFile = Annotated[Path, output_file("--out", "-o", help="The file to write.")]


def find_refs(images: Sequence[Path], slice: str | None) -> list[ImageRef]:
    """The image files in files and folders, with the slice to take of volumes."""
    from ogkd.data.read import unread_below
    from ogkd.images import SliceRule, find_images

    rule = None if slice is None else SliceRule.parse(slice)
    for what, advice in unread_below([path for path in images if path.is_dir()]):
        say(f"Note: {what} {advice}")
    return [image.sliced(rule) for image in find_images(images)]


def find_cases(images: Sequence[Path], columns: str | None, slice: str | None) -> list[Case]:
    """A case for each image in files, folders and tables."""
    from ogkd.data.case import unlabelled_cases
    from ogkd.data.tables import TABLES, read_unlabelled_table

    names = read_columns(columns)
    if names and not any(path.suffix.lower() in TABLES for path in images):
        raise ConfigError("It has no effect without a table.", argument="columns")
    cases: list[Case] = []
    for path in images:
        if path.suffix.lower() in TABLES:
            cases += read_unlabelled_table(path, names)
        else:
            cases += unlabelled_cases(find_refs([path], slice))
    return cases


def split_list(text: str) -> list[str]:
    """Split `a, b, c` at its commas; empty parts are dropped."""
    return [part for part in _split(text) if part]


def read_classes(text: str | None) -> list[str] | None:
    """Split class names at commas. An empty name is kept, so that it is reported as one."""
    return None if text is None else _split(text)


def _split(text: str) -> list[str]:
    """Split at commas outside of double quotes, as in `"mass, benign", cyst`."""
    parts = next(csv.reader([" ".join(text.splitlines())], skipinitialspace=True), [""])
    return [part.strip() for part in parts]


def read_columns(text: str | None) -> dict[str, str] | None:
    """Headings of columns, as `path=Bild,label=Diagnose`."""
    if text is None:
        return None
    pairs = [pair.partition("=") for pair in _split(text)]
    columns = {name.strip(): heading.strip() for name, _, heading in pairs}
    if len(columns) < len(pairs) or not all(columns.values()):
        raise ConfigError(
            f"columns takes each heading once, such as path=Bild,label=Diagnose, but is '{text}'.",
            argument="columns",
        )
    return columns


def read_prior(text: str | None) -> dict[str, float] | None:
    """Shares of classes, as `benign=0.9,malignant=0.1`."""
    if text is None:
        return None
    shares: dict[str, float] = {}
    for pair in _split(text):
        name, _, value = (part.strip() for part in pair.rpartition("="))
        try:
            if name in shares or not name:
                raise ValueError
            shares[name] = float(value)
        except ValueError:
            raise ConfigError(
                "prior takes one share for every class, such as benign=0.9,malignant=0.1, but got "
                f"'{pair.strip()}'.",
                argument="prior",
            ) from None
    return shares


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn `key=value` texts into settings; a value that is not valid JSON is a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not (key := key.strip()) or key in settings:
            raise ConfigError(
                f"--set takes each key=value once, such as train.epochs=50, but got '{pair}'."
            )
        try:
            settings[key] = json.loads(value)
        except (ValueError, RecursionError):
            settings[key] = value
    return settings


def say(note: str) -> None:
    """Print a line on standard error, so that it is kept out of results; not with `--quiet`."""
    if not progress.quiet:
        typer.echo(note, err=True)


def print_json(value: Any) -> None:
    """Print JSON in ASCII, because file names need not be valid text."""
    typer.echo(json.dumps(value, indent=2))


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
def write_rows(path: Path, start: str = "") -> Iterator[TextIO | Sheet]:
    """Open a text file or sheet that appears at `path` once everything is written.

    A text file begins with `start`.
    """
    from ogkd.data.tables import SHEET, Sheet

    if path.suffix.lower() == SHEET:
        with Sheet.at(path) as sheet:
            yield sheet
        return
    with (
        write_atomically(path, suffixes=(".csv", ".tsv", ".jsonl", ".txt")) as aside,
        # A file name that is not valid text is written as the bytes it consists of.
        aside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        file.write(start)
        yield file
