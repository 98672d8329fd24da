"""`ogkd backbones`: which frozen models there are, fetching them, checking them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ogkd.backbones.catalog import Record

app = typer.Typer(help="Frozen vision-language models: list, info, fetch, verify.")

_COLOURS = {"PASS": "green", "FAIL": "red", "SKIP": "yellow"}
_Name = Annotated[str, typer.Argument(help="A known name, a hub id or a folder.")]


@app.callback(invoke_without_command=False)
def _root() -> None:
    """Frozen vision-language models: list, info, fetch, verify."""


@app.command("list")
def list_backbones(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the known backbones and whether they are on this machine."""
    from ogkd.backbones.catalog import catalog

    rows = [_summary(record) for record in catalog().values()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "here", "licence", "modality"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        here = "yes" if row["present"] else "no"
        table.add_row(row["name"], here, row["licence"], row["modality"])
    Console().print(table)
    typer.echo(
        "More: `ogkd backbones info NAME`. Download: `ogkd backbones fetch NAME`. "
        "A folder or a hub id may stand for NAME."
    )


@app.command("info")
def info(
    name: _Name,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Show what is known of a backbone: licence, place, sizes, hashes."""
    from ogkd.backbones.loading import resolve

    found = resolve(name)
    facts = _folder_facts(found) if isinstance(found, Path) else _record_facts(found)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for key, value in facts.items():
        if key != "files" and value not in (None, "", False):
            typer.echo(f"{key:10} {value:,} bytes" if key == "size" else f"{key:10} {value}")
    for file, size in facts.get("files", {}).items():
        typer.echo(f"{'file':10} {file}  {size:,} bytes")


@app.command("fetch")
def fetch(
    name: _Name,
    force: Annotated[bool, typer.Option("--force", help="Fetch it even if it is here.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="A branch, tag or commit of the hub's repository.")
    ] = None,
    examples: Annotated[
        bool, typer.Option("--examples", help="Also the images that `verify` compares with.")
    ] = False,
) -> None:
    """Download a backbone once, check it and keep it as safetensors in the cache."""
    from ogkd.backbones.hub import fetch as fetch_backbone
    from ogkd.backbones.hub import fetch_examples
    from ogkd.backbones.loading import resolve
    from ogkd.errors import ConfigError

    record = resolve(name)
    if isinstance(record, Path):
        raise ConfigError(f"{record} is a folder on this machine: there is nothing to fetch.")
    if examples and not record.examples:
        raise ConfigError(f"No example images are published with {record.name}.")
    typer.echo(f"{record.name} -> {fetch_backbone(record, force=force, revision=revision)}")
    if examples:
        from ogkd.backbones.verify import published_outputs

        names = list(published_outputs()["probabilities"])
        typer.echo(f"{len(names)} example images -> {fetch_examples(record, names)}")


@app.command("verify")
def verify(
    name: _Name,
    images: Annotated[
        Path | None, typer.Option(help="Folder of the images whose outputs were published.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
) -> None:
    """Hash the files again, load the model and check what it computes."""
    from ogkd.backbones.verify import verify as run_checks

    failed = False
    for check in run_checks(name, images=images, device=device):
        failed = failed or check.status == "FAIL"
        typer.secho(f"{check.status:5}", fg=_COLOURS[check.status], nl=False)
        typer.echo(f"{check.what}: {check.found}")
        if check.fix:
            typer.echo(f"      fix: {check.fix}")
    if failed:
        sys.exit(2)


def _summary(record: Record) -> dict[str, Any]:
    from ogkd.backbones.hub import read_source

    here = record.format == "builtin" or read_source(record.folder) is not None
    return {**record.model_dump(), "present": here}


def _record_facts(record: Record) -> dict[str, Any]:
    """The record, and what is on this machine of it."""
    from ogkd.backbones.hub import read_source
    from ogkd.backbones.loading import BUILTIN_FOLDER

    facts = _summary(record)
    if record.format == "builtin":
        return {**facts, **_folder_facts(BUILTIN_FOLDER)}
    facts["path"] = str(record.folder)
    if source := read_source(record.folder):
        facts |= {
            "format": source["format"],
            "revision": source["revision"],
            "digest": f"sha256 {source['weights']['sha256']} ({source['weights']['file']})",
            "files": {file: about["size"] for file, about in source["files"].items()},
        }
    return facts


def _folder_facts(folder: Path) -> dict[str, Any]:
    from ogkd.backbones.loading import detect_format
    from ogkd.files import sha256_file

    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    weights = [path for path in files if path.suffix in (".safetensors", ".bin")]
    digests = [f"sha256 {sha256_file(path)} ({path.name})" for path in weights]
    return {
        "path": str(folder),
        "format": detect_format(folder) or "no model that ogkd can load",
        "digest": ", ".join(digests),
        "files": {path.name: path.stat().st_size for path in files},
    }
