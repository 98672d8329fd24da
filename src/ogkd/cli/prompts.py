"""`ogkd prompts`: banks of texts that describe classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ogkd.cli import options as opt
from ogkd.cli.commands import CommandGroup
from ogkd.cli.options import print_table, say
from ogkd.errors import ConfigError
from ogkd.files import write_json
from ogkd.prompts.bank import bank_digest, modality_bank, read_bank, require_classes, shipped_banks
from ogkd.prompts.check import check_bank
from ogkd.prompts.released import RELEASED, fetch_released, import_released, pin, released_path

app = CommandGroup("Banks of texts for classes: show, check, new, fetch.")

_COLOURS = {"error": "red", "warning": "yellow"}
_SHIPPED = 50  # prompts per class of the banks that come with the package


@app.command("show")
def show(
    bank: Annotated[
        Path | None,
        Argument(help="A file or the name of a bank (default: list the banks there are)."),
    ] = None,
) -> None:
    """List the banks that there are, or print the texts of one."""
    released = [RELEASED] if released_path().is_file() else []
    names = [bank] if bank else [*shipped_banks(), *released]
    banks = {str(name): read_bank(name) for name in names}
    if bank is None:
        cells = [[name, _count(texts), ", ".join(texts)] for name, texts in banks.items()]
        print_table(("bank", "prompts", "classes"), cells)
    else:
        for name, texts in banks[str(bank)].items():
            typer.secho(f"{name} ({len(texts)})", bold=True)
            typer.echo("".join(f"  {text}\n" for text in texts), nl=False)


def _count(bank: Mapping[str, Sequence[str]]) -> int:
    return sum(map(len, bank.values()))


@app.command("check")
def check(
    banks: Annotated[
        list[Path] | None, Argument(help="Files or names of banks (default: all shipped banks).")
    ] = None,
) -> None:
    """Look for duplicates, wrong lengths, missing class names. Exit code 1 on errors."""
    failed = False
    for path in banks or map(Path, shipped_banks()):
        bank = read_bank(path)
        findings = check_bank(bank, count=_SHIPPED if str(path) in shipped_banks() else None)
        for finding in findings:
            typer.secho(f"{finding.severity:8}", fg=_COLOURS[finding.severity], nl=False)
            typer.echo(f"{finding.class_name}: {finding.message} [{finding.rule}]")
            for text in finding.texts:
                typer.echo(f"        {text!r}")
        errors = any(finding.severity == "error" for finding in findings)
        failed = failed or errors
        verdict = "FAILED" if errors else "passed"
        typer.echo(f"{path}: {len(bank)} classes, {_count(bank)} texts, {verdict}")
    raise typer.Exit(int(failed))


@app.command("new")
def new(
    classes: Annotated[str, Option("--classes", "-c", help="Class names, separated by commas.")],
    modality: Annotated[
        str, Option("--modality", "-m", help="xray, ct, mri, ultrasound, histology, ...")
    ] = "any",
    organ: Annotated[str | None, Option(help="For example breast or lungs.")] = None,
    *,
    out: opt.OutFile,
) -> None:
    """Write a bank from the templates of a modality, as a start to edit."""
    names = require_classes(classes.split(","))
    if out.exists():
        raise ConfigError(f"{out} already exists.", argument="out")
    bank = modality_bank(names, modality=modality, organ=organ)
    write_json(out, bank)
    typer.echo(f"{len(bank)} classes with {_count(bank)} texts -> {out}")
    typer.echo(f"Next: read and edit the texts, then `ogkd prompts check {out}`.")


@app.command("fetch")
def fetch(
    source: Annotated[
        str,
        Argument(help="released: the bank behind the published numbers; or a copy of its file."),
    ],
) -> None:
    """Get the bank that the published numbers were computed with, for --prompts released.

    One Python file of a public repository at a pinned commit. It is read, never run.
    """
    if source == RELEASED:
        say(f"{pin().path} of {pin().repository} at {pin().commit[:12]}, licence {pin().licence}")
        bank = fetch_released()
    else:
        bank = import_released(Path(source))
    typer.echo(f"{len(bank)} classes with {_count(bank)} texts -> {released_path()}")
    typer.echo(f"sha256 of the texts: {bank_digest(bank)}")
