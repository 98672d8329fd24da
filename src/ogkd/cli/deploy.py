"""`ogkd export`, `app` and `studio`: a model as one ONNX file or a web page, or taught in one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True)
class PageOptions:
    """Options of commands that serve a page."""

    host: Annotated[
        str,
        Option(help="Address to listen on. Others than loopback need the token that is printed."),
    ] = "127.0.0.1"
    port: Annotated[
        int | None, Option(min=0, max=65535, help="Port (default: 7860, or a free one).")
    ] = None
    max_mb: Annotated[float, Option(min=1e-6, max=1e6, help="Largest upload, in megabytes.")] = 500
    access_log: Annotated[
        bool,
        Option(
            "--access-log",
            envvar="OGKD_ACCESS_LOG",
            help="Print a line for each request: method, path, status, milliseconds.",
        ),
    ] = False
    open_browser: Annotated[bool, Option("--open", help="Open the page in the browser.")] = False
    device: opt.DeviceOption = "auto"

    def settings(self) -> Settings:
        """The server's settings; what it needs must be installed."""
        from ogkd.serve import require_server
        from ogkd.serve.server import Settings

        require_server()
        settings = Settings(self.host, self.port, int(self.max_mb * 1e6), self.access_log)
        _ = settings.token  # refuses a weak one before anything is loaded
        return settings

    def announce(self, what: str, address: str) -> None:
        """What to do once the page responds: print its address, and open it if requested."""
        given = os.environ.get("OGKD_TOKEN")
        shown = address.replace(given, "$OGKD_TOKEN") if given else address  # logs are kept
        typer.echo(f"{what}\nPage: {shown}    (Ctrl-C stops it)")
        if "token=" in address:
            typer.echo("The token is sent unencrypted: use it only in a network that you trust.")
        if self.open_browser:
            typer.launch(address)


def export(
    model: opt.ModelArgument,
    onnx: Annotated[
        Path, Option("--onnx", "--out", "-o", help="The file to write, ending in .onnx.")
    ],
    check: Annotated[
        list[Path] | None,
        Option(help="Images or folders to compare on (default: phantoms). Repeatable."),
    ] = None,
    max_risk: opt.MaxRiskOption = None,
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
        classifier, target, images=images, max_risk=max_risk, tolerance=tolerance
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
    model: opt.ModelArgument,
    page: PageOptions,
    more: Annotated[list[Path] | None, Argument(hidden=True)] = None,
    max_risk: opt.MaxRiskOption = None,
    coverage: opt.CoverageOption = None,
    backbone: opt.MovedBackbone = None,
) -> None:
    """Serve a web page that classifies images. Ctrl-C stops it.

    The page works offline and only this machine can reach it. With --host,
    others can, by the address that is printed, which contains a secret token.
    Uploads are deleted as soon as they are answered.
    """
    if more:
        raise ConfigError(
            f"One app serves one model: start another for {more[0]}.", argument="model"
        )
    say("Starting the page: loading torch ...")
    from ogkd.model.policy import Policy

    policy = Policy(max_risk=max_risk, coverage=coverage)
    settings = page.settings()
    from ogkd.serve.models import load_model
    from ogkd.serve.server import serve_model

    say("Loading the model and its backbone ...")
    loaded = load_model(model, backbone=backbone, device=page.device, policy=policy)
    for note in loaded.decider.notes:
        say(f"{loaded.name}: {note}")
    serve_model(loaded, settings, ready=partial(page.announce, f"Serving {loaded.name}"))
    typer.echo("Stopped; no upload is kept.")


def studio(
    page: PageOptions,
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
) -> None:
    """Teach a model in the browser: label what helps most, see how good it is, use it.

    Images stay where they are, and nothing leaves this machine. Every label is
    on the disk before it is shown as saved; the same command continues later.
    Ctrl-C stops it.
    """
    say("Starting the studio: loading torch ...")
    from ogkd.files import fail_if_locked

    settings = page.settings()
    from ogkd.serve.server import serve
    from ogkd.serve.studio.project import SETTINGS, Project
    from ogkd.serve.studio.routes import make_studio
    from ogkd.serve.studio.session import Session

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
        session = Session(project, device=page.device)
        try:
            serve(
                lambda private: make_studio(session, private, settings),
                settings,
                ready=partial(page.announce, f"Studio: {target}"),
            )
        finally:
            session.close()
    typer.echo(f"Stopped; everything is in {target}.")
