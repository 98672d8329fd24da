"""Which requests reach the page: from whom, and how large."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from ogkd.app.limits import Guesses

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PREDICT = "/predict"
_MOST_TEXT = 1 << 20  # bytes of a request that is not an upload
_DRAINED = 1 << 30  # bytes; a larger body is cut off, not read to its end
_METHODS = ("GET", "HEAD", "POST")
_HEADERS = {
    # The page may load from and call only this server, whatever an answer contains.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",  # images of patients do not belong in a browser's cache
}


@dataclass
class Guard:
    """ASGI middleware around the whole app.

    `hosts` are the host names under which the page is served (None: any, since a password then
    protects it): a site whose name resolves to 127.0.0.1 has another one. `uploads` are the routes
    that take files, with the largest allowed size in bytes. `busy` says whether too many images
    are waiting.
    """

    app: App
    uploads: Mapping[str, int]
    hosts: frozenset[str] | None
    password: str | None
    busy: Callable[[], bool]
    guesses: Guesses = field(default_factory=Guesses)

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
        address = (scope.get("client") or ("",))[0]
        refusal = self._refusal(scope["method"], scope["path"], headers, address)
        if refusal is None:
            await self.app(scope, receive, _with_headers(send))
            return
        from starlette.responses import JSONResponse

        status, reason = refusal
        realm = {"www-authenticate": 'Basic realm="ogkd", charset="UTF-8"'} if status == 401 else {}
        if realm:
            await asyncio.sleep(0.5)  # slows down guessing; `guesses` does the rest
        await drain(headers, receive)
        answer = JSONResponse({"detail": reason}, status, realm)
        await answer(scope, receive, _with_headers(send))

    def _refusal(
        self, method: str, path: str, headers: dict[str, str], address: str
    ) -> tuple[int, str] | None:
        """Status and reason, or None if the request may pass."""
        host = headers.get("host", "")
        if self.hosts is not None and re.sub(r":\d+$", "", host).lower() not in self.hosts:
            return 403, "This page is only served at the address that was printed when it started."
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "Requests from other sites are refused."
        if self.password is not None:
            if (seconds := self.guesses.wait(address)) > 0:
                return 429, f"Too many wrong passwords. Try again in {seconds:.0f} seconds."
            if not _password_matches(self.password, headers):
                if "authorization" in headers:
                    self.guesses.wrong(address)
                return 401, "The password is missing or wrong."
            self.guesses.right(address)
        if method not in _METHODS:
            return 404, "Not found."
        return self._oversized(path, headers) if method == "POST" else None

    def _oversized(self, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        length = headers.get("content-length", "")
        # A chunked body may be longer than declared: the length would not limit it.
        if "transfer-encoding" in headers or not length.isdecimal():
            return 411, "The request needs a Content-Length."
        most = self.uploads.get(path, _MOST_TEXT)
        if int(length) > most:
            what = f"{most / 1e6:g} MB for a file" if path in self.uploads else "a request"
            return 413, f"The request is larger than the limit of {what}. Use a smaller one."
        if path == PREDICT and self.busy():
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
            own = [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        await send(message)

    return sender


async def drain(headers: Mapping[str, str], receive: Receive) -> None:
    """Read the rest of the request, so that the sender gets to read the answer."""
    length = headers.get("content-length", "0")
    more = length.isdecimal() and int(length) <= _DRAINED and "transfer-encoding" not in headers
    while more:
        message = await receive()
        more = message["type"] == "http.request" and bool(message.get("more_body"))
