"""A server of the tests' own, and a client of it with the standard library alone."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

WATCH = """
import os, sys

def watch(event, args):
    if event == "socket.connect":
        address = args[1][0] if isinstance(args[1], tuple) else args[1]
    elif event == "socket.getaddrinfo":
        address = args[0]
    else:
        return
    if str(address) not in ("127.0.0.1", "::1", "localhost", "None", "0.0.0.0"):
        with open(os.environ["OGKD_TEST_CALLS"], "a") as file:
            print(event, address, file=file)
        raise OSError("tests call no other machine")

sys.addaudithook(watch)
"""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    address: str
    temp: Path
    process: subprocess.Popen[str]

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """One request; `Content_Type` stands for Content-Type. The path goes out as it is."""
        connection = http.client.HTTPConnection(self.address.partition("//")[2], timeout=3000)
        try:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            connection.request(method, path, body, named)
            reply = connection.getresponse()
            received = {key.lower(): value for key, value in reply.getheaders()}
            return Reply(reply.status, received, reply.read())
        finally:
            connection.close()

    def predict(self, content: bytes, name: str = "image.png", **more: str) -> Reply:
        """POST /predict; `images="true"` is part of the address, other words are headers."""
        images = more.pop("images", "")
        words = urlencode({"name": name, **({"images": images} if images else {})})
        return self.request("POST", f"/predict?{words}", content, **more)

    def classify(self, content: bytes, name: str = "image.png", *, images: bool = False) -> Any:
        """What is said of an image: the answer, or {"detail": ...}."""
        return self.predict(content, name, images="true" if images else "").json

    def waiting(self) -> list[Path]:
        """Uploads that lie on the disk."""
        return [file for file in self.temp.rglob("*") if file.is_file()]


class started:  # noqa: N801 - reads as a verb
    """A server of the tests' own; at its end nothing may have gone wrong or out."""

    def __init__(self, folder: Path, *words: object, command: str = "app") -> None:
        self.folder, self.command = folder, command
        (self.folder / "temp").mkdir()
        (self.folder / "sitecustomize.py").write_text(WATCH)
        self.calls = self.folder / "calls.txt"
        self.words = [*map(str, words), "--max-mb", "2", "--port", "0"]

    def __enter__(self) -> Server:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(self.folder), *map(str, sys.path[1:])]),
            "OGKD_CACHE": str(self.folder / "cache"),
            "OGKD_TEST_CALLS": str(self.calls),
            "TMPDIR": str(self.folder / "temp"),
        }
        self.log = (self.folder / "log.txt").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ogkd", self.command, *self.words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            text=True,
        )
        assert self.process.stdout is not None
        giving_up = threading.Timer(800, self.process.kill)
        giving_up.start()
        for line in self.process.stdout:
            if line.startswith("Page: "):
                giving_up.cancel()
                return Server(line.split()[1], self.folder / "temp", self.process)
        giving_up.cancel()
        raise AssertionError((self.folder / "log.txt").read_text())

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.stdout is not None
        last = self.process.stdout.read()
        code = self.process.wait(timeout=300)
        self.process.stdout.close()
        self.log.close()
        log_text = (self.folder / "log.txt").read_text()
        assert (code, last.startswith("Stopped; ")) == (0, True), log_text
        assert "Traceback" not in log_text, log_text
        assert not self.calls.exists(), self.calls.read_text()
        assert list((self.folder / "temp").glob("ogkd-app-*")) == []
