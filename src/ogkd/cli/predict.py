"""`ogkd predict`: one row for each image, as CSV or JSON lines."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ogkd.cli.cluster_options import (
    AddressOption,
    ClusterEngineOption,
    CpusOption,
    GpusOption,
    WorkersOption,
    read_crew,
)
from ogkd.cli.model_options import MovedBackbone
from ogkd.cli.options import DeviceOption, EngineOverride, ModelArgument, SliceOption
from ogkd.cli.predict_rows import FORMATS
from ogkd.errors import ConfigError
from ogkd.files import storage_errors, write_atomically
from ogkd.progress import progress_bar

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier
    from ogkd.model.decide import Decision


def predict(
    model: ModelArgument,
    images: Annotated[
        list[Path], typer.Argument(help="Image files or folders, searched at any depth.")
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file for the rows (default: the screen).")
    ] = None,
    format: Annotated[str, typer.Option(help="csv, or jsonl: one JSON object a line.")] = "csv",
    explain: Annotated[
        Path | None, typer.Option(help="A folder for evidence maps, one PNG for each image.")
    ] = None,
    max_risk: Annotated[
        float | None,
        typer.Option(help="Abstain so that at most this share of the other predictions is wrong."),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="How sure --max-risk has to be, over calibration images.")
    ] = 0.9,
    coverage: Annotated[
        float | None, typer.Option(help="How often `set` holds the true class (default: 0.9).")
    ] = None,
    sets: Annotated[str, typer.Option(help="How sets are made: lac (smallest) or aps.")] = "lac",
    backbone: MovedBackbone = None,
    slice: SliceOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images encoded at once.")] = 32,
    device: DeviceOption = "auto",
    encoder_engine: EngineOverride = None,
    engine: ClusterEngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    cpus_per_worker: CpusOption = 1.0,
    gpus_per_worker: GpusOption = 0.0,
) -> None:
    """Print a CSV: path, prediction, probability, abstain, set, unfamiliar, error, every class.

    A file that cannot be read gets a row with the reason, and the exit code is
    1. `abstain` is filled with --max-risk, `set` for calibrated models (`ogkd
    calibrate`), `unfamiliar` says which images are unlike all that the model
    learned from. Volumes without a slice of their own get the one of --slice,
    or else the one that the model learned from. Very large folders: --engine
    ray spreads the work over a cluster.
    """
    from ogkd.features.encode import encode_files
    from ogkd.images import SliceRule, find_images
    from ogkd.model.classifier import load
    from ogkd.model.decide import Decider, Policy

    if format not in FORMATS:
        raise ConfigError(f"--format is csv or jsonl, but got '{format}'.")
    crew = read_crew(engine, address, workers, cpus_per_worker, gpus_per_worker)
    chosen = None if slice is None else SliceRule.parse(slice)
    policy = Policy(max_risk, confidence, coverage, sets)  # type: ignore[arg-type]
    paths = find_images(images)
    classifier = load(model, backbone=backbone, device=device, engine=encoder_engine)
    paths = classifier.refs([path.sliced(chosen) for path in paths])
    decider = Decider(classifier, policy)
    if out is not None and out.is_dir():
        raise ConfigError(f"--out takes a file for the rows, but {out} is a folder.")
    if explain is not None:
        _prepare(explain)
    for note in decider.notes:
        typer.echo(note, err=True)
    failed = strange = 0
    try:
        with _output(out) as file, _bar(out, len(paths)) as advance:
            writer = FORMATS[format](file, classifier.class_names)
            if crew is None:
                batches = encode_files(
                    classifier.backbone, paths, patches=explain is not None, batch_size=batch_size
                )
            else:
                from ogkd.features.ray_encode import encode_files_on_ray

                card = classifier.card.backbone
                batches = encode_files_on_ray(
                    classifier.backbone,
                    paths,
                    place=backbone or card.name,
                    workers=crew,
                    device=device,
                    engine=encoder_engine or card.engine,
                    patches=explain is not None,
                    batch_size=batch_size,
                )
            for number, row in enumerate(decider.decide_batches(batches), start=1):
                failed += row.error is not None
                strange += row.unfamiliar is True
                if explain is not None and row.error is None:
                    _draw(classifier, row, explain, number)
                writer.write(row)
                advance()
    except BrokenPipeError:
        return  # the reader has seen enough (`| head`)
    if strange:
        typer.echo(
            f"Warning: {strange} of {len(paths)} image(s) are unlike all that the model learned "
            "from (see `unfamiliar`): another modality or organ? Do not rely on these predictions.",
            err=True,
        )
    if failed:
        typer.echo(f"{failed} of {len(paths)} file(s) could not be read.", err=True)
        sys.exit(1)


def _prepare(folder: Path) -> None:
    """Make the folder for evidence maps, and find out now whether it can be written to."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--explain takes a folder, but {folder} is a file. Name another one.")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def _draw(classifier: Classifier, row: Decision, folder: Path, number: int) -> None:
    """Write the evidence for the predicted class; the row's number keeps names apart."""
    from ogkd.model.explain import draw, evidence_of

    found = evidence_of(classifier, row)
    stem = re.sub(r"[^\w.-]+", "_", Path(str(row.image)).stem, flags=re.ASCII)[:60]
    with write_atomically(folder / f"{number:06}-{stem}.png") as aside:
        draw(found).save(aside, format="PNG")


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears when all rows are in it."""
    if out is None:
        yield sys.stdout
        return
    with (
        write_atomically(out) as aside,
        # A name that is not valid text is written as the bytes it is.
        aside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        yield file


@contextlib.contextmanager
def _bar(out: Path | None, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar, but not where the rows themselves appear on the terminal."""
    if out is None and sys.stdout.isatty():
        yield lambda: None
        return
    with progress_bar("Predicting", total) as bar:
        yield bar.advance
