"""`ogkd studio`: teach a model in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from ogkd.cli import options as opt
from ogkd.cli.deploy import HostOption, OpenOption, PortOption, announcement, server_settings
from ogkd.cli.output import say
from ogkd.errors import ConfigError, counted


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
    max_mb: Annotated[float, Option(help="Largest image to ask about, in megabytes.")] = 50,
    max_pixels: Annotated[float, Option(help="Largest image to ask about, in pixels.")] = 50e6,
    open_browser: OpenOption = False,
    device: opt.DeviceOption = "auto",
) -> None:
    """Teach a model in the browser: label what helps most, see how good it is, use it.

    Images stay where they are, and nothing leaves this machine. Every label is
    on the disk before it is shown as saved; the same command continues later.
    Ctrl-C stops it.
    """
    say("Starting the studio: loading torch ...")
    from ogkd.files import not_twice
    from ogkd.serve.server import require_server, serve
    from ogkd.serve.studio.project import SETTINGS, VOLUMES, Project
    from ogkd.serve.studio.routes import make_studio
    from ogkd.serve.studio.session import Session

    require_server()
    settings = server_settings(host, port, max_mb, max_pixels)
    images = folder
    if folder is not None and (folder / SETTINGS).is_file():
        if out is not None:
            raise ConfigError(f"{folder} is a project already: give it alone, without --out.")
        images, out = None, folder
    if images is not None and not images.is_dir():
        raise ConfigError(f"There is no folder {images}. Give a folder of images.")
    name = "studio" if images is None else f"{images.resolve().name}-studio"
    target = Path(name) if out is None else out
    with not_twice(target):
        project = Project.open(target)
        changes = {"backbone": backbone, "patient": patient, "slice": slice}
        project.set_facts(**{key: value for key, value in changes.items() if value is not None})
        if images is not None:
            project.add_folder(images)
        session = Session(project, device=device, say=say)
        if volumes := session.gallery.volumes:
            say(
                f"Note: of {counted(volumes, 'volume')} the studio shows and learns from one slice "
                f"each ({project.facts.slice or 'the middle axial one'}; --slice). For a model "
                f"that looks at all slices, label here and then run: ogkd fit {target / VOLUMES} "
                "--slices all --out MODEL"
            )
        try:
            serve(
                lambda private: make_studio(session, private, settings),
                settings,
                say=announcement(f"Studio: {target}", settings, open_browser),
            )
        finally:
            session.close()
    typer.echo(f"Stopped; everything is in {target}.")
