"""`ogkd import-checkpoint`: a released BiomedCoOp or OGKD checkpoint as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ogkd.cli.options import BackboneOption, DeviceOption
from ogkd.errors import ConfigError


def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="A file like model.pth.tar-100.")],
    *,
    classes: Annotated[
        str | None, typer.Option(help="Class names in label order, separated by commas.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Instead: the benchmark whose classes they are (btmri).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model folder to make.")],
    backbone: BackboneOption = "biomedclip",
    device: DeviceOption = "auto",
) -> None:
    """Read the learned context of a released checkpoint (never its code) into a model folder."""
    from ogkd.datasets.catalog import benchmark
    from ogkd.fitting.importing import import_context
    from ogkd.model.classifier import place_for_model

    if (classes is None) == (dataset is None):
        raise ConfigError(
            "Say whose classes they are: --dataset btmri, or --classes with their names in label "
            "order. One of the two."
        )
    names: list[str] | tuple[str, ...]
    if dataset is not None:
        names = benchmark(dataset).class_names
    else:
        names = [name.strip() for name in (classes or "").split(",") if name.strip()]
    place_for_model(out)
    import_context(file, names, backbone=backbone, device=device).save(out)
    typer.echo(f"Model: {out}")
    typer.echo(f"Next:  ogkd predict {out} IMAGES...")
