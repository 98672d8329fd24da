"""`ogkd predict`: one row per image, as CSV or JSON lines."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
    say,
)
from ogkd.cli.tables import harmless, harmless_path, write_csv
from ogkd.errors import ConfigError
from ogkd.files import storage_errors, write_atomically

if TYPE_CHECKING:
    from ogkd.model.calibration import Calibration, SetKind
    from ogkd.model.classifier import Classifier, Prediction


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
    from ogkd.images import find_images, with_slice
    from ogkd.images.address import parse_rule
    from ogkd.model.classifier import load

    ray_workers = read_ray(ray, address, workers, cpus_per_worker, gpus_per_worker)
    refuse_folders(out=out)
    chosen = None if slice is None else parse_rule(slice)
    paths = find_images(images)
    classifier = load(model, backbone=backbone, device=device, engine=engine)
    if rule := chosen or classifier.card.slice:
        paths = [with_slice(path, rule) for path in paths]
    judge = _Judge(
        classifier, max_risk=max_risk, confidence=confidence, coverage=coverage, sets=sets
    )
    if explain is not None:
        _prepare(explain)
    for note in judge.notes:
        say(note)
    failed = strange = 0
    try:
        with _output(out) as file, _bar(out, len(paths)) as advance:
            writer = _WRITERS[format](file, classifier.class_names)
            if ray_workers is None:
                answers = classifier.stream(paths, batch_size=batch_size)
            else:
                from ogkd.features.on_ray import encode_files_on_ray

                card = classifier.card.backbone
                batches = encode_files_on_ray(
                    classifier.backbone,
                    paths,
                    place=backbone or card.name,
                    crew=ray_workers,
                    device=device,
                    engine=engine or card.engine,
                    batch_size=batch_size,
                )
                answers = classifier.answers(batches)
            for number, answer in enumerate(answers, start=1):
                row = judge.row(answer)
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
            f"Warning: {strange} of {len(paths)} image(s) are unlike everything that the model "
            "learned from (see `unfamiliar`), perhaps of another modality or organ. Do not rely on "
            "these predictions."
        )
    if failed:
        say(f"{failed} of {len(paths)} file(s) could not be read.")
        sys.exit(1)


def _prepare(folder: Path) -> None:
    """Make the folder for evidence maps, and check now that it can be written to."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--explain takes a folder, but {folder} is a file. Choose another name.")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def _draw(classifier: Classifier, row: _Row, folder: Path, number: int) -> None:
    """Write the evidence for the predicted class; the row number makes file names unique."""
    from ogkd.model.explain import draw, evidence

    label = classifier.class_names.index(row.prediction or "")
    found = next(evidence(classifier, [row.path], labels=[label]))
    stem = re.sub(r"[^\w.-]+", "_", row.path.stem, flags=re.ASCII)[:60]
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


@dataclass(frozen=True)
class _Row:
    """One image; None stands for what is not known."""

    path: Path
    prediction: str | None = None
    probability: float | None = None
    abstain: bool | None = None
    set: tuple[str, ...] | None = None
    unfamiliar: bool | None = None
    error: str | None = None
    probabilities: tuple[float, ...] | None = None


class _Judge:
    """Turns predictions into rows by the rules that the user asked for; checks those at once."""

    def __init__(
        self,
        classifier: Classifier,
        *,
        max_risk: float | None,
        confidence: float,
        coverage: float | None,
        sets: str,
    ) -> None:
        from ogkd.evaluation.calibrate import engine_note
        from ogkd.model.familiarity import Familiarity, can_judge

        if sets not in ("lac", "aps"):
            raise ConfigError(f"--sets is lac or aps, but got '{sets}'.")
        self._names = classifier.class_names
        self._kind: SetKind = "lac" if sets == "lac" else "aps"
        self._coverage = 0.9 if coverage is None else coverage
        self.notes: list[str] = []
        self.threshold: float | None = None
        if max_risk is not None:
            calibration = _required(classifier, "--max-risk")
            self.threshold = calibration.threshold(max_risk, confidence=confidence)
            self.notes.append(
                f"Abstaining where the probability is below {self.threshold:.4f}: with "
                f"{100 * confidence:g} % confidence, at most {100 * max_risk:g} % of the other "
                "predictions are wrong on images like those of the calibration."
            )
        if coverage is not None:
            _required(classifier, "--coverage")
        self._calibration = classifier.calibration
        if note := engine_note(classifier):
            self.notes.append(f"Note: {note}")
        try:
            self._set([1 / len(self._names)] * len(self._names))
        except ConfigError as error:
            if coverage is not None:
                raise
            self._calibration = None  # nobody asked for sets: go on without them
            self.notes.append(f"Note: the column `set` stays empty. {error}")
        support = classifier.support
        self._familiarity = None
        if support is not None and can_judge(support):
            self._familiarity = Familiarity(support)

    def row(self, answer: Prediction) -> _Row:
        """What is to be said of one prediction."""
        p = answer.probabilities
        if p is None:
            return _Row(answer.path, error=answer.error)
        best = int(p.argmax())
        shares = tuple(map(float, p))
        unfamiliar = None
        if self._familiarity is not None and answer.features is not None:
            unfamiliar = bool(self._familiarity.unfamiliar(answer.features[None])[0])
        return _Row(
            path=answer.path,
            prediction=self._names[best],
            probability=shares[best],
            abstain=None if self.threshold is None else shares[best] < self.threshold,
            set=self._set(shares),
            unfamiliar=unfamiliar,
            probabilities=shares,
        )

    def _set(self, p: Sequence[float]) -> tuple[str, ...] | None:
        if self._calibration is None:
            return None
        inside = self._calibration.sets([p], coverage=self._coverage, kind=self._kind)[0]
        return tuple(name for name, member in zip(self._names, inside, strict=True) if member)


def _required(classifier: Classifier, option: str) -> Calibration:
    if classifier.calibration is None:
        raise ConfigError(
            f"{option} needs a calibrated model, and this one is not: run "
            "`ogkd calibrate MODEL DATA` with labelled images that it did not learn from."
        )
    return classifier.calibration


class _CsvWriter:
    """Writes a header and a line per row; no cell can act as a spreadsheet formula."""

    def __init__(self, file: TextIO, class_names: Sequence[str]) -> None:
        self._table = csv.writer(file, lineterminator="\n")
        self._classes = len(class_names)
        fixed = ["path", "prediction", "probability", "abstain", "set", "unfamiliar", "error"]
        self._table.writerow([*fixed, *map(harmless, class_names)])

    def write(self, row: _Row) -> None:
        shares = [""] * self._classes
        if row.probabilities is not None:
            shares = [f"{value:.6f}" for value in row.probabilities]
        self._table.writerow(
            [
                harmless_path(row.path),
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

    def write(self, row: _Row) -> None:
        shares = None
        if row.probabilities is not None:
            pairs = zip(self._names, row.probabilities, strict=True)
            shares = {name: round(value, 6) for name, value in pairs}
        entry = {
            "path": str(row.path),
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
