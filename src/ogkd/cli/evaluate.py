"""`ogkd evaluate`: how good is a model on labelled images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ogkd.cli.options import (
    ClassesOption,
    DataArgument,
    DeviceOption,
    EngineOverride,
    ModelArgument,
    OnErrorOption,
    RootOption,
    SliceOption,
    read_classes,
)
from ogkd.errors import ConfigError
from ogkd.files import write_json

if TYPE_CHECKING:
    from ogkd.datasets.manifest import Manifest
    from ogkd.features.extract import BadFile


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    *,
    split: Annotated[str, typer.Option(help="Which part, where the data has splits.")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the JSON here too.")
    ] = None,
    root: RootOption = None,
    classes: ClassesOption = None,
    slice: SliceOption = None,
    on_error: OnErrorOption = "stop",
    backbone: Annotated[
        str | None, typer.Option("--backbone", "-b", help="Where the backbone is, if it moved.")
    ] = None,
    device: DeviceOption = "auto",
    encoder_engine: EngineOverride = None,
) -> None:
    """Show accuracy, macro-F1 and a row for each class.

    With --on-error skip, unreadable files are not judged; they are listed in
    skipped.csv beside --out. Volumes without a slice of their own get the one
    of --slice, or else the one that the model learned from.
    """
    from ogkd.classifier import load
    from ogkd.datasets.fetch import resolve_data
    from ogkd.evaluation import evaluate as evaluate_model
    from ogkd.features.usable import SKIPPED, check_on_error, write_skipped
    from ogkd.images.address import parse_rule

    skip = check_on_error(on_error) == "skip"
    rule = None if slice is None else str(parse_rule(slice))
    if out is not None and out.is_dir():
        raise ConfigError(f"--out {out} is a folder. Give the name of a file in it.")
    manifest = resolve_data(data, root=root, class_names=read_classes(classes))
    if not manifest.has_splits:
        typer.echo(
            f"Note: {data} has no splits, so all of its images are judged. Images that the model "
            "has learned from make it look better than it is.",
            err=True,
        )
    classifier = load(model, backbone=backbone, device=device, engine=encoder_engine)
    manifest, skipped = _usable(manifest, split, rule or classifier.card.slice, skip=skip)
    result = evaluate_model(classifier, manifest, split=split)
    if out is not None:
        write_json(out, result)
        if skip:
            write_skipped(out.with_name(SKIPPED), skipped)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _print(result)


def _usable(
    manifest: Manifest, split: str, rule: str | None, *, skip: bool
) -> tuple[Manifest, list[BadFile]]:
    """The part to judge, with slices named and, if asked for, without unreadable files."""
    from dataclasses import replace

    from ogkd.features.usable import leave_out, sliced

    items = sliced(manifest.part(split), rule)
    bad: list[BadFile] = []
    if skip:
        items, bad = leave_out(items, manifest.class_names)
        typer.echo(
            f"Left out {len(bad)} file(s) that cannot be read; {len(items)} remain.", err=True
        )
        for file in bad[:20]:
            typer.echo(f"  {file.reason}", err=True)
    return replace(manifest, items=tuple(items)), bad


def _print(result: dict[str, Any]) -> None:
    typer.echo(f"{result['images']} images")
    typer.echo(f"accuracy {100 * result['accuracy']:6.2f} %")
    typer.echo(f"macro-F1 {100 * result['macro_f1']:6.2f} %")
    width = max(map(len, ["class", *result["per_class"]]))
    typer.echo(f"{'class':{width}}  precision  recall      F1  images")
    for name, row in result["per_class"].items():
        shares = "  ".join(f"{100 * row[key]:6.1f}" for key in ("recall", "f1"))
        typer.echo(f"{name:{width}}  {100 * row['precision']:9.1f}  {shares}  {row['images']:6}")
