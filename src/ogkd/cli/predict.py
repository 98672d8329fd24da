"""`ogkd predict`: one row per image, as CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

from typer import Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.output import harmless, harmless_path, say, write_csv
from ogkd.errors import ConfigError
from ogkd.files import storage_errors, write_atomically

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier
    from ogkd.model.decide import Decision
    from ogkd.progress import Bar


def predict(
    model: opt.ModelArgument,
    images: Annotated[list[Path], opt.IMAGES],
    *,
    out: Annotated[
        Path | None, Option("--out", "-o", help="The file to write (default: standard output).")
    ] = None,
    format: Annotated[
        Literal["csv", "jsonl"], Option(help="A CSV table, or one JSON object per line.")
    ] = "csv",
    explain: Annotated[
        Path | None, Option(help="Write evidence maps to this folder, one PNG per image.")
    ] = None,
    max_risk: Annotated[
        float | None,
        Option(help="Abstain so that at most this share of the other predictions is wrong."),
    ] = None,
    confidence: Annotated[float, Option(help="Confidence with which --max-risk holds.")] = 0.9,
    coverage: Annotated[
        float | None, Option(help="How often `set` contains the true class (default: 0.9).")
    ] = None,
    sets: Annotated[
        Literal["lac", "aps"], Option(help="Kind of sets: lac (smallest) or aps.")
    ] = "lac",
    backbone: opt.MovedBackbone = None,
    engine: opt.EngineOverride = None,
    encoding: opt.EncodingOptions,
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
    from ogkd.model.decide import Decider, Policy
    from ogkd.progress import progress_bar

    encoding.cluster()  # refuses what cannot work, before anything is read
    opt.refuse_folders(out=out)
    policy = Policy(max_risk, confidence, coverage, sets)
    found = encoding.find(images)
    classifier = ogkd.load(model, backbone=backbone, device=encoding.device, engine=engine)
    refs = classifier.refs(found)
    opt.require_calibration(classifier, max_risk=max_risk, coverage=coverage)
    decider = Decider(classifier, policy)
    if explain is not None:
        _prepare(explain)
    for note in decider.notes:
        say(note)
    card = classifier.card.backbone
    batches = encoding.encode(
        classifier.backbone,
        refs,
        place=backbone or card.name,
        engine=engine or card.engine,
        patches=explain is not None,
    )
    failed = strange = 0
    output: AbstractContextManager[TextIO] = nullcontext(sys.stdout)
    bars: AbstractContextManager[Bar | None] = progress_bar("Predicting", len(refs))
    if out is not None:
        output = write_csv(out)
    elif sys.stdout.isatty():
        bars = nullcontext()  # the rows themselves are printed on the terminal
    try:
        with output as file, bars as bar:
            write = (_csv if format == "csv" else _jsonl)(file, classifier.class_names)
            for number, row in enumerate(decider.decide_batches(batches), start=1):
                failed += row.error is not None
                strange += row.unfamiliar is True
                if explain is not None and row.error is None:
                    _draw(classifier, row, explain, number)
                write(row)
                if bar is not None:
                    bar.advance()
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
    from ogkd.model.explain import evidence_of

    found = evidence_of(classifier, row)
    stem = re.sub(r"[^\w.-]+", "_", Path(str(row.image)).stem, flags=re.ASCII)[:60]
    with write_atomically(folder / f"{number:06}-{stem}.png") as aside:
        ogkd.draw(found).save(aside, format="PNG")


def _csv(file: TextIO, class_names: Sequence[str]) -> Callable[[Decision], None]:
    """Write a header and then a line per row; no cell can act as a spreadsheet formula."""
    table = csv.writer(file, lineterminator="\n")
    fixed = ["path", "prediction", "probability", "abstain", "set", "unfamiliar", "error"]
    table.writerow([*fixed, *map(harmless, class_names)])
    yes_or_no = {None: "", True: "yes", False: "no"}

    def write(row: Decision) -> None:
        # An empty set is not written like an unknown one.
        names = "" if row.set is None else "|".join(row.set) or "(none)"
        shares = [""] * len(class_names)
        if row.probabilities is not None:
            shares = [f"{value:.6f}" for value in row.probabilities]
        table.writerow(
            [
                harmless_path(row.image),
                harmless(row.prediction or ""),
                "" if row.probability is None else f"{row.probability:.6f}",
                yes_or_no[row.abstain],
                harmless(names),
                yes_or_no[row.unfamiliar],
                harmless(row.error or ""),
                *shares,
            ]
        )

    return write


def _jsonl(file: TextIO, class_names: Sequence[str]) -> Callable[[Decision], None]:
    """Write one JSON object per line; names are unchanged, and null means unknown."""

    def write(row: Decision) -> None:
        shares = None
        if row.probabilities is not None:
            pairs = zip(class_names, row.probabilities, strict=True)
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
        file.write(json.dumps(entry) + "\n")

    return write
