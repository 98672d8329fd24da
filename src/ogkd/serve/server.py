"""The server of the page: a private folder, one socket, the guard, and a clean shutdown."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ogkd.errors import ConfigError
from ogkd.serve.guard import Guard
from ogkd.serve.models import Model
from ogkd.serve.uploads import MIDDLE, UploadReader
from ogkd.serve.web import Worker, error_handlers, use_routes

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

_PORT = 7860
_CONCURRENCY = 256  # connections; uvicorn answers more with status 503
_TRIED = 100  # ports, from the default one on
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_CONNECTING = frozenset({"socket.connect", "socket.getaddrinfo", "socket.sendto"})
_serving, _hooked = threading.Event(), threading.Event()


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int | None = None  # None: 7860, or the next free one
    max_bytes: int = 50_000_000
    max_pixels: int = 50_000_000

    @cached_property
    def token(self) -> str | None:
        """What requests must carry; None if only this machine can connect."""
        return None if is_loopback(self.host) else secrets.token_urlsafe(32)


def require_server() -> None:
    """Raise a ConfigError if the extra is not installed, before any model is loaded."""
    try:
        import python_multipart  # noqa: F401
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
            http="h11",
            limit_concurrency=_CONCURRENCY,
        )
        address = _address(listener)
        if settings.token is not None:
            address += f"/?token={settings.token}"

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
    slices = (model.classifier.card.grouping.slice for model in models)
    reader = UploadReader(settings.max_pixels, next(filter(None, slices), MIDDLE))
    routes = use_routes(
        lambda: models, reader, Worker(), folder=folder, max_bytes=settings.max_bytes
    )
    return guarded(routes, settings)


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
    from starlette.applications import Starlette

    return Guard(
        Starlette(routes=routes, exception_handlers={**error_handlers(), **(handlers or {})}),
        uploads={"/predict": settings.max_bytes, **(uploads or {})},
        hosts=_LOOPBACK | {settings.host.lower()},
        token=settings.token,
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
