"""`ogkd predict`: one CSV row for each image."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ogkd.cli.options import DeviceOption, EngineOverride, ModelArgument, SliceOption
from ogkd.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ogkd.classifier import Classifier, Prediction


def predict(
    model: ModelArgument,
    images: Annotated[
        list[Path], typer.Argument(help="Image files or folders, searched at any depth.")
    ],
    *,
    backbone: Annotated[
        str | None, typer.Option("--backbone", "-b", help="Where the backbone is, if it moved.")
    ] = None,
    slice: SliceOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images encoded at once.")] = 32,
    device: DeviceOption = "auto",
    encoder_engine: EngineOverride = None,
) -> None:
    """Print a CSV: path, prediction, probability, error, one column per class.

    Rows go to standard output: add `> predictions.csv` to keep them. A file
    that cannot be read gets a row with the reason, and the exit code is 1.
    Volumes without a slice of their own get the one of --slice, or else the
    one that the model learned from.
    """
    from ogkd.classifier import load
    from ogkd.images import find_images, with_slice
    from ogkd.images.address import parse_rule

    chosen = None if slice is None else parse_rule(slice)
    paths = find_images(images)
    classifier = load(model, backbone=backbone, device=device, engine=encoder_engine)
    if rule := chosen or classifier.card.slice:
        paths = [with_slice(path, rule) for path in paths]
    try:
        failed = _write(classifier, paths, batch_size)
    except BrokenPipeError:
        return  # the reader has seen enough (`| head`)
    if failed:
        typer.echo(f"{failed} of {len(paths)} file(s) could not be read.", err=True)
        sys.exit(1)


def _write(classifier: Classifier, paths: list[Path], batch_size: int) -> int:
    """Write the rows as they come; return how many files could not be read."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    names = classifier.class_names
    table.writerow(["path", "prediction", "probability", "error", *names])
    failed = 0
    for answer in _watched(classifier.stream(paths, batch_size=batch_size), len(paths)):
        if answer.probabilities is None:
            failed += 1
            table.writerow([answer.path, "", "", answer.error, *[""] * len(names)])
            continue
        best = int(answer.probabilities.argmax())
        shares = [f"{value:.6f}" for value in answer.probabilities]
        table.writerow([answer.path, names[best], shares[best], "", *shares])
    return failed


def _watched(answers: Iterator[Prediction], total: int) -> Iterator[Prediction]:
    """A progress bar, but not where the rows themselves appear on the terminal."""
    if sys.stdout.isatty():
        yield from answers
        return
    with progress_bar("Predicting", total) as bar:
        for answer in answers:
            yield answer
            bar.advance()
