"""`ogkd data check`: is the data what it seems to be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ogkd.cli.options import DeviceOption
from ogkd.errors import ConfigError
from ogkd.files import write_json

if TYPE_CHECKING:
    from rich.console import Console

    from ogkd.audit import Audit, Case, Finding
    from ogkd.datasets.manifest import Manifest

_SHOWN = 5  # places named under a finding; the JSON has all
_TONES = {"error": "red", "warning": "yellow", "note": "blue"}


def check(
    data: Annotated[
        Path,
        typer.Argument(help="Class folders, split folders, a table, or a benchmark's name."),
    ],
    *,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write everything that was found here.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with thumbnails here.")
    ] = None,
    near: Annotated[
        int, typer.Option(min=0, max=15, help="Bits of 64 in which near duplicates may differ.")
    ] = 6,
    labels: Annotated[
        bool, typer.Option("--labels", help="Look for suspicious labels too (needs cleanlab).")
    ] = False,
    backbone: Annotated[
        str | None,
        typer.Option("--backbone", "-b", help="Judges the labels; given alone, it means --labels."),
    ] = None,
    slice_rule: Annotated[
        str | None,
        typer.Option("--slice", help="Which slice of volumes: axis=2,index=middle."),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Count classes, read every file, and look for duplicates, shared patients and wrong labels.

    Exit code 0: nothing worse than warnings; 1: errors in the data; 2: the check could not run.
    """
    for option, file in (("--json", as_json), ("--html", html)):
        if file is not None and file.is_dir():
            raise ConfigError(f"{option} {file} is a folder. Give the name of a file in it.")
    from ogkd.audit import audit_data, write_page
    from ogkd.audit.labels import need_cleanlab

    wanted = labels or backbone is not None
    if wanted:
        need_cleanlab()
    manifest, root = _read(data, slice_rule)
    model = None
    if wanted:
        from ogkd.backbones import load_backbone

        model = load_backbone(backbone or "builtin", device=device)
    audit = audit_data(manifest, root=root, name=data.resolve().name, near=near, backbone=model)
    if as_json is not None:
        write_json(as_json, audit.as_json())
    if html is not None:
        write_page(audit, paths=[item.image for item in manifest.items], out=html)
    _print(audit)
    for file in (as_json, html):
        if file is not None:
            typer.echo(f"-> {file}", err=True)
    if audit.exit_code:
        raise typer.Exit(audit.exit_code)


def _read(data: Path, slice_rule: str | None) -> tuple[Manifest, Path]:
    """The data, and the folder that its files are named from."""
    from ogkd.datasets.fetch import locate_benchmark, named_benchmark, resolve_data
    from ogkd.images import SliceRule

    manifest = resolve_data(data)
    if slice_rule is not None:
        manifest = manifest.sliced(SliceRule.parse(slice_rule))
    named = named_benchmark(data)
    root = data if named is None else locate_benchmark(named) or data
    return manifest, root if root.is_dir() else root.parent


def _print(audit: Audit) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, highlight=False, markup=False)
    facts = audit.facts
    table = Table("class", box=None, pad_edge=False)
    for split in facts.counts:
        table.add_column(split or "images", justify="right")
    for name in next(iter(facts.counts.values())):
        table.add_row(_plain(name), *(str(counts[name]) for counts in facts.counts.values()))
    totals = [str(sum(counts.values())) for counts in facts.counts.values()]
    table.add_row("all", *totals, style="bold")
    console.print(table)
    sizes = ", ".join(list(facts.sizes)[:3]) + (", ..." if len(facts.sizes) > 3 else "")
    console.print(f"{facts.gray} grey and {facts.colour} colour images; sizes: {sizes or 'none'}")
    for finding in audit.findings:
        _print_finding(console, finding)
    counts = [f"{audit.count('error')} errors", f"{audit.count('warning')} warnings"]
    console.print(
        f"\n{len(audit.records)} images: {', '.join(counts)}, {audit.count('note')} notes"
    )


def _print_finding(console: Console, finding: Finding) -> None:
    console.print()
    console.print(finding.severity.upper(), style=f"bold {_TONES[finding.severity]}", end=" ")
    console.print(_plain(finding.what))
    for case in finding.where[:_SHOWN]:
        console.print(f"  {_line(case)}")
    if len(finding.where) > _SHOWN:
        console.print(f"  ... and {len(finding.where) - _SHOWN} more (--json lists all)")
    console.print(f"  -> {_plain(finding.next)}")


def _line(case: Case) -> str:
    files = " = ".join(case.files[:_SHOWN]) + (" = ..." if len(case.files) > _SHOWN else "")
    return _plain(f"{files}  ({case.note})" if case.note else files)


def _plain(words: str) -> str:
    """A file's name may hold a new line or a terminal's control codes: shown, not obeyed."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in words)
