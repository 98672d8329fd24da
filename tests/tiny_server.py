"""A web server of the tests' own, on the loopback interface, that can misbehave on demand."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class TinyServer(http.server.ThreadingHTTPServer):
    """Serves `files` by path; the other attributes are ways to be difficult."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []  # path and Range
        self.sent = 0  # bytes of bodies
        self.failures: list[int] = []  # statuses to answer first
        self.headers: dict[str, str] = {}  # added to every answer
        self.redirects: dict[str, str] = {}
        self.redirect_headers: dict[str, str] = {}
        self.drop_after: list[int] = []  # the next answers end after so many bytes
        self.pause = 0.0  # seconds between pieces
        self.piece = 4096
        self.ranges = True
        self.tags = True
        self.lengths = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: TinyServer

    def do_HEAD(self) -> None:
        """As a hub answers about one of its files."""
        content = self.server.files.get(self.path)
        facts = {"X-Repo-Commit": "c" * 40}
        if content is not None:
            digest = hashlib.sha256(content).hexdigest()
            facts |= {"Content-Length": str(len(content)), "ETag": f'"{digest}"'}
        self._empty(404 if content is None else 200, facts)

    def do_GET(self) -> None:
        server = self.server
        wanted = self.headers.get("Range", "")
        server.asked.append((self.path, wanted))
        if server.failures:
            return self._empty(server.failures.pop(0), server.headers)
        if self.path in server.redirects:
            place = {"Location": server.redirects[self.path]}
            return self._empty(302, {**place, **server.redirect_headers})
        content = server.files.get(self.path)
        if content is None:
            return self._empty(404, {})
        found = re.fullmatch(r"bytes=(\d+)-", wanted) if server.ranges else None
        start = int(found[1]) if found else 0
        if found and start >= len(content):
            return self._empty(416, {})
        self.send_response(206 if found else 200)
        if found:
            last = len(content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        if server.lengths:
            self.send_header("Content-Length", str(len(content) - start))
        if server.tags:
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()[:16]}"')
        for key, value in server.headers.items():
            self.send_header(key, value)
        self.end_headers()
        with suppress(OSError):  # the client may be killed meanwhile
            self._send(content[start:])
        return None

    def _send(self, body: bytes) -> None:
        server = self.server
        if server.drop_after:
            body = body[: server.drop_after.pop(0)]
        for begin in range(0, len(body), server.piece):
            piece = body[begin : begin + server.piece]
            self.wfile.write(piece)
            self.wfile.flush()
            server.sent += len(piece)
            time.sleep(server.pause)

    def _empty(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": "0", **headers}.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve() -> Iterator[TinyServer]:
    with TinyServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
