"""`ogkd phantoms`: images drawn by a program, to try everything on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ogkd.cli.options import print_facts
from ogkd.errors import ConfigError


def phantoms(
    name: Annotated[str | None, Argument(help="A phantom dataset; without it, a list.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="The folder to write.")] = None,
    train: Annotated[int, Option(min=0, max=100_000, help="Training images per class.")] = 32,
    val: Annotated[int, Option(min=0, max=100_000, help="Validation images per class.")] = 8,
    test: Annotated[int, Option(min=0, max=100_000, help="Test images per class.")] = 50,
    seed: Annotated[int, Option(min=0, help="Random seed of the images.")] = 1,
    size: Annotated[int, Option(min=128, max=1024, help="Side of an image in pixels.")] = 160,
    missing: Annotated[
        float, Option(help="chest-findings: share of answers that the table leaves empty.")
    ] = 0.0,
    volumes: Annotated[
        int | None,
        Option(metavar="SLICES", min=3, max=512, help="Write volumes (NIfTI) of so many slices."),
    ] = None,
    share: Annotated[
        float, Option(min=0.0, max=1.0, help="Share of a volume's slices with the finding.")
    ] = 0.1,
) -> None:
    """Write a phantom dataset as {train,val,test}/class folders of PNG files, or list them.

    chest-findings has several findings in an image: folders without classes and
    a table films.csv with a column for each finding; the numbers are then of
    images in all. With --volumes, the folders have volumes, and slices.csv says
    what each slice shows. Phantoms are drawings that imitate a modality. They show
    no patient and have no clinical meaning.
    """
    from ogkd.data import phantoms as drawn

    if name is None:
        facts = {
            key: f"{dataset.title}: {', '.join(dataset.class_names)}"
            for key, dataset in drawn.PHANTOMS.items()
        }
        several = f"Chest films with several findings: {', '.join(drawn.FINDINGS)}"
        print_facts(facts | {drawn.CHEST_FINDINGS: several})
        return
    if out is None:
        raise ConfigError("The folder to write is missing.", argument="out")
    splits = {"train": train, "val": val, "test": test}
    if name == drawn.CHEST_FINDINGS:
        out = drawn.write_films(out, splits=splits, seed=seed, size=size, missing=missing)
        typer.echo(f"{sum(splits.values())} images of {len(drawn.FINDINGS)} findings -> {out}")
        return
    classes = len(drawn.phantom(name).class_names)
    what = "images"
    if volumes is None:
        drawn.write_folder(name, out, splits=splits, seed=seed, size=size)
    else:
        what = "volumes"
        options = {"slices": volumes, "share": share, "size": size}
        drawn.write_volumes(name, out, splits=splits, seed=seed, **options)
    typer.echo(f"{sum(splits.values()) * classes} {what} of {classes} classes -> {out}")
