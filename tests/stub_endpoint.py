"""An OpenAI-compatible endpoint on loopback that answers what a test tells it to."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = (
    "bright",
    "dark",
    "oval",
    "round",
    "smooth",
    "ragged",
    "thin",
    "thick",
    "grey",
    "white",
    "black",
    "pale",
    "dense",
    "fine",
    "coarse",
    "edge",
    "rim",
    "band",
    "shadow",
    "halo",
    "layer",
    "fold",
    "vessel",
    "duct",
    "node",
    "patch",
    "streak",
    "speck",
    "core",
    "border",
    "centre",
    "margin",
    "upper",
    "lower",
    "left",
    "right",
    "inner",
    "outer",
    "small",
    "large",
    "faint",
    "sharp",
    "blurred",
    "even",
    "uneven",
    "linear",
    "nodular",
)


def texts(name: str, count: int, seed: int = 0) -> list[str]:
    """Sound prompts that differ from each other."""
    rng = random.Random(f"{name} {seed}")
    return [f"{name} {' '.join(rng.sample(WORDS, 12))}" for _ in range(count)]


@dataclass
class Reply:
    """One scripted answer; `cut` announces more bytes than are sent."""

    content: str | None = None
    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: bool = False


@dataclass
class Stub:
    """The endpoint: scripted replies first, then as many sound texts as asked for."""

    url: str
    script: list[Reply] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def reply(self, request: dict[str, Any]) -> Reply:
        self.asked.append(request)
        if self.script:
            return self.script.pop(0)
        question = request["messages"][-1]["content"]
        count, name = re.findall(r'Write (\d+) .*? class "([^"]+)"', question, re.S)[0]
        return Reply(json.dumps(texts(name, int(count), len(self.asked))))


@contextmanager
def stub_endpoint() -> Iterator[Stub]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            stub.headers.append(dict(self.headers))
            stub.paths.append(self.path)
            reply = stub.reply(request)
            time.sleep(reply.delay)
            message = {"choices": [{"message": {"role": "assistant", "content": reply.content}}]}
            body = json.dumps(message).encode() if reply.body is None else reply.body
            self.send_response(reply.status)
            for key, value in reply.headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body) + 100 * reply.cut))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            pass  # a client that went away is part of some tests

    server = Server(("127.0.0.1", 0), Handler)
    stub = Stub(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
