"""`ogkd evaluate` and `ogkd calibrate`: a model on labelled images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.options import print_json, say
from ogkd.errors import pluralize
from ogkd.files import write_json

if TYPE_CHECKING:
    from ogkd.data.case import Dataset
    from ogkd.model.classifier import Classifier


@dataclass(frozen=True)
class InputOptions:
    """A model and labelled images, as both commands take them."""

    model: opt.ModelArgument
    data: opt.DataArgument
    root: Annotated[Path | None, Option(help=opt.HELP["root"])] = None
    classes: opt.ClassesOption = None
    findings: opt.FindingsOption = None
    columns: opt.ColumnsOption = None
    on_error: opt.OnErrorOption = "stop"
    backbone: opt.MovedBackbone = None
    device: opt.DeviceOption = "auto"

    def read(
        self, split: str, *, calibrated: bool = True
    ) -> tuple[Classifier, Dataset, Dataset, list[str]]:
        """The model, the data, the part of it to use, and what was left out of it."""
        from ogkd.data.fetch import resolve_data
        from ogkd.features.unreadable import list_reasons, readable_cases

        classifier = ogkd.load(
            self.model, backbone=self.backbone, device=self.device, calibrated=calibrated
        )
        dataset = resolve_data(
            self.data,
            root=self.root,
            class_names=opt.read_classes(self.classes),
            findings=opt.read_classes(self.findings),
            columns=opt.read_columns(self.columns),
        )
        part = dataset.with_cases(dataset.part(split))
        if self.on_error == "stop":
            return classifier, dataset, part, []
        grouping = classifier.card.grouping
        cases, skipped = readable_cases(grouping.expand(part.cases), part.task)
        unread = f"{pluralize(len(skipped), 'file')} that cannot be read"
        say(f"Left out {unread}; {len(cases)} remain.")
        if skipped:
            say(list_reasons(skipped))
        return classifier, dataset, part.with_cases(cases), [unread] if skipped else []


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
    by: Annotated[
        str | None,
        Option(
            help="Subgroups: columns of the table, or keywords of DICOM headers; sex,Manufacturer."
        ),
    ] = None,
    as_json: opt.JsonOption = False,
    out: Annotated[
        Path | None, opt.output_file("--out", "-o", help="Also write the JSON to this file.")
    ] = None,
    report: Annotated[
        Path | None,
        opt.output_file(
            "--report", help="Write a page with plots, images and a check of the data to this file."
        ),
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

    classifier, dataset, part, left_out = inputs.read(split)
    judged = predict_labelled(classifier, part, split=split)
    if leave_out_used:
        judged = judged.unused(classifier)
        say(
            f"Left out {pluralize(judged.left_out, judged.unit)} that the model learned from or "
            f"was calibrated on; {len(judged.labels)} remain."
        )
    by_names = opt.read_classes(by)
    result = evaluate_predictions(judged, classifier, resamples=resamples, by=by_names)
    if out is not None:
        write_json(out, result)
    if report is not None:
        from ogkd.audit.check import audit_data, data_folder

        ogkd.report(
            classifier,
            dataset,
            report,
            predictions=judged,
            result=result,
            audit=audit_data(dataset, root=data_folder(inputs.data)),
            left_out=left_out,
            show_names=names,
            images=images,
        )
    for warning in result["warnings"]:
        say(f"WARNING: {warning}")
    if as_json:
        print_json(result)
        return
    typer.echo(result.text(everything=everything))
    if not everything:
        say("\nMore: --all (every table), --report FILE.html (a page), --json (all numbers).")


def calibrate(
    inputs: InputOptions,
    split: opt.SplitOption = "val",
    leave_out_used: Annotated[
        bool, Option(help="Leave out images that the model was fitted on.")
    ] = False,
    sensitivity: opt.SensitivityOption = None,
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
    from ogkd.model.classifier import write_calibration

    # The old calibration is not read: even a damaged one can be replaced.
    classifier, _, part, _ = inputs.read(split, calibrated=False)
    calibration = ogkd.calibrate(
        classifier,
        part,
        split=split,
        leave_out_used=leave_out_used,
        sensitivity=sensitivity,
        confidence=confidence,
    )
    path = inputs.model / CALIBRATION
    write_calibration(inputs.model, classifier.card, calibration)
    lines = text_lines([calibration_section(classifier, calibration)])
    typer.echo("\n".join([*lines, f"Wrote {path}"]).lstrip())
