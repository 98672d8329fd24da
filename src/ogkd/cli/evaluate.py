"""`ogkd evaluate`, `ogkd report` and `ogkd calibrate`: a model on labelled images."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ogkd.cli.data import data_folder
from ogkd.cli.options import (
    ClassesOption,
    DataArgument,
    DeviceOption,
    EngineOverride,
    GradedOption,
    JsonOption,
    ModelArgument,
    MovedBackbone,
    NamesOption,
    OnErrorOption,
    ResamplesOption,
    RootOption,
    SliceOption,
    SplitOption,
    ThumbnailsOption,
    read_classes,
    refuse_folders,
    say,
)
from ogkd.cli.tables import evaluation_lines, harmless, harmless_path, write_csv
from ogkd.errors import ConfigError
from ogkd.files import write_json

if TYPE_CHECKING:
    from ogkd.audit import Audit
    from ogkd.datasets.manifest import Manifest
    from ogkd.evaluation import LabelledPredictions
    from ogkd.features.unreadable import BadFile
    from ogkd.model.classifier import Classifier


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    *,
    split: SplitOption = "test",
    graded: GradedOption = None,
    resamples: ResamplesOption = 1000,
    as_json: JsonOption = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the JSON to this file.")
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write one row per image to this file.")
    ] = None,
    paths: Annotated[
        bool, typer.Option("--paths", help="Put file paths into --csv (default: only hashes).")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML page with plots and images to this file.")
    ] = None,
    names: NamesOption = False,
    images: ThumbnailsOption = True,
    root: RootOption = None,
    classes: ClassesOption = None,
    slice: SliceOption = None,
    on_error: OnErrorOption = "stop",
    backbone: MovedBackbone = None,
    device: DeviceOption = "auto",
    engine: EngineOverride = None,
) -> None:
    """Measure how good a model is: metrics with intervals, classes, confusions, calibration.

    With --on-error skip, unreadable files are left out and listed in
    skipped.csv next to --out. Volumes without a slice get the one of --slice,
    or else the one that the model was fitted on.
    """
    refuse_folders(out=out, csv=csv_file, report=report)
    if report is None and (names or not images):
        raise ConfigError("--names and --no-images only apply to --report, which is not given.")
    inputs = _read(model, data, split, root, classes, slice, on_error, backbone, device, engine)
    found = _evaluate(inputs, graded=graded, resamples=resamples)
    if out is not None:
        write_json(out, found.result)
        found.write_skipped(out)
    if csv_file is not None:
        _write_rows(csv_file, inputs.classifier, found.judged, paths=paths)
    if report is not None:
        found.write_report(report, names=names, images=images)
    if as_json:
        typer.echo(json.dumps(found.result, indent=2))
    else:
        for line in evaluation_lines(found.result):
            typer.echo(line)


def report(
    model: ModelArgument,
    data: DataArgument,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    split: SplitOption = "test",
    graded: GradedOption = None,
    resamples: ResamplesOption = 1000,
    names: NamesOption = False,
    images: ThumbnailsOption = True,
    check: Annotated[
        bool, typer.Option(help="Check the data as well, which reads all of its images.")
    ] = True,
    root: RootOption = None,
    classes: ClassesOption = None,
    slice: SliceOption = None,
    on_error: OnErrorOption = "stop",
    backbone: MovedBackbone = None,
    device: DeviceOption = "auto",
    engine: EngineOverride = None,
) -> None:
    """Write one self-contained HTML page: summary, metrics, plots, mistakes, data, settings.

    The page loads nothing from the network. It shows small copies of images, which
    may be patient data: handle it as such, or leave them out with --no-images.
    With --on-error skip, unreadable files are listed in skipped.csv next to --out.
    """
    refuse_folders(out=out)
    inputs = _read(model, data, split, root, classes, slice, on_error, backbone, device, engine)
    found = _evaluate(inputs, graded=graded, resamples=resamples)
    audit = None
    if check:
        from ogkd.audit import audit_data

        audit = audit_data(inputs.manifest, root=data_folder(data))
    found.write_report(out, names=names, images=images, audit=audit)
    found.write_skipped(out)
    typer.echo(f"Report on {len(found.judged.labels)} images: {out}")


def calibrate(
    model: ModelArgument,
    data: DataArgument,
    *,
    split: SplitOption = "val",
    leave_out_used: Annotated[
        bool, typer.Option(help="Leave out images that the model was fitted on.")
    ] = False,
    root: RootOption = None,
    classes: ClassesOption = None,
    slice: SliceOption = None,
    on_error: OnErrorOption = "stop",
    backbone: MovedBackbone = None,
    device: DeviceOption = "auto",
    engine: EngineOverride = None,
) -> None:
    """Calibrate a model on labelled images that it was not fitted on.

    Writes calibration.json into the model folder: a temperature, and what
    `predict --max-risk` and conformal sets need. Predictions stay the same;
    their probabilities change. It is valid for the engine that encoded the
    images: that of the fit, or --engine. Fitting the model again removes it.
    """
    from ogkd.evaluation.calibrate import calibrate as calibrate_model
    from ogkd.model.calibration import CALIBRATION

    # The old calibration is not read: even a damaged one can be replaced.
    inputs = _read(
        *(model, data, split, root, classes, slice, on_error, backbone, device, engine),
        calibrated=False,
    )
    found = calibrate_model(
        inputs.classifier, inputs.part, split=split, leave_out_used=leave_out_used, say=say
    )
    found.write(model / CALIBRATION)
    held_out = len(found.confidences)
    typer.echo(
        f"Calibrated on {found.images} images: {found.images - held_out} for the temperature, "
        f"{held_out} for the sets and thresholds."
    )
    change = "less" if found.temperature > 1 else "more"
    typer.echo(
        f"temperature {found.temperature:.3f}: the model is now {change} confident than before."
        if found.temperature != 1.0
        else "temperature 1: probabilities stay as they are."
    )
    typer.echo(f"accuracy on those {held_out}: {100 * sum(found.correct) / held_out:.1f} %")
    typer.echo(f"Wrote {model / CALIBRATION}")


@dataclass(frozen=True)
class _Inputs:
    """A model, all of the data, and the part of it to use."""

    classifier: Classifier
    data: Path
    manifest: Manifest
    part: Manifest
    split: str
    skipped: list[BadFile] | None  # None unless unreadable files are skipped


def _read(
    model: Path,
    data: Path,
    split: str,
    root: Path | None,
    classes: str | None,
    slice: str | None,
    on_error: Literal["stop", "skip"],
    backbone: str | None,
    device: str,
    engine: str | None,
    *,
    calibrated: bool = True,
) -> _Inputs:
    """Load the model and read the data, as the options of all three commands say."""
    from ogkd.datasets.fetch import resolve_data
    from ogkd.features.unreadable import readable_items
    from ogkd.images import SliceRule
    from ogkd.model.classifier import load

    rule = None if slice is None else SliceRule.parse(slice)
    manifest = resolve_data(data, root=root, class_names=read_classes(classes))
    classifier = load(model, backbone=backbone, device=device, engine=engine, calibrated=calibrated)
    part = replace(manifest, items=tuple(manifest.part(split)))
    part = part.sliced(rule or classifier.card.slice_rule)
    skipped = None
    if on_error == "skip":
        items, skipped = readable_items(part.items, manifest.class_names)
        part = replace(part, items=tuple(items))
        say(f"Left out {len(skipped)} file(s) that cannot be read; {len(items)} remain.")
        for file in skipped[:20]:
            say(f"  {file.reason}")
    return _Inputs(classifier, data, manifest, part, split, skipped)


@dataclass(frozen=True)
class _Evaluation:
    inputs: _Inputs
    judged: LabelledPredictions
    result: dict[str, Any]

    def write_report(
        self, file: Path, *, names: bool, images: bool, audit: Audit | None = None
    ) -> None:
        from ogkd.report import write_report

        write_report(
            file,
            self.inputs.classifier,
            self.inputs.manifest,
            self.judged,
            command=shlex.join(["ogkd", *sys.argv[1:]]),
            show_names=names,
            audit=audit,
            images=images,
            result=self.result,
        )

    def write_skipped(self, beside: Path) -> None:
        """List the files that were left out, in the folder of another output."""
        from ogkd.features.unreadable import SKIPPED, write_skipped

        if self.inputs.skipped is not None:
            write_skipped(beside.with_name(SKIPPED), self.inputs.skipped)


def _evaluate(inputs: _Inputs, *, graded: bool | None, resamples: int) -> _Evaluation:
    """Evaluate, and warn about everything that makes the numbers look too good."""
    from ogkd.evaluation import evaluate_predictions, predict_labelled
    from ogkd.model.decide import engine_note

    classifier = inputs.classifier
    judged = predict_labelled(classifier, inputs.part, split=inputs.split)
    learned = classifier.card.support_images
    result = evaluate_predictions(
        judged, classifier.calibration, graded=graded, resamples=resamples, learned=learned
    )
    images = result["images"]
    if used := result["learned_from"]:
        say(
            f"Warning: the model learned from {used} of these {images} images, so the results "
            "look better than they are."
        )
    if used := result["calibrated_on"]:
        say(
            f"Warning: the model was calibrated on {used} of these {images} images, so its "
            "probabilities, sets and thresholds look better than they are."
        )
    if note := engine_note(classifier):
        say(f"Note: {note}")
    if not inputs.manifest.has_splits and not learned:
        say(
            f"Note: {inputs.data} has no splits, so all of its images are evaluated. If the model "
            "learned from some of them, the results look better than they are."
        )
    return _Evaluation(inputs, judged, result)


def _write_rows(
    file: Path, classifier: Classifier, judged: LabelledPredictions, *, paths: bool
) -> None:
    """Write a row per image: hash, path (if asked for), true class, prediction, probabilities."""
    shown = [harmless(name) for name in classifier.class_names]
    with write_csv(file) as opened:
        table = csv.writer(opened, lineterminator="\n")
        head = ["image", *(["path"] if paths else [])]
        table.writerow([*head, "truth", "prediction", "probability", *shown])
        rows = classifier.probabilities(judged.features)
        for key, path, label, row in zip(
            judged.keys, judged.images, judged.labels, rows, strict=True
        ):
            best = int(row.argmax())
            shares = [f"{value:.6f}" for value in row]
            where = [key, *([harmless_path(path)] if paths else [])]
            table.writerow([*where, shown[label], shown[best], shares[best], *shares])
