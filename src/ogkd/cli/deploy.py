"""`ogkd export`, `app` and `studio`: a model as one ONNX file or a web page, or taught in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.options import say
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from ogkd.serve.server import Settings

HostOption = Annotated[
    str, Option(help="Address to listen on. Others than loopback need the token that is printed.")
]
PortOption = Annotated[
    int | None, Option(min=0, max=65535, help="Port (default: 7860, or a free one).")
]
MaxOption = Annotated[float, Option(min=1e-6, max=1e6, help="Largest upload, in megabytes.")]
OpenOption = Annotated[bool, Option("--open", help="Open the page in the browser.")]


def export(
    model: opt.ModelArgument,
    onnx: Annotated[
        Path, Option("--onnx", "--out", "-o", help="The file to write, ending in .onnx.")
    ],
    check: Annotated[
        list[Path] | None,
        Option(help="Images or folders to compare on (default: phantoms). Repeatable."),
    ] = None,
    max_risk: Annotated[
        float | None,
        Option(help="Store the threshold for this risk in the metadata."),
    ] = None,
    tolerance: Annotated[
        float, Option(min=0.0, help="Largest allowed difference from torch's probabilities.")
    ] = 1e-4,
    backbone: opt.MovedBackbone = None,
    engine: opt.EngineOverride = None,
) -> None:
    """Write image encoder and head as one ONNX file for onnxruntime.

    The file is compared with torch on the images of --check, or on phantoms, in
    batches of 1, 2 and 7. If a probability differs by more than
    --tolerance, no file is written. The metadata describes how to prepare an
    image, and contains the class names and the calibration.
    """
    from ogkd.export import check_onnx_path, export_onnx, require_extra
    from ogkd.images import find_images

    require_extra()
    target = check_onnx_path(onnx)
    images = find_images(check) if check else []
    classifier = ogkd.load(model, backbone=backbone, device="cpu", engine=engine)
    exported = export_onnx(
        classifier,
        target,
        images=images,
        max_risk=max_risk,
        tolerance=tolerance,
    )
    compared = f"{exported.images} images"
    if exported.phantoms:
        compared += f" ({exported.phantoms} of them phantoms; use --check for real ones)"
    typer.echo(
        f"Compared with torch on {compared}, in batches of 1, 2 and 7: largest difference of a "
        f"probability {exported.largest_difference:.1e}, allowed {tolerance:.0e}."
    )
    typer.echo(f"Wrote {exported.path} ({exported.bytes / 1e6:.1f} MB).")
    if exported.note:
        say(f"Note: {exported.note} The file therefore has no sets and no threshold.")


def app(
    models: Annotated[
        list[Path], Argument(help="Folders written by `ogkd fit --out`; several are compared.")
    ],
    max_risk: Annotated[
        float | None, Option(help="Abstain so that at most this share of answers is wrong.")
    ] = None,
    coverage: Annotated[
        float, Option(help="How often the set of classes contains the true one.")
    ] = 0.9,
    backbone: opt.MovedBackbone = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = None,
    max_mb: MaxOption = 50,
    open_browser: OpenOption = False,
    device: opt.DeviceOption = "auto",
) -> None:
    """Serve a web page that classifies images. Ctrl-C stops it.

    The page works offline and only this machine can reach it. With --host,
    others can, by the address that is printed, which contains a secret token.
    Uploads are deleted as soon as they are answered.
    """
    names = ", ".join(folder.name for folder in models)
    say(f"Starting the page for {names}: loading torch ...")
    from ogkd.serve import require_server

    require_server()
    from ogkd.serve.models import load_models
    from ogkd.serve.server import Settings, serve_models

    settings = Settings(host, port, int(max_mb * 1e6))
    say(f"Loading {len(models)} model(s) and their backbones ...")
    loaded = load_models(
        models, backbone=backbone, device=device, coverage=coverage, max_risk=max_risk
    )
    for model in loaded:
        if model.note:
            say(f"Note on {model.name}: {model.note}")

    serving = f"Serving {', '.join(model.name for model in loaded)}"
    serve_models(loaded, settings, say=announcement(serving, settings, open_browser))
    typer.echo("Stopped; no upload is kept.")


def studio(
    folder: Annotated[
        Path | None, Argument(help="A folder of images, or a project to continue.")
    ] = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="The project (default: FOLDER-studio, or studio).")
    ] = None,
    backbone: Annotated[
        str | None, Option("--backbone", "-b", help="As for `ogkd fit`; kept in the project.")
    ] = None,
    patient: Annotated[
        str | None,
        Option(help="Regular expression of paths whose first group is the patient: '(p[0-9]+)_'."),
    ] = None,
    slice: opt.SliceOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = None,
    max_mb: MaxOption = 50,
    open_browser: OpenOption = False,
    device: opt.DeviceOption = "auto",
) -> None:
    """Teach a model in the browser: label what helps most, see how good it is, use it.

    Images stay where they are, and nothing leaves this machine. Every label is
    on the disk before it is shown as saved; the same command continues later.
    Ctrl-C stops it.
    """
    say("Starting the studio: loading torch ...")
    from ogkd.files import fail_if_locked
    from ogkd.serve import require_server

    require_server()
    from ogkd.serve.server import Settings, serve
    from ogkd.serve.studio.project import SETTINGS, Project
    from ogkd.serve.studio.routes import make_studio
    from ogkd.serve.studio.session import Session

    settings = Settings(host, port, int(max_mb * 1e6))
    images = folder
    if folder is not None and (folder / SETTINGS).is_file():
        if out is not None:
            raise ConfigError(f"{folder} is a project already: give it alone, without --out.")
        images, out = None, folder
    if images is not None and not images.is_dir():
        raise ConfigError(f"There is no folder {images}. Give a folder of images.")
    name = "studio" if images is None else f"{images.resolve().name}-studio"
    target = Path(name) if out is None else out
    with fail_if_locked(target):
        project = Project.open(target)
        if backbone is not None:
            project.use_backbone(backbone)
        changes = {"patient": patient, "slice": slice}
        project.set_facts(**{key: value for key, value in changes.items() if value is not None})
        if images is not None:
            project.add_folder(images)
        session = Session(project, device=device, say=say)
        try:
            serve(
                lambda private: make_studio(session, private, settings),
                settings,
                say=announcement(f"Studio: {target}", settings, open_browser),
            )
        finally:
            session.close()
    typer.echo(f"Stopped; everything is in {target}.")


def announcement(what: str, settings: Settings, open_browser: bool) -> Callable[[str], None]:
    """What to do once the page responds at its address."""

    def announce(address: str) -> None:
        typer.echo(what)
        typer.echo(f"Page: {address}    (Ctrl-C stops it)")
        if settings.token is not None:
            typer.echo("The token is sent unencrypted: use it only in a network that you trust.")
        if open_browser:
            typer.launch(address)

    return announce
