"""`ogkd predict`: one row per case, as CSV or JSON lines."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

from typer import Option

import ogkd
from ogkd.cells import escape_path
from ogkd.cli import options as opt
from ogkd.cli.options import say, write_rows
from ogkd.errors import ConfigError
from ogkd.files import storage_errors, write_atomically
from ogkd.fitting.request import FitRequest

if TYPE_CHECKING:
    from ogkd.data.case import Case
    from ogkd.data.tables import Sheet
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
            help="Instead of a model: class names, separated by commas (a name with a comma in "
            "double quotes). All arguments are images.",
        ),
    ] = None,
    prompts: Annotated[
        str | None, Option(help="With --zero-shot: texts of the classes, as for `ogkd fit`.")
    ] = None,
    out: Annotated[
        Path | None,
        opt.output_file(
            "--out", "-o", help="The file to write: .xlsx or text (default: standard output)."
        ),
    ] = None,
    format: Annotated[
        Literal["csv", "jsonl"], Option(help="A table, or one JSON object per line.")
    ] = "csv",
    only_new: Annotated[
        bool,
        Option("--only-new", help="Add to --out the images whose path is not in it yet."),
    ] = False,
    explain: Annotated[
        Path | None, Option(help="Write evidence maps to this folder, one PNG per case.")
    ] = None,
    max_risk: opt.MaxRiskOption = None,
    confidence: Annotated[float, Option(help="Confidence with which --max-risk holds.")] = 0.9,
    coverage: opt.CoverageOption = None,
    prior: Annotated[
        str | None,
        Option(metavar="CLASS=SHARE,...", help="How frequent the classes are (default: equally)."),
    ] = None,
    cases: Annotated[
        str | None,
        Option(help="What makes a case, if not what the model was fitted on: as for `ogkd fit`."),
    ] = None,
    columns: opt.ColumnsOption = None,
    slices: Annotated[
        str | None, Option(help="Which slices, if not those that the model was fitted on.")
    ] = None,
    backbone: Annotated[
        str | None,
        Option(
            "--backbone",
            "-b",
            help="Where the model's backbone is, if not found; with --zero-shot, its name, "
            "folder or hub id (default: the best one on this machine).",
        ),
    ] = None,
    slice: opt.SliceOption = None,
    device: opt.DeviceOption = "auto",
    engine: opt.EngineOverride = None,
) -> None:
    """Classify images and print one row for each, with the probability of every class.

    A file that cannot be read gets a row with the reason, and the exit code is
    1; it is 3 if there are no images at all. `abstain` needs --max-risk and a
    calibrated model (`ogkd calibrate`); `set` that, or a model that learned from
    enough images. `unfamiliar` marks images unlike everything that the model
    learned from.

    A model that was fitted on cases of several images (`ogkd fit --cases` or
    --slices) gives a row for each case, with the images that decided it. Where a
    column of a table makes a case, give such a table for IMAGES.

    Without any labelled image: `ogkd predict --zero-shot "normal, cataract"
    IMAGES...` compares images with the texts of classes.
    """
    from ogkd.data.grouping import Grouping
    from ogkd.model.decide import Decider
    from ogkd.model.policy import Policy
    from ogkd.model.table import read_predictions, row_writer
    from ogkd.progress import progress_bar

    _check_output(out, format, only_new)
    policy = Policy(max_risk, confidence, coverage, opt.read_prior(prior))
    if zero_shot is not None:
        paths = [model, *(images or [])]
        # Else it warns now, and at the end again.
        shown = opt.find_cases(paths, columns, slice) if backbone is None else []
        classifier = _zero_shot(zero_shot, prompts, shown, backbone, engine, device)
    elif prompts is not None:
        raise ConfigError("It only applies to --zero-shot.", argument="prompts")
    else:
        paths = images or []
        _check_order(model, paths)
        classifier = ogkd.load(model, backbone=backbone, device=device, engine=engine)
    given = {"by": cases, "slices": slices, "slice": slice}
    rule = {name: value for name, value in given.items() if value is not None}
    grouping = Grouping.parse(**classifier.card.grouping.as_json() | rule)
    todo = grouping.expand(grouping.merge(opt.find_cases(paths, columns, slice)))
    joined, digest, task = grouping.joins_images, classifier.digest, classifier.task
    before, known = "", set[str]()
    if only_new and out is not None:
        before, known = read_predictions(out, task, format, joined=joined, model=digest)
        todo = _not_in(todo, known, out)
    decider = Decider(classifier, policy)
    if explain is not None:
        with storage_errors(explain):
            explain.mkdir(parents=True, exist_ok=True)
    for note in decider.notes:
        say(note)

    decisions = decider.decide(todo, crops=explain is not None)
    first = list(islice(decisions, 1))  # what cannot be answered fails before anything is written
    output: AbstractContextManager[TextIO | Sheet] = nullcontext(sys.stdout)
    bars: AbstractContextManager[Bar | None] = nullcontext()
    if out is not None:
        output = write_rows(out, before)
    if out is not None or not sys.stdout.isatty():  # else the rows show the progress
        bars = progress_bar("Predicting", len(todo))
    counts: Counter[str] = Counter()
    with output as file, bars as bar:
        write = row_writer(file, task, format, joined=joined, header=not before, model=digest)
        for number, decision in enumerate(chain(first, decisions), start=len(known) + 1):
            counts.update(_kinds(decision))
            if decision.error is None and explain is not None:
                counts["no map"] += not _draw(classifier, decision, explain, number)
            write(decision)
            if bar is not None:
                bar.advance()
    _print_summary(counts, len(todo))
    if counts["failed"]:
        sys.exit(1)


def _check_output(out: Path | None, format: str, only_new: bool) -> None:
    sheet = out is not None and out.suffix.lower() == ".xlsx"
    if format == "jsonl" and sheet:
        raise ConfigError(f"format jsonl is text, but {out} is a sheet.", argument="format")
    if only_new and (out is None or sheet):
        raise ConfigError(
            "It needs --out with a text file: CSV or JSON lines.", argument="only_new"
        )


def _not_in(cases: Sequence[Case], known: set[str], out: Path) -> list[Case]:
    """The cases whose path is not in a table yet."""
    new = [case for case in cases if known.isdisjoint((case.name, escape_path(case.name)))]
    say(f"{len(new)} of {len(cases)} are not in {out} yet.")
    return new


def _kinds(decision: Decision) -> list[str]:
    """What a decision counts as in the summary."""
    foreign = decision.out_of_domain is True
    kinds = {
        "foreign": foreign,
        "unfamiliar": decision.unfamiliar is True and not foreign,
        "failed": decision.error is not None,
    }
    return [kind for kind, applies in kinds.items() if applies]


def _check_order(model: Path, images: list[Path]) -> None:
    from ogkd.model.classifier import CARD

    if not images:
        raise ConfigError(f"Give image files or folders: ogkd predict {model} IMAGES...")
    if (images[-1] / CARD).is_file() and not (model / CARD).is_file():
        raise ConfigError(
            f"The model comes first: ogkd predict {images[-1]} {model}.", argument="model"
        )


def _zero_shot(
    classes: str,
    prompts: str | None,
    cases: list[Case],
    backbone: str | None,
    engine: str | None,
    device: str,
) -> Classifier:
    classifier = ogkd.zero_shot(
        opt.read_classes(classes) or [],
        backbone=backbone or FitRequest.backbone,
        prompts=prompts,
        images=[case.image for case in cases],
        device=device,
        engine=engine or FitRequest.engine,
    )
    say(
        f"Zero-shot with {classifier.card.backbone.short_name}: nothing was learned from "
        "images, and the probabilities are not calibrated."
    )
    return classifier


def _draw(classifier: Classifier, decision: Decision, folder: Path, number: int) -> bool:
    """Write the evidence for the predicted class; the row number makes file names unique."""
    from ogkd.model.explain import evidence_of

    evidence = evidence_of(classifier, decision)
    if evidence is None or not evidence.shown:
        return False
    stem = re.sub(r"[^\w.-]+", "_", Path(str(decision.image)).stem, flags=re.ASCII)[:60]
    with write_atomically(folder / f"{number:06}-{stem}.png", suffixes=(".png",)) as aside:
        ogkd.draw(evidence).save(aside, format="PNG")
    return True


def _print_summary(counts: Counter[str], cases: int) -> None:
    from ogkd.backbones.builtin import domain_warning

    if warning := domain_warning(counts["foreign"], cases - counts["failed"]):
        say(f"WARNING: {warning}")
    if counts["unfamiliar"]:
        say(
            f"Warning: {counts['unfamiliar']} of {cases} image(s) are unlike everything that the "
            "model learned from (see `unfamiliar`), perhaps of another modality or organ. Do not "
            "rely on these predictions."
        )
    if counts["no map"]:
        say(
            f"No evidence map for {counts['no map']} of {cases} image(s): unlike those learned "
            "from, or blurring what it would mark weakens the answer no more than elsewhere."
        )
    if counts["failed"]:
        say(f"{counts['failed']} of {cases} file(s) could not be read.")
