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
from ogkd.cells import BOM, harmless, harmless_path
from ogkd.cli import options as opt
from ogkd.cli.output import say, write_csv
from ogkd.errors import ConfigError
from ogkd.files import storage_errors, write_atomically
from ogkd.fitting.request import FitRequest

if TYPE_CHECKING:
    from ogkd.features.encode import EncodedBatch
    from ogkd.model.classifier import Classifier
    from ogkd.model.decide import Decision
    from ogkd.progress import Bar

_YES_OR_NO = {None: "", True: "yes", False: "no"}


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
            help="How frequent the classes are (default: equally).",
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
    With it the guarantees of a calibration do not hold and are not given.

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
    policy = Policy(max_risk, confidence, coverage, sets, opt.read_prior(prior), sensitivity)
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
    explained = classifier.head.ranking is not None or prior is not None  # by the library
    needs = None if explained else coverage
    if not classifier.card.findings:  # which the library refuses or explains itself
        opt.require_calibration(classifier, max_risk=max_risk, coverage=needs)
    decider = Decider(classifier, policy)
    if explain is not None:
        _prepare(explain)
    for note in decider.notes:
        say(note)
    said = len(decider.notes)
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
            for note in decider.notes[said:]:
                say(note)
            if excel and out is None:
                file.write(BOM)
            findings, bagged = classifier.card.findings, rule is not None
            write = _writer(file, classifier.class_names, format, findings=findings, bags=bagged)
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
    file = folder / f"{number:06}-{stem}.png"
    with write_atomically(file, suffixes=(".png",)) as aside:
        ogkd.draw(found).save(aside, format="PNG")


def _writer(
    file: TextIO, names: Sequence[str], format: str, *, findings: bool, bags: bool
) -> Callable[[Decision], object]:
    """Write the header of a table, if it is one; returns what writes a row."""
    from ogkd.model.decide import Decision

    if format == "jsonl":
        # ASCII with escapes: valid JSON even if a file name is not valid text.
        return lambda row: file.write(json.dumps(_entry(row, names, bags=bags)) + "\n")
    table = csv.writer(file, lineterminator="\n")

    def cells(row: Decision) -> list[tuple[str, str]]:
        return _finding_cells(row, names) if findings else _class_cells(row, names, bags=bags)

    table.writerow([harmless(column) for column, _ in cells(Decision())])
    return lambda row: table.writerow([cell for _, cell in cells(row)])


def _class_cells(row: Decision, names: Sequence[str], *, bags: bool) -> list[tuple[str, str]]:
    """Columns and cells of a row; no cell can act as a spreadsheet formula."""
    # An empty set is not written like an unknown one.
    members = "" if row.set is None else "|".join(row.set) or "(none)"
    shares = row.probabilities or [None] * len(names)
    cells = [
        ("path", harmless_path(row.image if row.pictures is None else str(row.bag))),
        ("prediction", harmless(row.prediction or "")),
        ("probability", _number(row.probability)),
        ("abstain", _YES_OR_NO[row.abstain]),
        ("set", harmless(members)),
        ("unfamiliar", _YES_OR_NO[row.unfamiliar]),
        ("error", harmless(row.error or "")),
    ]
    if bags:
        deciding = " | ".join(f"{one.image} ({one.share:.3f})" for one in row.decided_by)
        cells += [
            ("bag", harmless(row.bag or "")),
            ("pictures", "" if row.pictures is None else str(row.pictures)),
            ("weight", _number(row.weight)),
            ("decided_by", harmless(deciding)),
        ]
    return [*cells, *zip(names, map(_number, shares), strict=True)]


def _finding_cells(row: Decision, names: Sequence[str]) -> list[tuple[str, str]]:
    """The same of several findings: for each the answer and its probability."""
    answers = row.answers or [""] * len(names)
    shares = row.probabilities or [None] * len(names)
    unsure = [name for name, said in zip(names, answers, strict=True) if said == "unsure"]
    cells = [
        ("path", harmless_path(row.image)),
        ("prediction", harmless(row.prediction or "")),
        ("unsure", harmless("|".join(unsure))),
        ("unfamiliar", _YES_OR_NO[row.unfamiliar]),
        ("error", harmless(row.error or "")),
    ]
    for name, said, share in zip(names, answers, shares, strict=True):
        cells += [(name, said), (f"{name} probability", _number(share))]
    return cells


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def _entry(row: Decision, names: Sequence[str], *, bags: bool) -> dict[str, Any]:
    """A row as a JSON object; names are unchanged, and null means unknown."""
    shares = None
    if row.probabilities is not None:
        pairs = zip(names, row.probabilities, strict=True)
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
        entry["answers"] = dict(zip(names, row.answers, strict=True))
    if bags:
        deciding = [{"path": str(s.image), "share": round(s.share, 6)} for s in row.decided_by]
        entry |= {"bag": row.bag, "pictures": row.pictures, "weight": row.weight}
        entry |= {"decided_by": deciding}
    return entry
