"""`ogkd evaluate`: how good is a model on labelled images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ogkd.cli.options import DataArgument, DeviceOption, ModelArgument
from ogkd.errors import ConfigError
from ogkd.files import write_json


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    *,
    split: Annotated[str, typer.Option(help="Which part, where the data has splits.")] = "test",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the JSON here too.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", "-b", help="Where the backbone is, if it moved.")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Show accuracy, macro-F1 and a row for each class."""
    from ogkd.classifier import load
    from ogkd.datasets.manifest import read_manifest
    from ogkd.evaluation import evaluate as evaluate_model

    if out is not None and out.is_dir():
        raise ConfigError(f"--out {out} is a folder. Give the name of a file in it.")
    manifest = read_manifest(data)
    if not manifest.has_splits:
        typer.echo(
            f"Note: {data} has no splits, so all of its images are judged. Images that the model "
            "has learned from make it look better than it is.",
            err=True,
        )
    classifier = load(model, backbone=backbone, device=device)
    result = evaluate_model(classifier, manifest, split=split)
    if out is not None:
        write_json(out, result)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    typer.echo(f"{result['images']} images")
    typer.echo(f"accuracy {100 * result['accuracy']:6.2f} %")
    typer.echo(f"macro-F1 {100 * result['macro_f1']:6.2f} %")
    width = max(map(len, ["class", *result["per_class"]]))
    typer.echo(f"{'class':{width}}  precision  recall      F1  images")
    for name, row in result["per_class"].items():
        shares = "  ".join(f"{100 * row[key]:6.1f}" for key in ("recall", "f1"))
        typer.echo(f"{name:{width}}  {100 * row['precision']:9.1f}  {shares}  {row['images']:6}")
