"""The server of the page: a private folder, one socket, the guard, and a clean shutdown."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from ogkd.errors import ConfigError
from ogkd.serve.guard import Guard
from ogkd.serve.models import Model
from ogkd.serve.uploads import MIDDLE
from ogkd.serve.web import error_handlers, page_routes, use_routes

TOKEN = "OGKD_TOKEN"
_PORT = 7860
_CONCURRENCY = 256  # connections; uvicorn answers more with status 503
_UPLOADS = "ogkd-app-"  # of the folder with what is being uploaded; the process follows
_GRACE = 60  # seconds for accepted requests after a signal; a second signal ends at once
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int | None = None  # None: 7860, or a free one
    max_bytes: int = 500_000_000  # a CT of 600 slices has 315 MB
    access_log: bool = False  # a line for each request on standard error

    @cached_property
    def token(self) -> str | None:
        """What requests must carry: OGKD_TOKEN, or a new one if other machines can connect."""
        given = os.environ.get(TOKEN)
        if given and re.fullmatch(r"[\w.~-]{16,}", given, re.ASCII) is None:
            raise ConfigError(f"{TOKEN} needs at least 16 characters, of letters, digits, _ . ~ -")
        return given or (None if is_loopback(self.host) else secrets.token_urlsafe(32))


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name may resolve to anything


def serve(
    make: Callable[[Path], Guard], settings: Settings, *, ready: Callable[[str], None]
) -> None:
    """Serve an app until Ctrl-C; `ready` receives the address once it responds.

    `make` is given a folder for uploads that only this user can read; it is removed at the end.
    """
    # SIGTERM unwinds as Ctrl-C does, so that the uploads are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    remove_orphans()
    prefix = f"{_UPLOADS}{os.getpid()}-"
    private = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    with private as folder, contextlib.closing(_listen(settings)) as listener:
        config = uvicorn.Config(
            make(Path(folder).resolve()),
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=_GRACE,
            ws="none",
            http="h11",
            limit_concurrency=_CONCURRENCY,
        )
        host, port = listener.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        if settings.token is not None:
            address += f"/?token={settings.token}"

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets=sockets)
                ready(address)

        # uvicorn shuts the server down and then raises the signal again.
        with contextlib.suppress(KeyboardInterrupt):
            Server(config).run(sockets=[listener])


def remove_orphans() -> None:
    """Remove the uploads of servers that were killed, which could not do it themselves."""
    if os.name != "posix":
        return  # elsewhere a process cannot be asked whether it is there
    for folder in Path(tempfile.gettempdir()).glob(f"{_UPLOADS}*-*"):
        process = folder.name.removeprefix(_UPLOADS).partition("-")[0]
        if not re.fullmatch("[0-9]{1,9}", process):
            continue
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            try:
                os.kill(int(process), 0)  # raises if there is no such process
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)


def serve_model(model: Model, settings: Settings, *, ready: Callable[[str], None]) -> None:
    """Serve the page and the API of a fitted model until Ctrl-C."""
    serve(lambda folder: make_app(model, folder, settings), settings, ready=ready)


def make_app(model: Model, folder: Path, settings: Settings) -> Guard:
    frame = model.classifier.card.grouping.slice or MIDDLE
    routes = use_routes(lambda: model, folder, settings.max_bytes, one_worker(), frame=frame)
    return guarded([*routes, *page_routes()], settings)


def one_worker() -> Executor:
    """One job at a time: one model already keeps every core busy."""
    return ThreadPoolExecutor(1, thread_name_prefix="ogkd-predict")


def guarded(
    routes: Sequence[BaseRoute],
    settings: Settings,
    uploads: Mapping[str, int] | None = None,
    handlers: Mapping[Any, Any] | None = None,
) -> Guard:
    """The routes behind the guard, which checks the host name or, if there is one, the token.

    `uploads` are routes that take files beside /predict, and their limits in bytes; `handlers` turn
    further exceptions into answers.
    """
    return Guard(
        Starlette(routes=routes, exception_handlers={**error_handlers(), **(handlers or {})}),
        uploads={"/predict": settings.max_bytes, **(uploads or {})},
        hosts=_LOOPBACK | {settings.host.lower()},
        token=settings.token,
        log=partial(print, file=sys.stderr, flush=True) if settings.access_log else None,
    )


def _listen(settings: Settings) -> socket.socket:
    """A bound socket at the requested port, or at the first free one."""
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in [_PORT, 0] if settings.port is None else [settings.port]:
        try:
            return socket.create_server((host, port), family=family, backlog=1024)
        except (OSError, TypeError, ValueError) as error:  # the last two: no name of a host
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if taken and settings.port is None:
                continue
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"Cannot serve at {settings.host}, port {port}: {reason}.",
                argument="port" if taken else "host",
            ) from error
    raise AssertionError("there is a port to try")
