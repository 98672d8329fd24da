"""Which requests reach the page: from whom, for which routes, and how large.

Gradio serves some fifty routes and accepts posts from other sites; the page needs only a few.
Everything that is not listed here is refused before Gradio sees it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UPLOAD = "/gradio_api/upload"
_GET = re.compile(
    r"/|/config/?|/(assets|static)/[\w./-]+|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt"
    r"|/gradio_api/(info/?|app_id/?|user/?|login_check/?|startup-events|theme\.css|queue/data"
    r"|queue/status|upload_progress|heartbeat/[\w-]+|call/(v2/)?classify/[\w-]+)"
)
_POST = re.compile(r"/gradio_api/(upload|queue/join|reset/?|cancel|call/(v2/)?classify/?)")
_WORK = re.compile(r"/gradio_api/(upload|queue/join|call/.*)")
_MOST_TEXT = 64 * 1024  # bytes of a request that is not an upload
_FORM = 64 * 1024  # what a form adds to its file
_DRAINED = 1 << 30  # bytes; a larger body is cut off, not read to its end
_HEADERS = {
    # The page may load from and call only this server, whatever an answer contains. Gradio fills
    # its templates with `Function`, hence unsafe-eval.
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' "
    "'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass
class Guard:
    """ASGI middleware around the whole app.

    `hosts` are the host names under which the page is served (None: any, since a password then
    protects it): a site whose name resolves to 127.0.0.1 has another one. `busy` says whether too
    many images are waiting.
    """

    app: App
    max_bytes: int
    hosts: frozenset[str] | None
    password: str | None
    busy: Callable[[], bool]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        refusal = self._refusal(scope["method"], scope["path"], headers)
        if refusal is None:
            await self.app(scope, receive, _with_headers(send))
            return
        from starlette.responses import JSONResponse

        status, reason = refusal
        realm = {"www-authenticate": 'Basic realm="ogkd", charset="UTF-8"'} if status == 401 else {}
        if realm:
            await asyncio.sleep(0.5)  # slows down guessing
        await _drain(headers, receive)
        answer = JSONResponse({"detail": reason}, status, realm)
        await answer(scope, receive, _with_headers(send))

    def _refusal(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and reason, or None if the request may pass."""
        host = headers.get("host", "")
        if self.hosts is not None and re.sub(r":\d+$", "", host).lower() not in self.hosts:
            return 403, "This page is only served at the address that was printed when it started."
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "Requests from other sites are refused."
        if self.password is not None and not _password_matches(self.password, headers):
            return 401, "The password is missing or wrong."
        if method in ("GET", "HEAD"):
            return None if _GET.fullmatch(path) else (404, "Not found.")
        if method != "POST" or not _POST.fullmatch(path):
            return 404, "Not found."
        return self._oversized(path, headers)

    def _oversized(self, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        length = headers.get("content-length", "")
        # A chunked body may be longer than declared: the length would not limit it.
        if "transfer-encoding" in headers or not length.isdecimal():
            return 411, "The request needs a Content-Length."
        most = self.max_bytes + _FORM if path == UPLOAD else _MOST_TEXT
        if int(length) > most:
            what = f"{self.max_bytes / 1e6:g} MB for an image" if path == UPLOAD else "a request"
            return 413, f"The request is larger than the limit of {what}. Use a smaller image."
        if _WORK.fullmatch(path) and self.busy():
            return 503, "Too many images are waiting. Try again in a minute."
        return None


def _password_matches(password: str, headers: dict[str, str]) -> bool:
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return False
    try:
        _, _, given = base64.b64decode(token, validate=True).partition(b":")
    except binascii.Error:
        return False
    return hmac.compare_digest(given, password.encode())


def _with_headers(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            # Gradio allows other sites on this machine to read; they may not.
            old = message.get("headers", [])
            kept = [pair for pair in old if not pair[0].lower().startswith(b"access-control-")]
            kept += [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
            message = {**message, "headers": kept}
        await send(message)

    return sender


async def _drain(headers: dict[str, str], receive: Receive) -> None:
    """Read the rest of the request, so that the sender gets to read the answer."""
    length = headers.get("content-length", "0")
    more = length.isdecimal() and int(length) <= _DRAINED and "transfer-encoding" not in headers
    while more:
        message = await receive()
        more = message["type"] == "http.request" and bool(message.get("more_body"))
