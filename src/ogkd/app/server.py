"""The server of the page: a private folder, one socket, the guard, and a clean shutdown."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ogkd.app.guard import UPLOAD, Guard
from ogkd.app.models import Model
from ogkd.app.page import TEMPLATES, make_page
from ogkd.app.uploads import Uploads
from ogkd.errors import ConfigError

_PORT = 7860
_TRIED = 100  # ports, from the default one on
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ENVIRONMENT = {
    # Read by Gradio and the hub client when they are imported.
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "GRADIO_ANALYTICS_MAX_EVENTS": "100",  # it keeps a list of them in memory
    "GRADIO_RUN_HISTORY": "False",
    "GRADIO_SHARE": "False",
    "GRADIO_MCP_SERVER": "False",
    "GRADIO_SSR_MODE": "False",
    "GRADIO_ALLOWED_PATHS": "",
    "GRADIO_ROOT_PATH": "",
}


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int | None = None  # None: 7860, or the next free one
    password: str | None = None
    max_bytes: int = 50_000_000
    max_pixels: int = 50_000_000
    waiting: int = 256  # images; more are refused


def require_gradio() -> None:
    """Raise a ConfigError if the extra is not installed, before any model is loaded."""
    os.environ.update(_ENVIRONMENT)
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            'The page needs Gradio. Install it with: pip install "ogkd[serve]".'
        ) from error


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name may resolve to anything


def serve(models: Sequence[Model], settings: Settings, *, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; `say` receives the address once it responds."""
    if settings.password is None and not is_loopback(settings.host):
        raise ConfigError(
            f"{settings.host} can be reached from other machines, so the page needs a password.",
            argument="host",
        )
    require_gradio()
    import uvicorn

    logging.getLogger("python_multipart").addHandler(logging.NullHandler())  # malformed forms
    _raise_on_sigterm()
    with _private_folder() as folder, contextlib.closing(_listen(settings)) as listener:
        app = make_app(models, folder, settings)
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
            ws="none",
        )
        address = _address(listener)

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets=sockets)
                say(address)

        # uvicorn shuts the server down and then raises the signal again.
        with contextlib.suppress(KeyboardInterrupt):
            Server(config).run(sockets=[listener])


def make_app(models: Sequence[Model], folder: Path, settings: Settings) -> Guard:
    import gradio as gr
    from fastapi import FastAPI

    slices = [model.classifier.card.slice for model in models if model.classifier.card.slice]
    frame = slices[0] if slices else "index=middle"
    uploads = Uploads(folder, max_pixels=settings.max_pixels, frame=frame)
    page = make_page(models, uploads, max_bytes=settings.max_bytes, waiting=settings.waiting)
    page.state_session_capacity = 64  # sessions whose answers stay in memory; the default is 10,000
    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_upload(outer, uploads, settings)
    gr.mount_gradio_app(
        outer,
        page,
        path="/",
        show_error=False,
        max_file_size=settings.max_bytes,
        allowed_paths=[],
        run_history=False,
        enable_monitoring=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        footer_links=[],
        theme=gr.themes.Default(
            primary_hue=gr.themes.colors.sky,
            font=["system-ui", "sans-serif"],  # Gradio would load its own from other servers
            font_mono=["ui-monospace", "monospace"],
        ),
        css=(TEMPLATES / "page.css").read_text(encoding="utf-8"),
    )
    page.has_launched = True  # otherwise Gradio skips its check of paths
    return guarded(outer, settings, lambda: len(page._queue) >= settings.waiting)


def guarded(outer: Any, settings: Settings, busy: Callable[[], bool]) -> Guard:
    """The app behind its guard, which checks the host name or, if there is one, the password."""
    hosts = _LOOPBACK | {settings.host.lower()}
    return Guard(
        outer,
        max_bytes=settings.max_bytes,
        hosts=hosts if settings.password is None else None,
        password=settings.password,
        busy=busy,
    )


def _add_upload(outer: Any, uploads: Uploads, settings: Settings) -> None:
    """Our own upload route: Gradio stores equal files once, so one deletion would hit two users."""
    from starlette.datastructures import UploadFile
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, Response

    async def upload(request: Any) -> Response:
        try:
            async with request.form(max_files=1, max_fields=4) as form:
                file = form.get("files")
                if not isinstance(file, UploadFile):
                    raise HTTPException(400)
                if (file.size or 0) > settings.max_bytes:
                    most = f"The image is larger than the limit of {settings.max_bytes / 1e6:g} MB."
                    return JSONResponse({"detail": most}, 413)
                place = uploads.place(file.filename or "")
                with place.open("wb") as target:
                    shutil.copyfileobj(file.file, target)
        except HTTPException:
            return JSONResponse({"detail": "Send one file, as the field 'files' of a form."}, 400)
        return JSONResponse([str(place)])

    async def progress(_: Any) -> Response:
        """The page polls the progress of an upload; report it as done."""
        return Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")

    outer.add_route(UPLOAD, upload, methods=["POST"])
    outer.add_route("/gradio_api/upload_progress", progress, methods=["GET"])


def _raise_on_sigterm() -> None:
    """Let SIGTERM unwind as Ctrl-C does, so that the upload folder is removed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder for uploads that only this user can read; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="ogkd-app-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        before = os.environ.get("GRADIO_TEMP_DIR")
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        try:
            yield folder
        finally:
            if before is None:
                os.environ.pop("GRADIO_TEMP_DIR", None)
            else:
                os.environ["GRADIO_TEMP_DIR"] = before


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
