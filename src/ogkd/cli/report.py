"""`ogkd report`: what a model is worth on labelled images, as one page to read and keep."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ogkd.cli.options import (
    ClassesOption,
    DataArgument,
    DeviceOption,
    ModelArgument,
    RootOption,
    read_classes,
)
from ogkd.errors import ConfigError


def report(
    model: ModelArgument,
    data: DataArgument,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    split: Annotated[str, typer.Option(help="Which part, where the data has splits.")] = "test",
    graded: Annotated[
        bool | None,
        typer.Option(help="The classes are grades in their order: adds quadratic kappa."),
    ] = None,
    names: Annotated[
        bool, typer.Option("--names", help="Show file names and whole paths (default: none).")
    ] = False,
    images: Annotated[
        bool, typer.Option(help="Show small copies of images: mistakes and examples.")
    ] = True,
    check: Annotated[
        bool, typer.Option(help="Check the data too, which reads all of its images.")
    ] = True,
    root: RootOption = None,
    classes: ClassesOption = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", "-b", help="Where the backbone is, if it moved.")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Write one self-contained HTML page: summary, numbers, plots, mistakes, data, settings.

    The page loads nothing from elsewhere. It shows small copies of images, which are data
    of your patients: treat it as you treat them, or leave them out with --no-images.
    """
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder. Give the name of a file in it.")
    from ogkd.audit import audit_data
    from ogkd.classifier import load
    from ogkd.datasets.fetch import locate_benchmark, named_benchmark, resolve_data
    from ogkd.evaluation import describe, judge
    from ogkd.report import write_report

    manifest = resolve_data(data, root=root, class_names=read_classes(classes))
    classifier = load(model, backbone=backbone, device=device)
    judged = judge(classifier, manifest, split=split)
    result = describe(
        judged, classifier.calibration, graded=graded, learned=classifier.card.support_images
    )
    audit = None
    if check:
        named = named_benchmark(data)
        place = data if named is None else locate_benchmark(named) or data
        audit = audit_data(manifest, root=place if place.is_dir() else place.parent)
    write_report(
        out,
        classifier,
        manifest,
        judged,
        command=shlex.join(["ogkd", *sys.argv[1:]]),
        show_names=names,
        audit=audit,
        images=images,
        result=result,
    )
    typer.echo(f"Report on {len(judged.labels)} images: {out}")
