"""`ogkd phantoms`: procedural images as ordinary image folders."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from ogkd.errors import ConfigError

_MANY = 600


def phantoms(
    name: Annotated[str | None, typer.Argument(help="Which phantom dataset.")] = None,
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to make.")] = None,
    train: Annotated[int, typer.Option(min=0, help="Training images per class.")] = 32,
    val: Annotated[int, typer.Option(min=0, help="Validation images per class.")] = 8,
    test: Annotated[int, typer.Option(min=0, help="Test images per class.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other images.")] = 1,
    size: Annotated[int, typer.Option(min=128, max=1024, help="Side in pixels.")] = 160,
    list_: Annotated[bool, typer.Option("--list", help="List the datasets and stop.")] = False,
) -> None:
    """Write a phantom dataset as {train,val,test}/class folders of PNG files.

    Phantoms imitate how a modality looks. They show no patient and mean nothing clinically.
    """
    from ogkd.datasets.phantoms import PHANTOMS, phantom, write_folder

    if list_:
        width = max(map(len, PHANTOMS))
        for dataset in PHANTOMS.values():
            typer.echo(f"{dataset.name:{width}}  {dataset.title}: {', '.join(dataset.class_names)}")
        return
    if name is None or out is None:
        raise ConfigError("Give a dataset and a folder: ogkd phantoms NAME --out DIR (see --list).")
    counts = {"train": train, "val": val, "test": test}
    splits = {split: count for split, count in counts.items() if count}
    if not splits:
        raise ConfigError("Nothing to write: give at least one of --train, --val, --test above 0.")
    classes = len(phantom(name).class_names)
    total = sum(splits.values()) * classes
    # A second process takes a second to start: not worth it for a few images.
    workers = (os.cpu_count() or 1) if total >= _MANY else 1
    began = time.perf_counter()
    write_folder(name, out, splits=splits, seed=seed, size=size, workers=workers)
    rate = total / (time.perf_counter() - began)
    typer.echo(f"{total} images of {classes} classes -> {out} ({rate:.0f} images/s)")
