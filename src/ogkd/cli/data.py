"""`ogkd data`: the benchmark datasets, downloading them, and checking any data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ogkd.cli.data_check import check
from ogkd.errors import ConfigError, DataError, Interrupted, OgkdError

if TYPE_CHECKING:
    from ogkd.datasets.catalog import Benchmark

app = typer.Typer(help="Benchmark datasets and your own data: list, info, download, check.")
app.command("check")(check)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.callback(invoke_without_command=False)
def _root() -> None:
    """Benchmark datasets and your own data: list, info, download, check."""


@app.command("list")
def list_benchmarks(as_json: _Json = False) -> None:
    """Show the benchmark datasets and whether they are on this machine."""
    from ogkd.datasets.catalog import known_benchmarks

    rows = [_facts(record) for record in known_benchmarks().values()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "here", "modality", "organ"):
        table.add_column(heading)
    for heading in ("classes", "train", "val", "test"):
        table.add_column(heading, justify="right")
    for row in rows:
        counts = [f"{count:,}" for count in row["counts"].values()]
        here = "yes" if row["present"] else "no"
        words = (row["name"], here, row["modality"], row["organ"])
        table.add_row(*words, str(len(row["class_names"])), *counts)
    Console().print(table)
    typer.echo("More: `ogkd data info NAME`. Download: `ogkd data download NAME`.")


@app.command("info")
def info(
    name: Annotated[str, typer.Argument(help="A benchmark, such as btmri.")], as_json: _Json = False
) -> None:
    """Show what is known of a benchmark: classes, counts, licence, place, hashes."""
    from ogkd.datasets.catalog import benchmark

    record = benchmark(name)
    facts = _facts(record)
    if as_json:
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    parts = ", ".join(f"{split} {count:,}" for split, count in facts["counts"].items())
    lines = {
        "name": f"{record.name} ({record.title} in the paper)",
        "images": f"{record.modality}, {record.organ}; {parts}",
        "base": ", ".join(record.base_classes),
        "novel": ", ".join(record.novel_classes),
        "protocols": "few-shot" + (", base-to-novel" if record.base_to_novel else ""),
        "normal": ", ".join(record.normal) or "none",
        "licence": record.licence,
        "cite": record.citation,
        "note": record.note,
        "archive": record.url,
        "sha256": record.archive_sha256 or "not known",
        "split": f"{record.split_file}, sha256 {record.split_sha256 or 'not known'}",
        "here": facts["path"] or f"no: run `ogkd data download {record.name}`",
    }
    for key, words in lines.items():
        if words:
            typer.echo(f"{key:10} {words}")


@app.command("download")
def download(
    names: Annotated[list[str], typer.Argument(help="Benchmarks, such as btmri; or all.")],
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where to keep them, one folder each (default: OGKD_DATA, or the cache)."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Begin anew and replace what is there.")
    ] = False,
) -> None:
    """Download benchmarks and check them. Run the same command again to resume."""
    from ogkd.datasets.catalog import benchmark, benchmarks

    if names == ["all"]:
        names = list(benchmarks())
    elif "all" in names:
        raise ConfigError("'all' already means every benchmark: give it alone.")
    records = {benchmark(name).name: benchmark(name) for name in names}  # all known, none twice
    failures: list[OgkdError] = []
    for record in records.values():
        try:
            _download(record, folder=folder, force=force)
        except KeyboardInterrupt as error:
            raise Interrupted(
                "Stopped. What has arrived is kept: run the same command again to go on."
            ) from error
        except OgkdError as error:
            if len(records) == 1:
                raise
            failures.append(error)
            typer.echo(f"{record.name} failed: {error}", err=True)
    if failures:
        raise DataError(
            f"{len(failures)} of {len(records)} benchmarks could not be downloaded, for the "
            "reasons above. Run the same command again: those that are here are left alone."
        )


def _download(record: Benchmark, *, folder: Path | None, force: bool) -> None:
    from ogkd.datasets.fetch import download_benchmark, locate_benchmark

    found = locate_benchmark(record, folder=folder)
    if found and not force:
        typer.echo(f"{record.name} is already here: {found}")
        return
    typer.echo(f"{record.name}: licence: {record.licence}", err=True)
    path = download_benchmark(record, folder=folder, force=force)
    typer.echo(f"{record.name} -> {path}")
    data = record.name if folder is None else path
    typer.echo(f"Next:  ogkd fit {data} --shots 16 --out my-model")


def _facts(record: Benchmark) -> dict[str, Any]:
    from ogkd.datasets.fetch import locate_benchmark

    found = locate_benchmark(record)
    return {
        **record.model_dump(mode="json"),
        "base_classes": list(record.base_classes),
        "novel_classes": list(record.novel_classes),
        "present": found is not None,
        "path": str(found) if found else None,
    }
