"""`ogkd calibrate`: probabilities that mean what they say, sets, and when to abstain."""

from __future__ import annotations

from typing import Annotated

import typer

from ogkd.cli.judging import usable
from ogkd.cli.model_options import MovedBackbone, SplitOption
from ogkd.cli.options import (
    ClassesOption,
    DataArgument,
    DeviceOption,
    EngineOverride,
    ModelArgument,
    OnErrorOption,
    RootOption,
    SliceOption,
    read_classes,
)


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
    encoder_engine: EngineOverride = None,
) -> None:
    """Calibrate a model on labelled images that it has not learned from.

    Writes calibration.json into the model folder: a temperature, and what
    `predict --max-risk` and conformal sets need. Predictions stay the same;
    their probabilities change. Fitting the model again discards it. It holds for the
    encoder engine that it was made with: that of the fit, or --encoder-engine.
    """
    from ogkd.datasets.fetch import resolve_data
    from ogkd.evaluation.calibrate import calibrate as calibrate_model
    from ogkd.features.unreadable import check_on_error
    from ogkd.images import SliceRule
    from ogkd.model.calibration import CALIBRATION
    from ogkd.model.classifier import load

    skip = check_on_error(on_error) == "skip"
    rule = None if slice is None else SliceRule.parse(slice)
    manifest = resolve_data(data, root=root, class_names=read_classes(classes))
    # An old calibration must not stand in the way of a new one, whatever is wrong with it.
    classifier = load(
        model, backbone=backbone, device=device, engine=encoder_engine, calibrated=False
    )
    manifest, _ = usable(manifest, split, rule or classifier.card.slice_rule, skip=skip)
    found = calibrate_model(
        classifier,
        manifest,
        split=split,
        leave_out_used=leave_out_used,
        say=lambda note: typer.echo(note, err=True),
    )
    found.write(model / CALIBRATION)
    held_out = len(found.confidences)
    typer.echo(
        f"Calibrated on {found.images} images: {found.images - held_out} set the temperature, "
        f"{held_out} the sets and thresholds."
    )
    shape = "less" if found.temperature > 1 else "more"
    typer.echo(
        f"temperature {found.temperature:.3f}: probabilities are now {shape} sure than before."
        if found.temperature != 1.0
        else "temperature 1: probabilities stay as they are."
    )
    typer.echo(f"accuracy on those {held_out}: {100 * sum(found.correct) / held_out:.1f} %")
    typer.echo(f"Wrote {model / CALIBRATION}")
