"""`ogkd predict`: one row per case, as CSV or JSON lines."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

from typer import Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.output import say, write_csv
from ogkd.errors import ConfigError
from ogkd.files import storage_errors, write_atomically
from ogkd.fitting.request import FitRequest

if TYPE_CHECKING:
    from ogkd.data.grouping import Grouping
    from ogkd.features.encode import EncodedBatch
    from ogkd.images import ImageRef
    from ogkd.model.classifier import Classifier
    from ogkd.model.decide import Decision
    from ogkd.model.policy import Policy
    from ogkd.progress import Bar


@dataclass(frozen=True)
class GuaranteeOptions:
    """What is to be guaranteed about the answers."""

    max_risk: Annotated[
        float | None,
        Option(help="Abstain so that at most this share of the other predictions is wrong."),
    ] = None
    confidence: Annotated[
        float, Option(help="Confidence with which --max-risk and --sensitivity hold.")
    ] = 0.9
    coverage: Annotated[
        float | None, Option(help="How often `set` contains the true class (default: 0.9).")
    ] = None
    prior: Annotated[
        str | None,
        Option(metavar="CLASS=SHARE,...", help="How frequent the classes are (default: equally)."),
    ] = None
    sensitivity: Annotated[
        float | None,
        Option(
            help="Several findings: answer no so that this share of the images with one is kept "
            "(default: that of `ogkd calibrate`)."
        ),
    ] = None

    def policy(self) -> Policy:
        from ogkd.model.policy import Policy

        return Policy(
            self.max_risk,
            self.confidence,
            self.coverage,
            opt.read_prior(self.prior),
            self.sensitivity,
        )


@dataclass(frozen=True)
class CaseOptions:
    """What makes a case."""

    cases: Annotated[
        str | None,
        Option(help="What makes a case, if not what the model was fitted on: as for `ogkd fit`."),
    ] = None
    slices: Annotated[
        str | None, Option(help="Which slices, if not those that the model was fitted on.")
    ] = None
    each_image: Annotated[
        bool, Option("--each-image", help="Also a row for each image of a case, after its own.")
    ] = False

    def grouping(self, classifier: Classifier, slice: str | None) -> Grouping:
        """What the model was fitted on, changed by these options."""
        from ogkd.data.grouping import Grouping

        known = classifier.card.grouping.as_json()
        given = {"by": self.cases, "slices": self.slices, "slice": slice}
        return Grouping.parse(**known | {k: v for k, v in given.items() if v is not None})


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
        Path | None, Option(help="Write evidence maps to this folder, one PNG per case.")
    ] = None,
    guarantees: GuaranteeOptions,
    how: CaseOptions,
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

    Columns: path, prediction, probability, set, abstain, unfamiliar, error,
    and the probability of every class.

    A file that cannot be read gets a row with the reason, and the exit code is
    1. `abstain` needs --max-risk and a calibrated model (`ogkd calibrate`);
    `set` that, or a model that learned from enough images. `unfamiliar` marks
    images unlike everything that the model learned from. Volumes without a
    slice get the one of --slice, or else the one that the model was fitted on.
    A model of several findings prints for each of them yes, no or unsure, and its
    probability. For very large folders, --ray spreads the work over a cluster.

    A model that was fitted on cases of several images (`ogkd fit --cases` or
    --slices) gives a row for each case, with the images that decided it. Where a
    column of a table makes a case, give such a table for IMAGES.

    --prior reweights probabilities where classes are not equally frequent.

    Without any labelled image: `ogkd predict --zero-shot "normal, cataract"
    IMAGES...` compares images with the texts of classes. Nothing is learned,
    and the probabilities are not calibrated.
    """
    from ogkd.model.decide import Decider
    from ogkd.progress import progress_bar

    encoding.cluster()  # refuses what cannot work, before anything is read
    opt.refuse_folders(out=out)
    policy = guarantees.policy()
    if zero_shot is None:
        if prompts is not None:
            raise ConfigError("--prompts only applies to --zero-shot, which is not given.")
        if not images:
            raise ConfigError(
                f"Give image files or folders after the model: ogkd predict {model} IMAGES..."
            )
        classifier = ogkd.load(model, backbone=backbone, device=encoding.device, engine=engine)
        paths = images
    else:
        paths = [model, *(images or [])]
        classifier = _zero_shot(zero_shot, prompts, paths, backbone, engine, encoding)
    grouping = how.grouping(classifier, encoding.slice)
    cases = grouping.expand(grouping.merge(encoding.find_cases(paths)))
    decider = Decider(classifier, policy)
    if explain is not None:
        _prepare(explain)
    for note in decider.notes:
        say(note)
    card = classifier.card.backbone

    def encode(refs: Iterable[ImageRef]) -> Iterator[EncodedBatch]:
        return encoding.encode(
            classifier.backbone,
            refs,
            place=backbone or card.name,
            engine=engine or card.engine,
            patches=False,
            deep=classifier.deep,
        )

    decisions = decider.decide(cases, encode, crops=explain is not None)
    output: AbstractContextManager[TextIO] = nullcontext(sys.stdout)
    bars: AbstractContextManager[Bar | None] = progress_bar("Predicting", len(cases))
    if out is not None:
        output = write_csv(out)
    elif sys.stdout.isatty():
        bars = nullcontext()  # the rows themselves are printed on the terminal
    try:
        with output as file, bars as bar:
            summary = _write(
                file, classifier, decisions, bar, format, explain,
                joined=grouping.joins_images, each_image=how.each_image,
            )  # fmt: skip
    except BrokenPipeError:
        return  # the reader of our output has finished (`| head`)
    summary.print(len(cases))
    if summary.failed:
        sys.exit(1)


@dataclass
class _Summary:
    """What is said after the table."""

    failed: int = 0
    unfamiliar: int = 0
    foreign: int = 0

    def count(self, decision: Decision) -> None:
        self.failed += decision.error is not None
        self.unfamiliar += decision.unfamiliar is True and not decision.out_of_domain
        self.foreign += decision.out_of_domain is True

    def print(self, cases: int) -> None:
        from ogkd.backbones.builtin import domain_warning

        if warning := domain_warning(self.foreign, cases - self.failed):
            say(f"WARNING: {warning}")
        if self.unfamiliar:
            say(
                f"Warning: {self.unfamiliar} of {cases} image(s) are unlike everything that the "
                "model learned from (see `unfamiliar`), perhaps of another modality or organ. Do "
                "not rely on these predictions."
            )
        if self.failed:
            say(f"{self.failed} of {cases} file(s) could not be read.")


def _write(
    file: TextIO,
    classifier: Classifier,
    decisions: Iterator[Decision],
    bar: Bar | None,
    format: Literal["csv", "jsonl"],
    explain: Path | None,
    *,
    joined: bool,
    each_image: bool,
) -> _Summary:
    from ogkd.model.table import row_writer

    summary = _Summary()
    first = list(_first(decisions))  # what cannot be answered fails before anything is written
    write = row_writer(file, classifier.task, format, joined=joined, each_image=each_image)
    for number, decision in enumerate(chain(first, decisions), start=1):
        summary.count(decision)
        if explain is not None and decision.answer is not None:
            _draw(classifier, decision, explain, number)
        write(decision)
        if bar is not None:
            bar.advance()
    return summary


def _first(decisions: Iterator[Decision]) -> Iterator[Decision]:
    for decision in decisions:
        yield decision
        return


def _zero_shot(
    classes: str,
    prompts: str | None,
    paths: list[Path],
    backbone: str | None,
    engine: str | None,
    encoding: opt.EncodingOptions,
) -> Classifier:
    classifier = ogkd.zero_shot(
        opt.read_classes(classes) or [],
        backbone=backbone or FitRequest.backbone,
        prompts=prompts,
        # Else it warns now, and at the end again.
        images=[case.image for case in encoding.find_cases(paths)] if backbone is None else (),
        device=encoding.device,
        engine=engine or FitRequest.engine,
        say=say,
    )
    say(
        f"Zero-shot with {classifier.card.backbone.short_name}: nothing was learned from "
        "images, and the probabilities are not calibrated."
    )
    return classifier


def _prepare(folder: Path) -> None:
    """Make the folder for evidence maps, and check now that it can be written to."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--explain takes a folder, but {folder} is a file. Choose another name.")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def _draw(classifier: Classifier, decision: Decision, folder: Path, number: int) -> None:
    """Write the evidence for the predicted class; the row number makes file names unique."""
    from ogkd.model.explain import evidence_of

    evidence = evidence_of(classifier, decision)
    if evidence is None:
        return
    stem = re.sub(r"[^\w.-]+", "_", Path(str(decision.image)).stem, flags=re.ASCII)[:60]
    file = folder / f"{number:06}-{stem}.png"
    with write_atomically(file, suffixes=(".png",)) as aside:
        ogkd.draw(evidence).save(aside, format="PNG")
