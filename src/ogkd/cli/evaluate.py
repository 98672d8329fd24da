"""`ogkd evaluate`: how good is a model on labelled images."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from ogkd.cli.predict_rows import harmless, harmless_path
from ogkd.errors import ConfigError
from ogkd.files import write_atomically, write_json

if TYPE_CHECKING:
    from ogkd.evaluation import Judged
    from ogkd.model.classifier import Classifier


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    *,
    split: SplitOption = "test",
    graded: GradedOption = None,
    resamples: ResamplesOption = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the JSON here too.")
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write a row for each image here.")
    ] = None,
    paths: Annotated[
        bool, typer.Option("--paths", help="Name the files in --csv; else only their hashes.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML page with plots and images here.")
    ] = None,
    names: NamesOption = False,
    images: ImagesOption = True,
    root: RootOption = None,
    classes: ClassesOption = None,
    slice: SliceOption = None,
    on_error: OnErrorOption = "stop",
    backbone: MovedBackbone = None,
    device: DeviceOption = "auto",
    encoder_engine: EngineOverride = None,
) -> None:
    """Show how good a model is: metrics with intervals, classes, confusions, certainty.

    With --on-error skip, unreadable files are not judged; they are listed in
    skipped.csv beside --out. Volumes without a slice of their own get the one
    of --slice, or else the one that the model learned from.
    """
    from ogkd.cli.evaluate_table import lines

    refuse_folders(out=out, csv=csv_file, report=report)
    if report is None and (names or not images):
        raise ConfigError("--names and --no-images are about --report, which is not given.")
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
    if out is not None:
        write_json(out, found.result)
        found.write_skipped(out)
    if csv_file is not None:
        _write_rows(csv_file, found.classifier, found.judged, paths=paths)
    if report is not None:
        found.write_report(report, names=names, images=images)
    if as_json:
        typer.echo(json.dumps(found.result, indent=2))
    else:
        for line in lines(found.result):
            typer.echo(line)


def _write_rows(place: Path, classifier: Classifier, judged: Judged, *, paths: bool) -> None:
    """A row for each image: its hash (or path too), truth, prediction, probabilities."""
    names = classifier.class_names
    with (
        write_atomically(place) as aside,
        aside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        head = ["image", *(["path"] if paths else [])]
        shown = [harmless(name) for name in names]  # a spreadsheet takes no name for a formula
        table.writerow([*head, "truth", "prediction", "probability", *shown])
        rows = classifier.probabilities(judged.features)
        for key, path, label, row in zip(
            judged.keys, judged.images, judged.labels, rows, strict=True
        ):
            best = int(row.argmax())
            shares = [f"{value:.6f}" for value in row]
            where = [key, *([harmless_path(Path(str(path)))] if paths else [])]
            table.writerow([*where, shown[label], shown[best], shares[best], *shares])
