"""`ogkd app`: a page in the browser that asks models about an image."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ogkd.cli.model_options import MovedBackbone
from ogkd.cli.options import DeviceOption
from ogkd.errors import ConfigError

_PASSWORD = "OGKD_APP_PASSWORD"
_SHORTEST = 8  # letters of a password


def app_command(
    models: Annotated[
        list[Path],
        typer.Argument(help="Folders that `ogkd fit --out` made; several are compared."),
    ],
    *,
    support: Annotated[
        Path | None,
        typer.Option(help="The data that the models learned from, to show its images."),
    ] = None,
    max_risk: Annotated[
        float | None, typer.Option(help="Abstain so that at most this share of answers is wrong.")
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="How often the set of plausible classes holds the true one.")
    ] = 0.9,
    backbone: MovedBackbone = None,
    host: Annotated[
        str, typer.Option(help="The address to serve at. Any but this machine's asks a password.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The port (default: 7860, or the next free one)."),
    ] = None,
    max_mb: Annotated[float, typer.Option(help="The largest upload, in megabytes.")] = 50,
    max_pixels: Annotated[
        float, typer.Option(help="The most pixels of an image, at most 100e6.")
    ] = 50e6,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """Serve a page that answers for one image at a time. Ctrl-C ends it.

    The page works offline and is served to this machine alone. With --host
    others can reach it; it then needs a password, which is asked for or read
    from OGKD_APP_PASSWORD. Uploads are deleted as soon as they are answered.
    """
    from ogkd.app.server import Settings, is_loopback, require_gradio, serve
    from ogkd.images.decode import MAX_PIXELS

    limits = {"max_bytes": _count("--max-mb", max_mb * 1e6)}
    limits["max_pixels"] = _count("--max-pixels", max_pixels)
    if limits["max_pixels"] > MAX_PIXELS:
        raise ConfigError(
            f"--max-pixels is at most {MAX_PIXELS:,}: larger images are never read. Cut them into "
            "tiles or scale them down first."
        )
    require_gradio()
    password = None if is_loopback(host) else _ask_password(host)
    settings = Settings(host=host, port=port, password=password, **limits)

    from ogkd.app.models import load_models, with_support_images

    loaded = load_models(
        models, backbone=backbone, device=device, coverage=coverage, max_risk=max_risk
    )
    if support is not None:
        loaded = with_support_images(loaded, support)
    for model in loaded:
        if model.note:
            typer.echo(f"Note on {model.name}: {model.note}", err=True)

    def say(address: str) -> None:
        typer.echo(f"Serving {', '.join(model.name for model in loaded)}")
        typer.echo(f"Page: {address}    (Ctrl-C ends it)")
        if password is not None:
            typer.echo("The password travels unencrypted: use it in a network that you trust.")
        if open_browser:
            typer.launch(address)

    serve(loaded, settings, say=say)
    typer.echo("Ended; no upload is kept.")


def _count(option: str, value: float) -> int:
    if not 1 <= value < 1e12:
        raise ConfigError(f"{option} must be a positive number, but is {value:g}.")
    return int(value)


def _ask_password(host: str) -> str:
    """From the environment or the terminal, never from the command line, where others see it."""
    password = os.environ.get(_PASSWORD)
    if password is None:
        if not sys.stdin.isatty():
            raise ConfigError(
                f"{host} can be reached from other machines, so the page needs a password. Set "
                f"{_PASSWORD}, or run this in a terminal, which asks for one."
            )
        password = typer.prompt("Password for the page", hide_input=True, confirmation_prompt=True)
    if len(password) < _SHORTEST:
        raise ConfigError(f"The password must have at least {_SHORTEST} letters.")
    return str(password)
