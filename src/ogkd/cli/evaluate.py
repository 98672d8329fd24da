"""`ogkd evaluate` and `ogkd calibrate`: a model on labelled images."""

from __future__ import annotations

import csv
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

import ogkd
from ogkd.cells import escape_formula, escape_path
from ogkd.cli import options as opt
from ogkd.cli.output import print_json, say, write_csv
from ogkd.errors import ConfigError, pluralize
from ogkd.files import write_json

if TYPE_CHECKING:
    from ogkd.data.case import Dataset
    from ogkd.evaluation import LabelledPredictions
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
        Option(help="Unreadable files: stop and list them, or skip them."),
    ] = "stop"
    backbone: opt.MovedBackbone = None
    device: opt.DeviceOption = "auto"

    def read(self, split: str, *, calibrated: bool = True) -> tuple[Classifier, Dataset, Dataset]:
        """The model, the data, and the part of it to use."""
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
        if self.on_error == "skip":
            grouping = classifier.card.grouping
            cases, skipped = readable_cases(grouping.expand(part.cases), part.task)
            part = part.with_cases(cases)
            files = pluralize(len(skipped), "file")
            say(f"Left out {files} that cannot be read; {len(cases)} remain.")
            if skipped:
                say(list_reasons(skipped))
        return classifier, dataset, part


def evaluate(
    inputs: InputOptions,
    split: opt.SplitOption = "test",
    everything: Annotated[
        bool, Option("--all", help="Print every table: intervals, confusions, calibration, sets.")
    ] = False,
    resamples: Annotated[
        int, Option(min=0, max=100_000, help="Bootstrap resamples; 0 for no intervals.")
    ] = 1000,
    leave_out_used: Annotated[
        bool, Option(help="Leave out images that the model learned from or was calibrated on.")
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
    names: Annotated[
        bool, Option("--names", help="Show file names and full paths in the report.")
    ] = False,
    images: Annotated[
        bool, Option(help="Show small copies of images in the report: mistakes and examples.")
    ] = True,
) -> None:
    """Say how good a model is: better than guessing or not, its weakest class, what would help.

    --all adds the statistics: intervals, confusions, referral, calibration, sets.
    --report writes one self-contained HTML page, which loads nothing from the
    network. It shows small copies of images, which may be patient data: handle it
    as such, or leave them out with --no-images.
    """
    from ogkd.evaluation import evaluate_predictions, predict_labelled

    opt.refuse_folders(out=out, csv=csv_file, report=report)
    if report is None and (names or not images):
        raise ConfigError("--names and --no-images only apply to --report, which is not given.")
    classifier, dataset, part = inputs.read(split)
    judged = predict_labelled(classifier, part, split=split)
    if leave_out_used:
        judged = judged.unused(classifier)
        say(
            f"Left out {pluralize(judged.left_out, judged.unit)} that the model learned from or "
            f"was calibrated on; {len(judged.labels)} remain."
        )
    result = evaluate_predictions(judged, classifier, resamples=resamples)
    if out is not None:
        write_json(out, result)
    if csv_file is not None:
        _write_rows(csv_file, judged, classifier, paths=paths)
    if report is not None:
        from ogkd.audit.check import audit_data, data_folder
        from ogkd.report import write_report

        write_report(
            report,
            classifier,
            dataset,
            judged,
            command=shlex.join(["ogkd", *sys.argv[1:]]),
            show_names=names,
            audit=audit_data(dataset, root=data_folder(inputs.data)),
            images=images,
            result=result,
        )
    for warning in result["warnings"]:
        say(f"WARNING: {warning}")
    if as_json:
        print_json(result, ascii=True)
        return
    typer.echo(result.text(everything=everything))
    if not everything:
        typer.echo(
            "\nMore: --all (every table), --report FILE.html (a page), --json (all numbers)."
        )


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
    from ogkd.evaluation.calibrate import calibration_section
    from ogkd.evaluation.sections import text_lines
    from ogkd.model.calibration import CALIBRATION

    # The old calibration is not read: even a damaged one can be replaced.
    classifier, _, part = inputs.read(split, calibrated=False)
    calibration = ogkd.calibrate(
        classifier,
        part,
        split=split,
        leave_out_used=leave_out_used,
        sensitivity=sensitivity,
        confidence=confidence,
        say=say,
    )
    path = inputs.model / CALIBRATION
    calibration.write(path)
    lines = text_lines([calibration_section(classifier, calibration)])
    typer.echo("\n".join([*lines, f"Wrote {path}"]).lstrip())


def _write_rows(
    path: Path, judged: LabelledPredictions, classifier: Classifier, *, paths: bool
) -> None:
    """Write a row per image: hash, path (if asked for), truth, answer and probabilities."""
    answers = judged.task.answers(judged.probabilities(classifier.calibration), None)
    with write_csv(path) as file:
        table = csv.writer(file, lineterminator="\n")
        for number, (case, answer) in enumerate(zip(judged.cases, answers, strict=True)):
            cells = judged.task.judged_cells(case.target, answer)
            first = ["image", "path"] if paths else ["image"]
            if not number:
                table.writerow([*first, *(escape_formula(name) for name, _ in cells)])
            image = [escape_path(judged.images[number])] if paths else []
            table.writerow([case.fingerprint, *image, *(escape_formula(cell) for _, cell in cells)])
