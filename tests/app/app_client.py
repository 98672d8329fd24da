"""A server of the tests' own, and a client of it with the standard library alone."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WATCH = """
import os, sys

def watch(event, args):
    if event == "socket.connect":
        place = args[1][0] if isinstance(args[1], tuple) else args[1]
    elif event == "socket.getaddrinfo":
        place = args[0]
    else:
        return
    if str(place) not in ("127.0.0.1", "::1", "localhost", "None", "0.0.0.0"):
        with open(os.environ["OGKD_TEST_CALLS"], "a") as file:
            print(event, place, file=file)
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
        connection = http.client.HTTPConnection(self.address.partition("//")[2], timeout=120)
        try:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            connection.request(method, path, body, named)
            reply = connection.getresponse()
            found = {key.lower(): value for key, value in reply.getheaders()}
            return Reply(reply.status, found, reply.read())
        finally:
            connection.close()

    def upload(self, content: bytes, name: str = "image.png", **headers: str) -> Reply:
        mark = uuid.uuid4().hex
        head = (
            f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        )
        body = head.encode() + content + f"\r\n--{mark}--\r\n".encode()
        kind = f"multipart/form-data; boundary={mark}"
        return self.request("POST", "/gradio_api/upload", body, Content_Type=kind, **headers)

    def call(self, *data: Any) -> Any:
        """What the API says of this data: its answer, or {"error": ...}."""
        body = json.dumps({"data": data}).encode()
        kind = "application/json"
        begun = self.request("POST", "/gradio_api/call/classify", body, Content_Type=kind)
        assert begun.status == 200, begun
        ended = self.request("GET", f"/gradio_api/call/classify/{begun.json['event_id']}")
        told = ended.body.decode().strip().splitlines()
        answer = json.loads(told[-1].removeprefix("data: "))
        return answer[0] if told[-2] == "event: complete" else answer

    def classify(self, content: bytes, name: str = "image.png", *, pictures: bool = False) -> Any:
        place = self.upload(content, name)
        assert place.status == 200, place
        return self.call(record(place.json[0]), pictures)

    def waiting(self) -> list[Path]:
        """Uploads that lie on the disk."""
        return [file for file in self.temp.rglob("*") if file.is_file()]


def record(path: str) -> dict[str, Any]:
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


class started:  # noqa: N801 - reads as a verb
    """A server of the tests' own; at its end nothing may have gone wrong or out."""

    def __init__(self, place: Path, *words: object) -> None:
        self.place = place
        (self.place / "temp").mkdir()
        (self.place / "sitecustomize.py").write_text(WATCH)
        self.calls = self.place / "calls.txt"
        self.words = [*map(str, words), "--max-mb", "2", "--max-pixels", "300000", "--port", "0"]

    def __enter__(self) -> Server:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(self.place),
            "OGKD_CACHE": str(self.place / "cache"),
            "OGKD_TEST_CALLS": str(self.calls),
            "TMPDIR": str(self.place / "temp"),
        }
        self.log = (self.place / "log.txt").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ogkd", "app", *self.words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            text=True,
        )
        assert self.process.stdout is not None
        giving_up = threading.Timer(200, self.process.kill)
        giving_up.start()
        for line in self.process.stdout:
            if line.startswith("Page: "):
                giving_up.cancel()
                return Server(line.split()[1], self.place / "temp", self.process)
        giving_up.cancel()
        raise AssertionError((self.place / "log.txt").read_text())

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.stdout is not None
        last = self.process.stdout.read()
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.log.close()
        said = (self.place / "log.txt").read_text()
        assert (code, last) == (0, "Stopped; no upload is kept.\n"), said
        assert "Traceback" not in said, said
        assert not self.calls.exists(), self.calls.read_text()
        assert list((self.place / "temp").glob("ogkd-app-*")) == []
