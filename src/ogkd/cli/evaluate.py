"""`ogkd evaluate` and `ogkd calibrate`: a model on labelled images."""

from __future__ import annotations

import csv
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

import ogkd
from ogkd.cells import escape_formula, escape_path
from ogkd.cli import options as opt
from ogkd.cli.data import data_folder
from ogkd.cli.output import (
    calibration_lines,
    evaluation_lines,
    print_json,
    say,
    write_csv,
)
from ogkd.errors import ConfigError, pluralize
from ogkd.files import write_json

if TYPE_CHECKING:
    from ogkd.audit import Audit
    from ogkd.data.case import Dataset
    from ogkd.evaluation import LabelledPredictions
    from ogkd.features.unreadable import BadFile
    from ogkd.model.classifier import Classifier


@dataclass(frozen=True)
class InputOptions:
    """A model and labelled images, as both commands take them."""

    model: opt.ModelArgument
    data: opt.DataArgument
    root: Annotated[Path | None, Option(help=opt.HELP["root"])] = None
    classes: opt.ClassesOption = None
    findings: opt.FindingsOption = None
    on_error: Annotated[
        Literal["stop", "skip"],
        Option(help="Unreadable files: stop and list them, or skip them (see skipped.csv)."),
    ] = "stop"
    backbone: opt.MovedBackbone = None
    device: opt.DeviceOption = "auto"

    def read(self, split: str, *, calibrated: bool = True) -> _Inputs:
        """Load the model and read the data."""
        from ogkd.data.fetch import resolve_data
        from ogkd.features.unreadable import list_reasons, readable_cases

        classifier = ogkd.load(
            self.model,
            backbone=self.backbone,
            device=self.device,
            calibrated=calibrated,
        )
        dataset = resolve_data(
            self.data,
            root=self.root,
            class_names=opt.read_classes(self.classes),
            findings=opt.read_classes(self.findings),
        )
        part = dataset.with_cases(dataset.part(split))
        skipped = None
        if self.on_error == "skip":
            grouping = classifier.card.grouping
            cases, skipped = readable_cases(grouping.expand(part.cases), part.task)
            part = part.with_cases(cases)
            files = pluralize(len(skipped), "file")
            say(f"Left out {files} that cannot be read; {len(cases)} remain.")
            if skipped:
                say(list_reasons(skipped))
        return _Inputs(classifier, dataset, part, skipped)


@dataclass(frozen=True)
class _Inputs:
    classifier: Classifier
    dataset: Dataset
    part: Dataset  # to use
    skipped: list[BadFile] | None  # None unless unreadable files are skipped


@dataclass(frozen=True)
class EvaluationOptions:
    """How to evaluate, and what a report shows."""

    split: opt.SplitOption = "test"
    resamples: Annotated[
        int, Option(min=0, max=100_000, help="Bootstrap resamples; 0 for no intervals.")
    ] = 1000
    leave_out_used: Annotated[
        bool, Option(help="Leave out images that the model learned from or was calibrated on.")
    ] = False
    prevalence: Annotated[
        float | None,
        Option(help="Also give predictive values where this share of images has a finding."),
    ] = None
    names: Annotated[
        bool, Option("--names", help="Show file names and full paths in the report.")
    ] = False
    images: Annotated[
        bool, Option(help="Show small copies of images in the report: mistakes and examples.")
    ] = True

    def evaluate(self, options: InputOptions) -> _Evaluation:
        """Evaluate, and warn about everything that makes the numbers look too good."""
        from ogkd.evaluation import evaluate_predictions, predict_labelled
        from ogkd.model.decide import engine_note
        from ogkd.model.support_sets import SupportSets

        inputs = options.read(self.split)
        classifier = inputs.classifier
        judged = predict_labelled(classifier, inputs.part, split=self.split)
        if self.leave_out_used:
            judged = judged.unused(classifier)
            say(
                f"Left out {pluralize(judged.left_out, judged.unit)} that the model learned from "
                f"or was calibrated on; {len(judged.labels)} remain."
            )
        result = evaluate_predictions(
            judged,
            classifier.calibration,
            resamples=self.resamples,
            card=classifier.card,
            prevalence=self.prevalence,
            support_sets=SupportSets.of(classifier),
        )
        images, unit = result["images"], result["unit"]
        for warning in result["warnings"]:
            say(f"WARNING: {warning}")
        if used := result["learned_from"]:
            say(
                f"Warning: the model learned from {used} of these {images} {unit}s, so the results "
                "look better than they are. --leave-out-used evaluates the others."
            )
        if used := result["calibrated_on"]:
            say(
                f"Warning: the model was calibrated on {used} of these {images} {unit}s, so its "
                "probabilities, sets and thresholds look better than they are. --leave-out-used "
                "evaluates the others."
            )
        if note := engine_note(classifier):
            say(f"Note: {note}")
        if not inputs.dataset.has_splits and not classifier.card.seen:
            say(
                f"Note: {options.data} has no splits, so all of its images are evaluated. If the "
                "model learned from some of them, the results look better than they are."
            )
        return _Evaluation(inputs, self, judged, result)


@dataclass(frozen=True)
class _Evaluation:
    inputs: _Inputs
    options: EvaluationOptions
    judged: LabelledPredictions
    result: dict[str, Any]

    def write_report(self, file: Path, audit: Audit | None = None) -> None:
        from ogkd.report import write_report

        write_report(
            file,
            self.inputs.classifier,
            self.inputs.dataset,
            self.judged,
            command=shlex.join(["ogkd", *sys.argv[1:]]),
            show_names=self.options.names,
            audit=audit,
            images=self.options.images,
            result=self.result,
        )

    def write_skipped(self, beside: Path) -> None:
        """List the files that were left out, in the folder of another output."""
        from ogkd.features.unreadable import SKIPPED, write_skipped

        if self.inputs.skipped is not None:
            write_skipped(beside.with_name(SKIPPED), self.inputs.skipped)


def evaluate(
    inputs: InputOptions,
    how: EvaluationOptions,
    everything: Annotated[
        bool, Option("--all", help="Print every table: intervals, confusions, calibration, sets.")
    ] = False,
    as_json: opt.JsonOption = False,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Also write the JSON to this file.")
    ] = None,
    csv_file: Annotated[
        Path | None, Option("--csv", help="Write one row per image to this file.")
    ] = None,
    paths: Annotated[
        bool, Option("--paths", help="Put file paths into --csv (default: only hashes).")
    ] = False,
    report: Annotated[
        Path | None,
        Option(help="Write a page with plots, images and a check of the data to this file."),
    ] = None,
) -> None:
    """Say how good a model is: better than guessing or not, its weakest class, what would help.

    --all adds the statistics: intervals, confusions, referral, calibration, sets.
    --report writes one self-contained HTML page, which loads nothing from the
    network. It shows small copies of images, which may be patient data: handle it
    as such, or leave them out with --no-images. With --on-error skip, unreadable
    files are left out and listed in skipped.csv next to --out or --report.
    """
    opt.refuse_folders(out=out, csv=csv_file, report=report)
    if report is None and (how.names or not how.images):
        raise ConfigError("--names and --no-images only apply to --report, which is not given.")
    found = how.evaluate(inputs)
    if out is not None:
        write_json(out, found.result)
        found.write_skipped(out)
    if csv_file is not None:
        _write_rows(csv_file, found, paths=paths)
    if report is not None:
        from ogkd.audit import audit_data

        found.write_report(report, audit_data(found.inputs.dataset, root=data_folder(inputs.data)))
        found.write_skipped(report)
    if as_json:
        print_json(found.result, ascii=True)
    else:
        typer.echo("\n".join(evaluation_lines(found.result, everything=everything)))


def calibrate(
    inputs: InputOptions,
    split: opt.SplitOption = "val",
    leave_out_used: Annotated[
        bool, Option(help="Leave out images that the model was fitted on.")
    ] = False,
    sensitivity: Annotated[
        float | None,
        Option(
            help="Several findings: answer no so that at least this share of the images with one "
            "is not missed."
        ),
    ] = None,
    confidence: Annotated[
        float | None, Option(help="Confidence with which --sensitivity holds (default: 0.9).")
    ] = None,
) -> None:
    """Calibrate a model on labelled images that it was not fitted on.

    Writes calibration.json into the model folder: a temperature, and what
    `predict --max-risk` and conformal sets need. Predictions stay the same;
    their probabilities change. It is valid for the engine of the fit.
    Fitting the model again removes it.

    Of a model of several findings: the scale of each finding's probability,
    and the limits below which it answers no and above which yes.
    """
    from ogkd.model.calibration import CALIBRATION

    # The old calibration is not read: even a damaged one can be replaced.
    read = inputs.read(split, calibrated=False)
    found = ogkd.calibrate(
        read.classifier,
        read.part,
        split=split,
        leave_out_used=leave_out_used,
        sensitivity=sensitivity,
        confidence=confidence,
        say=say,
    )
    place = inputs.model / CALIBRATION
    found.write(place)
    typer.echo("\n".join(calibration_lines(read.classifier, found)))
    typer.echo(f"Wrote {place}")


def _write_rows(file: Path, found: _Evaluation, *, paths: bool) -> None:
    """Write a row per image: hash, path (if asked for), truth, answer and probabilities."""
    judged = found.judged
    task, p = judged.task, judged.probabilities(found.inputs.classifier.calibration)
    answers = task.answers(p, None)
    with write_csv(file) as opened:
        table = csv.writer(opened, lineterminator="\n")
        for number, (case, answer) in enumerate(zip(judged.cases, answers, strict=True)):
            cells = task.judged_cells(case.target, answer)
            first = ["image", "path"] if paths else ["image"]
            if not number:
                table.writerow([*first, *(escape_formula(name) for name, _ in cells)])
            image = [escape_path(judged.images[number])] if paths else []
            table.writerow([case.fingerprint, *image, *(escape_formula(cell) for _, cell in cells)])
