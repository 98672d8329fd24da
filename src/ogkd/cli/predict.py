"""`ogkd predict`: one row per image, as CSV or JSON lines."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from ogkd.cli.options import (
    AddressOption,
    BatchSizeOption,
    CpusOption,
    DeviceOption,
    EngineOverride,
    GpusOption,
    ImagesArgument,
    ModelArgument,
    MovedBackbone,
    RayOption,
    SliceOption,
    WorkersOption,
    read_ray,
    refuse_folders,
    require_calibration,
    say,
)
from ogkd.cli.tables import harmless, harmless_path, write_csv
from ogkd.errors import ConfigError
from ogkd.files import storage_errors, write_atomically

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier
    from ogkd.model.decide import Decision


def predict(
    model: ModelArgument,
    images: ImagesArgument,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write (default: standard output)."),
    ] = None,
    format: Annotated[
        Literal["csv", "jsonl"], typer.Option(help="A CSV table, or one JSON object per line.")
    ] = "csv",
    explain: Annotated[
        Path | None, typer.Option(help="Write evidence maps to this folder, one PNG per image.")
    ] = None,
    max_risk: Annotated[
        float | None,
        typer.Option(help="Abstain so that at most this share of the other predictions is wrong."),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Confidence with which --max-risk holds.")
    ] = 0.9,
    coverage: Annotated[
        float | None, typer.Option(help="How often `set` contains the true class (default: 0.9).")
    ] = None,
    sets: Annotated[
        Literal["lac", "aps"], typer.Option(help="Kind of sets: lac (smallest) or aps.")
    ] = "lac",
    backbone: MovedBackbone = None,
    slice: SliceOption = None,
    batch_size: BatchSizeOption = 32,
    device: DeviceOption = "auto",
    engine: EngineOverride = None,
    ray: RayOption = False,
    address: AddressOption = None,
    workers: WorkersOption = None,
    cpus_per_worker: CpusOption = 1.0,
    gpus_per_worker: GpusOption = 0.0,
) -> None:
    """Classify images and print one row for each.

    Columns: path, prediction, probability, abstain, set, unfamiliar, error,
    and the probability of every class.

    A file that cannot be read gets a row with the reason, and the exit code is
    1. `abstain` needs --max-risk, and `set` a calibrated model (`ogkd
    calibrate`). `unfamiliar` marks images unlike everything that the model
    learned from. Volumes without a slice get the one of --slice, or else the
    one that the model was fitted on. For very large folders, --ray spreads
    the work over a cluster.
    """
    from ogkd.images import SliceRule, find_images
    from ogkd.model.classifier import load
    from ogkd.model.decide import Decider, Policy

    ray_workers = read_ray(ray, address, workers, cpus_per_worker, gpus_per_worker)
    refuse_folders(out=out)
    policy = Policy(max_risk, confidence, coverage, sets)
    rule = None if slice is None else SliceRule.parse(slice)
    found = find_images(images)
    classifier = load(model, backbone=backbone, device=device, engine=engine)
    refs = classifier.refs([image.sliced(rule) for image in found])
    require_calibration(classifier, max_risk=max_risk, coverage=coverage)
    decider = Decider(classifier, policy)
    if explain is not None:
        _prepare(explain)
    for note in decider.notes:
        say(note)
    patches = explain is not None
    if ray_workers is None:
        from ogkd.features.encode import encode_files

        batches = encode_files(classifier.backbone, refs, patches=patches, batch_size=batch_size)
    else:
        from ogkd.features.ray_encode import encode_files_on_ray

        batches = encode_files_on_ray(
            classifier.backbone,
            refs,
            place=backbone or classifier.card.backbone.name,
            workers=ray_workers,
            device=device,
            engine=engine or classifier.card.backbone.engine,
            patches=patches,
            batch_size=batch_size,
        )
    failed = strange = 0
    try:
        with _output(out) as file, _bar(out, len(refs)) as advance:
            writer = _WRITERS[format](file, classifier.class_names)
            for number, row in enumerate(decider.decide_batches(batches), start=1):
                failed += row.error is not None
                strange += row.unfamiliar is True
                if explain is not None and row.error is None:
                    _draw(classifier, row, explain, number)
                writer.write(row)
                advance()
    except BrokenPipeError:
        return  # the reader of our output has finished (`| head`)
    if strange:
        say(
            f"Warning: {strange} of {len(refs)} image(s) are unlike everything that the model "
            "learned from (see `unfamiliar`), perhaps of another modality or organ. Do not rely on "
            "these predictions."
        )
    if failed:
        say(f"{failed} of {len(refs)} file(s) could not be read.")
        sys.exit(1)


def _prepare(folder: Path) -> None:
    """Make the folder for evidence maps, and check now that it can be written to."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--explain takes a folder, but {folder} is a file. Choose another name.")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def _draw(classifier: Classifier, row: Decision, folder: Path, number: int) -> None:
    """Write the evidence for the predicted class; the row number makes file names unique."""
    from ogkd.model.explain import draw, evidence_of

    found = evidence_of(classifier, row)
    stem = re.sub(r"[^\w.-]+", "_", Path(str(row.image)).stem, flags=re.ASCII)[:60]
    with write_atomically(folder / f"{number:06}-{stem}.png") as aside:
        draw(found).save(aside, format="PNG")


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[TextIO]:
    """Open standard output, or a file that appears when all rows are in it."""
    if out is None:
        yield sys.stdout
        return
    with write_csv(out) as file:
        yield file


@contextlib.contextmanager
def _bar(out: Path | None, total: int) -> Iterator[Callable[[], None]]:
    """Show progress, unless the rows themselves are printed on the terminal."""
    if out is None and sys.stdout.isatty():
        yield lambda: None
        return
    from ogkd.progress import progress_bar

    with progress_bar("Predicting", total) as bar:
        yield bar.advance


class _CsvWriter:
    """Writes a header and a line per row; no cell can act as a spreadsheet formula."""

    def __init__(self, file: TextIO, class_names: Sequence[str]) -> None:
        self._table = csv.writer(file, lineterminator="\n")
        self._classes = len(class_names)
        fixed = ["path", "prediction", "probability", "abstain", "set", "unfamiliar", "error"]
        self._table.writerow([*fixed, *map(harmless, class_names)])

    def write(self, row: Decision) -> None:
        shares = [""] * self._classes
        if row.probabilities is not None:
            shares = [f"{value:.6f}" for value in row.probabilities]
        self._table.writerow(
            [
                harmless_path(row.image),
                harmless(row.prediction or ""),
                "" if row.probability is None else f"{row.probability:.6f}",
                _yes_or_no(row.abstain),
                harmless(_joined(row.set)),
                _yes_or_no(row.unfamiliar),
                harmless(row.error or ""),
                *shares,
            ]
        )


class _JsonlWriter:
    """Writes one JSON object per line; names are unchanged, and null means unknown."""

    def __init__(self, file: TextIO, class_names: Sequence[str]) -> None:
        self._file = file
        self._names = class_names

    def write(self, row: Decision) -> None:
        shares = None
        if row.probabilities is not None:
            pairs = zip(self._names, row.probabilities, strict=True)
            shares = {name: round(value, 6) for name, value in pairs}
        entry = {
            "path": str(row.image),
            "prediction": row.prediction,
            "probability": None if row.probability is None else round(row.probability, 6),
            "abstain": row.abstain,
            "set": None if row.set is None else list(row.set),
            "unfamiliar": row.unfamiliar,
            "error": row.error,
            "probabilities": shares,
        }
        # ASCII with escapes: valid JSON even if a file name is not valid text.
        self._file.write(json.dumps(entry) + "\n")


_WRITERS: dict[str, type[_CsvWriter] | type[_JsonlWriter]] = {
    "csv": _CsvWriter,
    "jsonl": _JsonlWriter,
}


def _yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _joined(names: Sequence[str] | None) -> str:
    """Join the names of a set; an empty set is not written like an unknown one."""
    return "" if names is None else "|".join(names) or "(none)"
