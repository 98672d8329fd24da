"""`ogkd report`: what a model is worth on labelled images, as one page to read and keep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ogkd.cli.judging import judge_data, refuse_folders
from ogkd.cli.model_options import (
    GradedOption,
    ImagesOption,
    MovedBackbone,
    NamesOption,
    ResamplesOption,
    SplitOption,
)
from ogkd.cli.options import (
    ClassesOption,
    DataArgument,
    DeviceOption,
    EngineOverride,
    ModelArgument,
    OnErrorOption,
    RootOption,
    SliceOption,
)


def report(
    model: ModelArgument,
    data: DataArgument,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    split: SplitOption = "test",
    graded: GradedOption = None,
    resamples: ResamplesOption = 1000,
    names: NamesOption = False,
    images: ImagesOption = True,
    check: Annotated[
        bool, typer.Option(help="Check the data too, which reads all of its images.")
    ] = True,
    root: RootOption = None,
    classes: ClassesOption = None,
    slice: SliceOption = None,
    on_error: OnErrorOption = "stop",
    backbone: MovedBackbone = None,
    device: DeviceOption = "auto",
    encoder_engine: EngineOverride = None,
) -> None:
    """Write one self-contained HTML page: summary, numbers, plots, mistakes, data, settings.

    The page loads nothing from elsewhere. It shows small copies of images, which are data
    of your patients: treat it as you treat them, or leave them out with --no-images.
    With --on-error skip, unreadable files are listed in skipped.csv beside --out.
    """
    from ogkd.audit import audit_data
    from ogkd.datasets.fetch import locate_benchmark, named_benchmark

    refuse_folders(out=out)
    found = judge_data(
        model,
        data,
        split=split,
        graded=graded,
        resamples=resamples,
        root=root,
        classes=classes,
        slice=slice,
        on_error=on_error,
        backbone=backbone,
        device=device,
        encoder_engine=encoder_engine,
    )
    audit = None
    if check:
        named = named_benchmark(data)
        place = data if named is None else locate_benchmark(named) or data
        audit = audit_data(found.manifest, root=place if place.is_dir() else place.parent)
    found.write_report(out, names=names, images=images, audit=audit)
    found.write_skipped(out)
    typer.echo(f"Report on {len(found.judged.labels)} images: {out}")
