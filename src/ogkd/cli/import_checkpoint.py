"""`ogkd import-checkpoint`: a released BiomedCoOp or OGKD checkpoint as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ogkd.cli.options import BackboneOption, DeviceOption


def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="A file like model.pth.tar-100.")],
    *,
    classes: Annotated[str, typer.Option(help="Class names in label order, separated by commas.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model folder to make.")],
    backbone: BackboneOption = "biomedclip",
    device: DeviceOption = "auto",
) -> None:
    """Read the learned context of a released checkpoint (never its code) into a model folder."""
    from ogkd.classifier import place_for_model
    from ogkd.importing import import_context

    place_for_model(out)
    names = [name.strip() for name in classes.split(",") if name.strip()]
    import_context(file, names, backbone=backbone, device=device).save(out)
    typer.echo(f"Model: {out}")
    typer.echo(f"Next:  ogkd predict {out} IMAGES...")
