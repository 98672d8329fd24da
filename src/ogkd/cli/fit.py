"""`ogkd fit`: from a folder of labelled images to a model folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ogkd.cli.options import (
    BackboneOption,
    ClassesOption,
    DataArgument,
    DeviceOption,
    EngineOption,
    OnErrorOption,
    RootOption,
    SliceOption,
    read_classes,
    read_settings,
)


def fit(
    data: DataArgument,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The model folder to make.")],
    backbone: BackboneOption = "builtin",
    method: Annotated[
        str,
        typer.Option(
            "--method", "-m", help="ogkd, fused, gda, zero-shot, ... (see `ogkd methods`)."
        ),
    ] = "ogkd",
    shots: Annotated[
        int | None, typer.Option(help="Images per class to learn from (default: all).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws the images and all randomness.")] = 1,
    preset: Annotated[
        str | None, typer.Option(help="Settings: auto (the default), paper/few-shot/btmri, ...")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one setting: train.epochs=50. May be repeated."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSON of class name -> texts, or a bank's name (default: templates)."),
    ] = None,
    normal: Annotated[
        list[str] | None,
        typer.Option(help='A class that means "nothing found" (default: by its name).'),
    ] = None,
    sampling: Annotated[
        str, typer.Option(help="How shots are drawn: released, or nested (2 shots hold the 1).")
    ] = "released",
    root: RootOption = None,
    classes: ClassesOption = None,
    slice: SliceOption = None,
    on_error: OnErrorOption = "stop",
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget an interrupted fit into the same folder.")
    ] = False,
    device: DeviceOption = "auto",
    encoder_engine: EngineOption = "torch",
) -> None:
    """Learn a classifier from labelled images. Run the same command again to resume."""
    from ogkd.fitting.pipeline import fit as fit_model

    began = time.perf_counter()
    model = fit_model(
        data,
        backbone=backbone,
        method=method,
        shots=shots,
        seed=seed,
        preset=preset,
        settings=read_settings(settings or []),
        prompts=prompts,
        normal=normal,
        sampling=sampling,  # type: ignore[arg-type]  # checked there, with a message
        root=root,
        class_names=read_classes(classes),
        slice=slice,
        on_error=on_error,  # type: ignore[arg-type]  # checked there, with a message
        say=lambda note: typer.echo(note, err=True),
        out=out,
        restart=restart,
        device=device,
        engine=encoder_engine,
    )
    seconds = time.perf_counter() - began
    card = model.card
    images = ", ".join(
        f"{name} {count}" for name, count in zip(card.class_names, card.support_counts, strict=True)
    )
    typer.echo(
        f"Fitted {method} on {sum(card.support_counts)} images ({images}) in {seconds:.1f} s."
    )
    typer.echo(f"Model: {out}")
    typer.echo(f"Next:  ogkd predict {out} IMAGES...")
