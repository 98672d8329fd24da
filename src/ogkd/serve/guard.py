"""Which requests reach the page: from which site, with which token, and how large."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "ogkd_token"
_HEALTH = "/health"  # what runs the container asks without a token
_MAX_TEXT = 1 << 20  # bytes of a request that is not an upload
_MAX_MESSAGE = 800  # characters of a refusal, which may quote what was sent
_HEADERS = {
    # The page may load from and call only this server, whatever an answer contains.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",  # images of patients do not belong in a browser's cache
}


@dataclass
class Guard:
    """ASGI middleware around the whole app.

    `hosts` are the host names under which the page is served without a token: a site whose name
    resolves to 127.0.0.1 (DNS rebinding) has another one. With a `token`, every request must carry
    it. `uploads` are the routes that take files, with the largest allowed size in bytes. `log`
    receives a line for each answered request.
    """

    app: ASGIApp
    uploads: Mapping[str, int]
    hosts: frozenset[str]
    token: str | None = None
    log: Callable[[str], None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, began = Request(scope), time.perf_counter()
        answer = self._sign_in(request) or self._refusal(request)
        if answer is not None and "transfer-encoding" not in request.headers:
            while (await receive()).get("more_body"):
                pass  # a sender that is cut off would not read the answer

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *added]}
                self._log(request, message["status"], time.perf_counter() - began)
            await send(message)

        await (answer or self.app)(scope, receive, send_with_headers)

    def _log(self, request: Request, status: int, seconds: float) -> None:
        """Log an answer without the query, which may name a patient's file, as a wrong path may."""
        if self.log is not None:
            path = "-" if status == 404 else request.url.path
            self.log(f"{request.method} {path} {status} {seconds * 1000:.0f} ms")

    def _sign_in(self, request: Request) -> Response | None:
        """The address that was printed carries the token; a cookie keeps it."""
        if request.method != "GET" or not self._is_token(request.query_params.get("token")):
            return None
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, self.token or "", httponly=True, samesite="strict")
        return response

    def _is_token(self, given: str | None) -> bool:
        if self.token is None or given is None:
            return False
        return secrets.compare_digest(given.encode(), self.token.encode())

    def _refusal(self, request: Request) -> Response | None:
        """Why the request may not pass, or None."""
        headers = request.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.token is None and re.sub(r":\d+$", "", host).lower() not in self.hosts:
            return problem(
                "This page is only served at the address that was printed when it started.", 403
            )
        if origin is not None and origin.partition("://")[2] != host:
            return problem("Requests from other sites are refused.", 403)
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        given = (bearer, request.cookies.get(COOKIE))
        is_open = self.token is None or request.url.path == _HEALTH
        if not is_open and not any(map(self._is_token, given)):
            return problem("The token is missing or wrong. Open the address that was printed.", 401)
        if request.method != "POST":
            return None
        length = headers.get("content-length", "")
        # A chunked body may be longer than declared: the length would not limit it.
        if "transfer-encoding" in headers or not length.isdecimal():
            return problem("The request needs a Content-Length.", 411)
        limit = self.uploads.get(request.url.path, _MAX_TEXT)
        if int(length) > limit:
            raised = "; --max-mb raises it" if request.url.path in self.uploads else ""
            text = f"The request is larger than the limit of {limit / 1e6:g} MB{raised}."
            return problem(text, 413)
        return None


def problem(message: str, status: int = 400, **more: Any) -> Response:
    """The one form of every error of the service."""
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]} ..."
    return JSONResponse({"error": message, **more}, status)
