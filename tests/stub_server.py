"""A web server of the tests' own, on the loopback interface, that can misbehave on demand.

It is a hub: files by path.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c" * 40


class StubServer(ThreadingHTTPServer):
    """Serves `files` by path; the other attributes are ways to be difficult."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []  # path and Range
        self.sent = 0  # bytes of bodies
        self.failures: list[int] = []  # statuses to answer first
        self.headers: dict[str, str] = {}  # added to every answer
        self.redirects: dict[str, str] = {}
        self.redirect_headers: dict[str, str] = {}
        self.drop_after: list[int] = []  # the next answers end after so many bytes
        self.pause = 0.0  # seconds between pieces
        self.ranges = self.tags = self.lengths = True

    def handle_error(self, *_: object) -> None:
        pass  # a client that went away is part of some tests


class _Handler(BaseHTTPRequestHandler):
    server: StubServer

    def do_HEAD(self) -> None:
        """As a hub answers about one of its files."""
        content = self.server.files.get(self.path.partition("?")[0])
        if content is None:
            return self._answer(404, {"X-Repo-Commit": COMMIT, "X-Error-Code": "EntryNotFound"})
        facts = {"X-Repo-Commit": COMMIT, "Content-Length": str(len(content))}
        return self._answer(200, {**facts, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'})

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range", "")
        server.asked.append((self.path, wanted))
        if server.failures:
            return self._answer(server.failures.pop(0), server.headers)
        if self.path in server.redirects:
            target = {"Location": server.redirects[self.path]}
            return self._answer(302, {**target, **server.redirect_headers})
        content = server.files.get(self.path.partition("?")[0])
        if content is None:
            return self._answer(404, {"X-Error-Code": "EntryNotFound"})
        match = re.fullmatch(r"bytes=(\d+)-", wanted) if server.ranges else None
        start = int(match[1]) if match else 0
        if match and start >= len(content):
            return self._answer(416, {})
        facts = dict(server.headers)
        if match:
            facts["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if server.lengths:
            facts["Content-Length"] = str(len(content) - start)
        if server.tags:
            facts["ETag"] = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        return self._answer(206 if match else 200, facts, content[start:])

    def _answer(self, status: int, headers: dict[str, str], body: bytes | None = None) -> None:
        server = self.server
        self.send_response(status)
        empty = {"Content-Length": "0"} if body is None else {}
        for key, value in {**empty, **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        body = body or b""
        if body and server.drop_after:
            body = body[: server.drop_after.pop(0)]
        with suppress(OSError):  # the client may be killed meanwhile
            for begin in range(0, len(body), 4096):
                server.sent += self.wfile.write(body[begin : begin + 4096])
                self.wfile.flush()
                time.sleep(server.pause)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve() -> Iterator[StubServer]:
    with StubServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
