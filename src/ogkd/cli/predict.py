"""`ogkd predict`: one row per image, as CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

from typer import Option

import ogkd
from ogkd.cells import BOM
from ogkd.cli import options as opt
from ogkd.cli.output import harmless, harmless_path, say, write_csv
from ogkd.errors import ConfigError
from ogkd.files import storage_errors, write_atomically
from ogkd.fitting.request import FitRequest

if TYPE_CHECKING:
    from ogkd.features.encode import EncodedBatch
    from ogkd.model.classifier import Classifier
    from ogkd.model.decide import Decision
    from ogkd.progress import Bar


def predict(
    model: opt.ModelArgument,
    images: Annotated[list[Path] | None, opt.IMAGES] = None,
    *,
    zero_shot: Annotated[
        str | None,
        Option(
            metavar="CLASSES",
            help="Instead of a model: class names, separated by commas. All arguments are images.",
        ),
    ] = None,
    prompts: Annotated[
        str | None, Option(help="With --zero-shot: texts of the classes, as for `ogkd fit`.")
    ] = None,
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
    prior: Annotated[
        str | None,
        Option(
            metavar="CLASS=SHARE,...",
            help="How frequent the classes are, or `estimate` from the images (default: equally).",
        ),
    ] = None,
    sensitivity: Annotated[
        float | None,
        Option(
            help="Several findings: answer no so that this share of the images with one is kept "
            "(default: that of `ogkd calibrate`)."
        ),
    ] = None,
    bags: Annotated[
        str | None,
        Option(help="What makes a bag, if not what the model was fitted on: as for `ogkd fit`."),
    ] = None,
    slices: Annotated[
        str | None, Option(help="Which slices, if not those that the model was fitted on.")
    ] = None,
    pictures: Annotated[
        bool, Option("--pictures", help="Also a row for each picture of a bag, after its own.")
    ] = False,
    together: Annotated[
        bool, Option("--together", help="Learn from all of these images before answering them.")
    ] = False,
    excel: opt.ExcelOption = False,
    backbone: Annotated[
        str | None,
        Option(
            "--backbone",
            "-b",
            help="Where the model's backbone is, if it has moved; with --zero-shot, its name, "
            "folder or hub id (default: the best one on this machine).",
        ),
    ] = None,
    engine: opt.EngineOverride = None,
    encoding: opt.EncodingOptions,
) -> None:
    """Classify images and print one row for each.

    Columns: path, prediction, probability, abstain, set, unfamiliar, error,
    and the probability of every class.

    A file that cannot be read gets a row with the reason, and the exit code is
    1. `abstain` needs --max-risk and a calibrated model (`ogkd calibrate`);
    `set` that, or a model that learned from enough images. `unfamiliar` marks
    images unlike everything that the model learned from. Volumes without a
    slice get the one of --slice, or else the one that the model was fitted on.
    A model of several findings prints for each of them yes, no or unsure, and its
    probability. For very large folders, --ray spreads the work over a cluster.

    A model that was fitted on bags of pictures (`ogkd fit --bags` or --slices)
    gives a row for each bag, with the pictures that decided it. Where a column
    of a table makes a bag, give such a table for IMAGES.

    --prior reweights probabilities where classes are not equally frequent.
    With --together, or --prior estimate, answers depend on the whole batch;
    with either option, the guarantees of a calibration do not hold and are not given.

    Without any labelled image: `ogkd predict --zero-shot "normal, cataract"
    IMAGES...` compares images with the texts of classes. Nothing is learned,
    and the probabilities are not calibrated.
    """
    from ogkd.backbones.builtin import builtin_warning
    from ogkd.datasets.bags import grouped
    from ogkd.images.ref import advice_once
    from ogkd.model.bags import decide_bags
    from ogkd.model.decide import Decider
    from ogkd.model.policy import Policy
    from ogkd.progress import progress_bar

    encoding.cluster()  # refuses what cannot work, before anything is read
    opt.refuse_folders(out=out)
    opt.refuse_excel(excel, format)
    policy = Policy(
        max_risk, confidence, coverage, sets, opt.read_prior(prior), together, sensitivity
    )
    if zero_shot is None:
        if prompts is not None:
            raise ConfigError("--prompts only applies to --zero-shot, which is not given.")
        if not images:
            raise ConfigError(
                f"Give image files or folders after the model: ogkd predict {model} IMAGES..."
            )
        classifier = ogkd.load(model, backbone=backbone, device=encoding.device, engine=engine)
        rule = opt.bag_rule(classifier.card, bags, slices, pictures=pictures)
        if rule is not None:
            named = grouped(encoding.find_bags(images, rule), rule)
            refs = [ref for _, ref in named]
        else:
            refs = classifier.refs(encoding.find(images))
    else:
        _refuse_guarantees(max_risk=max_risk, coverage=coverage, sensitivity=sensitivity)
        if bags is not None or slices is not None or pictures:
            raise ConfigError("Zero-shot answers single images. Fit a model to answer bags.")
        found = encoding.find([model, *(images or [])])
        classifier = ogkd.zero_shot(
            opt.read_classes(zero_shot) or [],
            backbone=backbone or FitRequest.backbone,
            prompts=prompts,
            images=found if backbone is None else (),  # else it warns now, and below again
            device=encoding.device,
            engine=engine or FitRequest.engine,
            say=say,
        )
        say(
            f"Zero-shot with {classifier.card.backbone.short_name}: nothing was learned from "
            "images, and the probabilities are not calibrated."
        )
        refs, rule = classifier.refs(found), None
    needs = None if classifier.head.ranking is not None else coverage
    if not classifier.card.findings:  # which the library refuses or explains itself
        opt.require_calibration(classifier, max_risk=max_risk, coverage=needs)
    decider = Decider(classifier, policy)
    if explain is not None:
        _prepare(explain)
    for note in decider.notes:
        say(note)
    told = len(decider.notes)
    card = classifier.card.backbone
    batches = encoding.encode(
        classifier.backbone,
        refs,
        place=backbone or card.name,
        engine=engine or card.engine,
        patches=explain is not None and rule is None,
        deep=classifier.deep,
    )
    failed = strange = real = number = 0
    install = ""
    output: AbstractContextManager[TextIO] = nullcontext(sys.stdout)
    bars: AbstractContextManager[Bar | None] = progress_bar("Predicting", len(refs))
    if out is not None:
        output = write_csv(out, excel=excel)
    elif sys.stdout.isatty():
        bars = nullcontext()  # the rows themselves are printed on the terminal
    try:
        with output as file, bars as bar:
            rows = (
                decider.decide_batches(_counted(batches, bar))
                if rule is None
                else decide_bags(
                    decider, _counted(batches, bar), [name for name, _ in named], pictures=pictures
                )
            )
            # What cannot be answered fails before anything is written.
            rows = chain([next(rows)], rows)
            for note in decider.notes[told:]:
                say(note)
            if excel and out is None:
                file.write(BOM)
            csv_of = _findings_csv if classifier.card.findings else _csv
            write = (csv_of if format == "csv" else _jsonl)(
                file, classifier.class_names, bags=rule is not None
            )
            for number, row in enumerate(rows, start=1):
                failed += row.error is not None
                install = install or advice_once([row.error or ""])[1]
                strange += row.unfamiliar is True and not row.not_phantom
                real += row.not_phantom is True
                if explain is not None and row.error is None and row.weight is None:
                    _draw(classifier, row, explain, number)
                write(row)
    except BrokenPipeError:
        return  # the reader of our output has finished (`| head`)
    asked = len(refs) if rule is None else number
    if warning := builtin_warning(real, asked - failed):
        say(f"WARNING: {warning}")
    if strange:
        say(
            f"Warning: {strange} of {asked} image(s) are unlike everything that the model "
            "learned from (see `unfamiliar`), perhaps of another modality or organ. Do not rely on "
            "these predictions."
        )
    if failed:
        say(f"{failed} of {asked} file(s) could not be read. {install}".rstrip())
        sys.exit(1)


def _counted(batches: Iterable[EncodedBatch], bar: Bar | None) -> Iterator[EncodedBatch]:
    for batch in batches:
        yield batch
        if bar is not None:
            bar.advance(len(batch.images))


def _refuse_guarantees(**wanted: float | None) -> None:
    for option, value in wanted.items():
        if value is not None:
            raise ConfigError(
                f"--{option.replace('_', '-')} needs a calibrated model, and zero-shot has none. "
                "With labelled images: `ogkd fit DATA -m zero-shot-ensemble -o MODEL`, then `ogkd "
                "calibrate MODEL DATA`, then predict with that model."
            )


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
    from ogkd.features import encode_files
    from ogkd.model.explain import evidence_of

    if row.bag is not None and row.image is not None:  # the picture that decided it
        [batch] = encode_files(classifier.backbone, [row.image], patches=True, deep=classifier.deep)
        patches = None if batch.features is None else batch.features.patches
        if patches is None or batch.crops is None:
            return
        row = replace(row, patches=patches[0].cpu(), crop=batch.crops[0])
    found = evidence_of(classifier, row)
    stem = re.sub(r"[^\w.-]+", "_", Path(str(row.image)).stem, flags=re.ASCII)[:60]
    with write_atomically(folder / f"{number:06}-{stem}.png") as aside:
        ogkd.draw(found).save(aside, format="PNG")


def _csv(
    file: TextIO, class_names: Sequence[str], *, bags: bool = False
) -> Callable[[Decision], None]:
    """Write a header and then a line per row; no cell can act as a spreadsheet formula."""
    table = csv.writer(file, lineterminator="\n")
    fixed = ["path", "prediction", "probability", "abstain", "set", "unfamiliar", "error"]
    more = ["bag", "pictures", "weight", "decided_by"] if bags else []
    table.writerow([*fixed, *more, *map(harmless, class_names)])
    yes_or_no = {None: "", True: "yes", False: "no"}

    def write(row: Decision) -> None:
        # An empty set is not written like an unknown one.
        names = "" if row.set is None else "|".join(row.set) or "(none)"
        shares = [""] * len(class_names)
        if row.probabilities is not None:
            shares = [f"{value:.6f}" for value in row.probabilities]
        table.writerow(
            [
                harmless_path(row.image if row.pictures is None else str(row.bag)),
                harmless(row.prediction or ""),
                "" if row.probability is None else f"{row.probability:.6f}",
                yes_or_no[row.abstain],
                harmless(names),
                yes_or_no[row.unfamiliar],
                harmless(row.error or ""),
                *(_of_bag(row) if bags else ()),
                *shares,
            ]
        )

    return write


def _findings_csv(
    file: TextIO, class_names: Sequence[str], *, bags: bool = False
) -> Callable[[Decision], None]:
    """The same of several findings: for each the answer and its probability."""
    table = csv.writer(file, lineterminator="\n")
    names = list(class_names)
    each = [harmless(column) for name in names for column in (name, f"{name} probability")]
    table.writerow(["path", "prediction", "unsure", "unfamiliar", "error", *each])

    def write(row: Decision) -> None:
        answers = row.answers or [""] * len(names)
        shares = [f"{p:.6f}" for p in row.probabilities or ()] or [""] * len(names)
        unsure = [name for name, said in zip(names, answers, strict=True) if said == "unsure"]
        table.writerow(
            [
                harmless_path(row.image),
                harmless(row.prediction or ""),
                harmless("|".join(unsure)),
                {None: "", True: "yes", False: "no"}[row.unfamiliar],
                harmless(row.error or ""),
                *(cell for pair in zip(answers, shares, strict=True) for cell in pair),
            ]
        )

    return write


def _of_bag(row: Decision) -> list[str]:
    """The cells that only rows of bags and of their pictures have."""
    deciding = " | ".join(f"{one.image} ({one.share:.3f})" for one in row.decided_by)
    return [
        harmless(row.bag or ""),
        "" if row.pictures is None else str(row.pictures),
        "" if row.weight is None else f"{row.weight:.6f}",
        harmless(deciding),
    ]


def _jsonl(
    file: TextIO, class_names: Sequence[str], *, bags: bool = False
) -> Callable[[Decision], None]:
    """Write one JSON object per line; names are unchanged, and null means unknown."""

    def write(row: Decision) -> None:
        shares = None
        if row.probabilities is not None:
            pairs = zip(class_names, row.probabilities, strict=True)
            shares = {name: round(value, 6) for name, value in pairs}
        entry: dict[str, Any] = {
            "path": str(row.bag if row.pictures is not None else row.image),
            "prediction": row.prediction,
            "probability": None if row.probability is None else round(row.probability, 6),
            "abstain": row.abstain,
            "set": None if row.set is None else list(row.set),
            "unfamiliar": row.unfamiliar,
            "error": row.error,
            "probabilities": shares,
        }
        if row.answers is not None:
            entry["answers"] = dict(zip(class_names, row.answers, strict=True))
        if bags:
            deciding = [{"path": str(s.image), "share": round(s.share, 6)} for s in row.decided_by]
            entry |= {"bag": row.bag, "pictures": row.pictures, "weight": row.weight}
            entry |= {"decided_by": deciding}
        # ASCII with escapes: valid JSON even if a file name is not valid text.
        file.write(json.dumps(entry) + "\n")

    return write
