"""`ogkd export`: a model as one ONNX file, compared with torch before it is left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ogkd.cli.model_options import MovedBackbone
from ogkd.cli.options import EngineOverride, ModelArgument
from ogkd.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from ogkd.export import Exported


def export(
    model: ModelArgument,
    *,
    onnx: Annotated[Path, typer.Option("--onnx", help="The file to write, ending in .onnx.")],
    include_preprocessing: Annotated[
        bool,
        typer.Option(
            "--include-preprocessing",
            help="Take uint8 [N, H, W, 3] and normalise inside the graph; scaling stays outside.",
        ),
    ] = False,
    check: Annotated[
        list[Path] | None,
        typer.Option(help="Images or folders to compare on. May be repeated. Default: phantoms."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Labelled images to compare on, which tell what --int8 costs."),
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of --data.")] = "test",
    int8: Annotated[
        bool, typer.Option("--int8", help="8-bit weights in the image tower: smaller, less exact.")
    ] = False,
    max_risk: Annotated[
        float | None,
        typer.Option(help="Note the threshold to abstain below, by the calibration; not in int8."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="How much a probability may differ from torch's.")
    ] = 1e-4,
    backbone: MovedBackbone = None,
    encoder_engine: EngineOverride = None,
) -> None:
    """Write image encoder and head as one ONNX file for onnxruntime.

    The file is compared with torch on the images of --check or --data, or on
    phantoms, in batches of 1, 2 and 7. Where a probability differs by more
    than --tolerance, no file is left. How to prepare an image, the class names and
    the calibration are in its metadata.
    """
    from ogkd.export import export_onnx, place_for_onnx, require_extra
    from ogkd.images import find_images

    require_extra()
    place = place_for_onnx(onnx)
    if check and data is not None:
        raise ConfigError("Give --check or --data, not both: each names the images to compare on.")
    images = find_images(check) if check else []

    from ogkd.evaluation.judge import judge
    from ogkd.model.classifier import load

    classifier = load(model, backbone=backbone, device="cpu", engine=encoder_engine)
    labels = None
    if data is not None:
        judged = judge(classifier, data, split=split)
        images, labels = judged.images, judged.labels
    try:
        exported = export_onnx(
            classifier,
            place,
            images=images,
            labels=labels,
            include_preprocessing=include_preprocessing,
            int8=int8,
            max_risk=max_risk,
            tolerance=tolerance,
        )
    except StorageError as error:
        raise StorageError(str(error).replace("--out", "--onnx")) from error
    _print(exported, tolerance)
    if exported.note:
        typer.echo(f"Note: {exported.note} So the file holds no sets and no threshold.", err=True)


def _print(exported: Exported, tolerance: float) -> None:
    on = f"{exported.images} images"
    if exported.phantoms:
        on += f" ({exported.phantoms} of them phantoms; real ones with --check)"
    typer.echo(
        f"Checked on {on}, in batches of 1, 2 and 7: largest difference of a probability "
        f"{exported.largest_difference:.1e}, allowed {tolerance:.0e}."
    )
    rates = exported.images_per_second
    shown = ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items())
    typer.echo(f"Images per second, one at a time: {shown}.")
    if (cost := exported.int8) is not None:
        typer.echo(
            f"int8 on {cost.images} images: largest difference {cost.largest_difference:.1e}, "
            f"same class in {100 * cost.agreement:.1f} %."
        )
        if cost.accuracy is not None and cost.float32_accuracy is not None:
            gained = 100 * (cost.accuracy - cost.float32_accuracy)
            typer.echo(
                f"Accuracy {100 * cost.accuracy:.2f} % instead of "
                f"{100 * cost.float32_accuracy:.2f} % ({gained:+.2f} points)."
            )
        typer.echo(
            f"Size {exported.bytes / 1e6:.1f} MB instead of {cost.float32_bytes / 1e6:.1f} MB, "
            f"speed {cost.speed_gain:.2f} times the float32 graph's."
        )
        if cost.speed_gain < 1:
            typer.echo("On this machine int8 is slower: use it for its size only.")
    typer.echo(f"Wrote {exported.path} ({exported.bytes / 1e6:.1f} MB).")
