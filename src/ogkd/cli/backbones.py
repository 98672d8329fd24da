"""`ogkd backbones` and `ogkd embed`: frozen models, and the features they compute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.commands import CommandGroup
from ogkd.cli.doctor import report_checks
from ogkd.cli.options import print_facts, print_table, say
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from ogkd.backbones.catalog import Record

app = CommandGroup("Frozen vision-language models: list, info, fetch.")

_Name = Annotated[str, Argument(help="A known name, a hub id or a folder.")]


@app.command("list")
def list_backbones() -> None:
    """Show the known backbones and whether they are on this machine.

    "gated": their publisher asks for an account; "n/a": they cannot be loaded, and `info` says
    why. The size is in millions of parameters.
    """
    from ogkd.backbones.catalog import catalog

    cells = [
        (
            record.name,
            _status(record),
            record.modality,
            record.parameters or "",
            record.patches,
            record.licence,
        )
        for record in catalog().values()
    ]
    headings = ("name", "here", "images of", "size (M)", "patches", "licence")
    print_table(headings, cells, numbers=("size (M)",))


@app.command("info")
def info(
    name: _Name,
    verify: Annotated[
        bool,
        Option("--verify", help="Hash its files, load it, compare its outputs with known ones."),
    ] = False,
) -> None:
    """Show what is known about a backbone (licence, location, sizes, hashes), or verify it."""
    from ogkd.backbones.loading import resolve

    if verify:
        from ogkd.backbones.hub import verify as run_checks

        report_checks(run_checks(name))
        return
    facts = _facts(resolve(name))
    sizes = {"size": facts.pop("size", None), **facts.pop("files", {})}
    print_facts(facts | {file: f"{size:,} bytes" for file, size in sizes.items() if size})


@app.command("fetch")
def fetch(name: _Name) -> None:
    """Download a backbone, check it and keep it as safetensors in the cache."""
    from ogkd.backbones.hub import fetch as fetch_backbone
    from ogkd.backbones.loading import resolve

    record = resolve(name)
    if isinstance(record, Path):
        raise ConfigError(f"{record} is a folder on this machine: there is nothing to fetch.")
    typer.echo(f"{record.name} -> {fetch_backbone(record)}")


def _status(record: Record) -> str:
    """Whether a backbone is here, or what stands in the way."""
    if record.missing:
        return "n/a"
    return "yes" if _is_present(record) else "gated" if record.gated else "no"


def _is_present(record: Record) -> bool:
    from ogkd.backbones.hub import read_source

    return record.format == "builtin" or read_source(record.folder) is not None


def _facts(source: Record | Path) -> dict[str, Any]:
    """What the catalogue says of a backbone, and what this machine has of it."""
    from ogkd.backbones._folder import detect_format
    from ogkd.backbones.builtin import BUILTIN_FOLDER
    from ogkd.backbones.hub import read_source

    facts: dict[str, Any] = {}
    if isinstance(source, Path):
        folder = source
    else:
        facts = {**source.model_dump(), "present": _is_present(source)}
        folder = BUILTIN_FOLDER if source.format == "builtin" else source.folder
    facts["path"] = str(folder)
    if folder.is_dir():
        facts["format"] = detect_format(folder) or "not a model that ogkd can load"
        files = sorted(path for path in folder.iterdir() if path.is_file())
        facts["files"] = {path.name: path.stat().st_size for path in files}
        if fetched := read_source(folder):
            facts["revision"] = fetched["revision"]
            facts["sha256"] = fetched["weights"]["sha256"]
    return facts


def embed(
    images: Annotated[list[Path], opt.IMAGES],
    *,
    out: opt.OutFile,
    backbone: opt.BackboneOption = "builtin",
    on_error: opt.OnErrorOption = "stop",
    slice: opt.SliceOption = None,
    device: opt.DeviceOption = "auto",
    engine: opt.EngineOption = "torch",
) -> None:
    """Write the image features of a frozen backbone to a safetensors file.

    The tensor `globals` [N,d] is float32 and L2-normalised. The metadata key
    `files` is a JSON list of the files, sorted, in row order.
    """
    model = ogkd.load_backbone(backbone, device=device, engine=engine)
    from ogkd.features.encode import write_features
    from ogkd.features.unreadable import unreadable_error
    from ogkd.fitting.choose import warning_about

    refs = sorted(opt.find_refs(images, slice), key=lambda image: image.as_posix())
    if warning := warning_about(model, refs):
        say(f"WARNING: {warning}")
    began = time.perf_counter()
    bad = write_features(model, refs, out, on_error=on_error)
    seconds = time.perf_counter() - began
    if bad:
        say(f"Left out: {unreadable_error(bad, '')}")
    count = len(refs) - len(bad)
    typer.echo(f"{count} images in {seconds:.1f} s ({count / seconds:.1f} images/s) -> {out}")
