"""`ogkd evaluate`: how good is a model on labelled images."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from ogkd.cli.predict_rows import harmless, harmless_path
from ogkd.errors import ConfigError
from ogkd.files import write_atomically, write_json

if TYPE_CHECKING:
    from ogkd.classifier import Classifier
    from ogkd.datasets.manifest import Manifest
    from ogkd.evaluation import Judged
    from ogkd.features.extract import BadFile


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    *,
    split: Annotated[str, typer.Option(help="Which part, where the data has splits.")] = "test",
    graded: Annotated[
        bool | None,
        typer.Option(help="The classes are grades in their order: adds quadratic kappa."),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=0, max=100_000, help="Of the bootstrap; 0 for no intervals.")
    ] = 1000,
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
    """Show how good a model is: metrics with intervals, classes, confusions, certainty.

    With --on-error skip, unreadable files are not judged; they are listed in
    skipped.csv beside --out. Volumes without a slice of their own get the one
    of --slice, or else the one that the model learned from.
    """
    from ogkd.classifier import load
    from ogkd.cli.evaluate_table import lines
    from ogkd.datasets.fetch import resolve_data
    from ogkd.evaluation import describe, judge
    from ogkd.features.usable import SKIPPED, check_on_error, write_skipped
    from ogkd.images.address import parse_rule

    skip = check_on_error(on_error) == "skip"
    rule = None if slice is None else str(parse_rule(slice))
    for option, place in {"--out": out, "--csv": csv_file, "--report": report}.items():
        if place is not None and place.is_dir():
            raise ConfigError(f"{option} {place} is a folder. Give the name of a file in it.")
    manifest = resolve_data(data, root=root, class_names=read_classes(classes))
    classifier = load(model, backbone=backbone, device=device, engine=encoder_engine)
    part, skipped = usable(manifest, split, rule or classifier.card.slice, skip=skip)
    judged = judge(classifier, part, split=split)
    result = describe(
        judged,
        classifier.calibration,
        graded=graded,
        resamples=resamples,
        learned=classifier.card.support_images,
    )
    _warn(result["images"], result["learned_from"], result["calibrated_on"])
    if not manifest.has_splits and not classifier.card.support_images:
        typer.echo(
            f"Note: {data} has no splits, so all of its images are judged. Images that the model "
            "has learned from make it look better than it is.",
            err=True,
        )
    if out is not None:
        write_json(out, result)
        if skip:
            write_skipped(out.with_name(SKIPPED), skipped)
    if csv_file is not None:
        _write_rows(csv_file, classifier, judged, paths=paths)
    if report is not None:
        from ogkd.report import write_report

        command = shlex.join(["ogkd", *sys.argv[1:]])
        write_report(report, classifier, manifest, judged, command=command, result=result)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        for line in lines(result):
            typer.echo(line)


def usable(
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


def _warn(images: int, learned: int, calibrated: int) -> None:
    """Numbers on images that the model knows are too good, and must not pass unnoticed."""
    if learned:
        typer.echo(
            f"Warning: the model learned from {learned} of these {images} images. It looks better "
            "than it is.",
            err=True,
        )
    if calibrated:
        typer.echo(
            f"Warning: the model was calibrated on {calibrated} of these {images} images. Its "
            "probabilities, sets and thresholds look better than they are.",
            err=True,
        )


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
            judged.keys, judged.paths, judged.labels, rows, strict=True
        ):
            best = int(row.argmax())
            shares = [f"{value:.6f}" for value in row]
            where = [key, *([harmless_path(path)] if paths else [])]
            table.writerow([*where, shown[label], shown[best], shares[best], *shares])
