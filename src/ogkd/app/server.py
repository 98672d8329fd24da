"""The server of the page: a private folder, one socket, the guard, and a clean shutdown."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ogkd.app.guard import PREDICT, Guard
from ogkd.app.limits import patient_protocol
from ogkd.app.models import Model
from ogkd.app.uploads import Uploads
from ogkd.app.web import Line, use_routes
from ogkd.errors import ConfigError

_PORT = 7860
_MOST_BYTES = 2_000_000_000  # of all waiting uploads
_TRIED = 100  # ports, from the default one on
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_CONNECTING = frozenset({"socket.connect", "socket.getaddrinfo", "socket.sendto"})
_serving, _hooked = threading.Event(), threading.Event()


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int | None = None  # None: 7860, or the next free one
    password: str | None = None
    max_bytes: int = 50_000_000
    max_pixels: int = 50_000_000
    waiting: int = 256  # images; more are refused


def require_server() -> None:
    """Raise a ConfigError if the extra is not installed, before any model is loaded."""
    try:
        import h11  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            'The page needs a web server. Install it with: pip install "ogkd[serve]".'
        ) from error


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name may resolve to anything


def serve(make: Callable[[Path], Guard], settings: Settings, *, say: Callable[[str], None]) -> None:
    """Serve an app until Ctrl-C; `say` receives the address once it responds.

    `make` is given a private folder for uploads, which is removed at the end.
    """
    if settings.password is None and not is_loopback(settings.host):
        raise ConfigError(
            f"{settings.host} can be reached from other machines, so the page needs a password.",
            argument="host",
        )
    require_server()
    import uvicorn

    _raise_on_sigterm()
    with _private_folder() as folder, contextlib.closing(_listen(settings)) as listener:
        config = uvicorn.Config(
            make(folder),
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
            ws="none",
            http=patient_protocol(),
        )
        address = _address(listener)

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets=sockets)
                say(address)
                _serving.set()  # from now on; an event loop may connect to itself when it is made

        # uvicorn shuts the server down and then raises the signal again.
        with contextlib.suppress(KeyboardInterrupt), refuse_connections():
            Server(config).run(sockets=[listener])


@contextlib.contextmanager
def refuse_connections() -> Iterator[None]:
    """While `_serving` is set, nothing in this process can open a connection or look up a name.

    The page has no use for either; requests are checked as well, so this is the second lock.
    """
    if not _hooked.is_set():
        _hooked.set()
        sys.addaudithook(_refuse_connection)  # cannot be removed again
    try:
        yield
    finally:
        _serving.clear()


def _refuse_connection(event: str, _: object) -> None:
    if event in _CONNECTING and _serving.is_set():
        raise ConnectionRefusedError("The page opens no connections to other machines.")


def serve_models(
    models: Sequence[Model], settings: Settings, *, say: Callable[[str], None]
) -> None:
    """Serve the page and the API of fitted models until Ctrl-C."""
    serve(lambda folder: make_app(models, folder, settings), settings, say=say)


def make_app(models: Sequence[Model], folder: Path, settings: Settings) -> Guard:
    from starlette.applications import Starlette

    slices = [model.classifier.card.slice for model in models if model.classifier.card.slice]
    uploads = make_uploads(folder, settings, frame=slices[0] if slices else "index=middle")
    line = Line(settings.waiting)
    routes = use_routes(lambda: models, uploads, line, max_bytes=settings.max_bytes)
    return guarded(Starlette(routes=routes), settings, line)


def make_uploads(folder: Path, settings: Settings, *, frame: str) -> Uploads:
    most = max(_MOST_BYTES, 2 * settings.max_bytes)
    return Uploads(folder, max_pixels=settings.max_pixels, frame=frame, most_bytes=most)


def guarded(
    app: Any, settings: Settings, line: Line, uploads: Mapping[str, int] | None = None
) -> Guard:
    """The app behind its guard, which checks the host name or, if there is one, the password.

    `uploads` are routes that take files beside /predict, and their limits in bytes.
    """
    hosts = _LOOPBACK | {settings.host.lower()}
    return Guard(
        app,
        uploads={PREDICT: settings.max_bytes, **(uploads or {})},
        hosts=hosts if settings.password is None else None,
        password=settings.password,
        busy=lambda: line.is_full,
    )


def _raise_on_sigterm() -> None:
    """Let SIGTERM unwind as Ctrl-C does, so that the upload folder is removed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder for uploads that only this user can read; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="ogkd-app-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


def _listen(settings: Settings) -> socket.socket:
    """A bound socket at the requested port, or at the first free one."""
    host = settings.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # "::" also serves IPv4
    ports = [settings.port] if settings.port is not None else range(_PORT, _PORT + _TRIED)
    for port in ports:
        try:
            return socket.create_server(
                (host, port), family=family, backlog=1024, dualstack_ipv6=both
            )
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (while")[0]
            taken = error.errno == errno.EADDRINUSE
            if not taken or settings.port is not None:
                raise ConfigError(
                    f"Cannot serve at {settings.host}, port {port}: {reason}. Choose another "
                    f"{'port' if taken else 'host (an address of this machine) or port'}.",
                    argument="port" if taken else "host",
                ) from error
    last = _PORT + _TRIED - 1
    raise ConfigError(f"No port from {_PORT} to {last} is free. Choose one.", argument="port")


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
