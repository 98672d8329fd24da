"""An hour of service: `ogkd app` and `ogkd studio` under load, the studio killed again and again.

    python benchmarks/service.py MODEL IMAGES [--minutes 60] [--clients 200] --out runs/service.json

`ogkd app` meets clients who ask now and then and every five minutes all at once, slow uploads,
connections that send half a request, uploads that break off, and requests that are wrong. Every
answer is compared with that for the image alone. In `ogkd studio` people label; kill -9 ends it
every few minutes, and each label that was acknowledged must be in its log and on its page again.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ogkd.files import write_json
from ogkd.serve.studio.project import Project

BURST = 300  # seconds between moments at which all clients ask at once
THINK = 40  # seconds, on average, between two requests of one client
HALF, TRICKLES = 30, 6  # connections with half a request; uploads of a minute
CLASSES = ("first", "second", "third")


class Server:
    """A command that serves a page, as a process of its own."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.words, self.folder = [sys.executable, "-m", "ogkd", *map(str, words)], folder
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1"}
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.words, "--port", "0"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        assert self.process.stdout is not None
        address = next((line for line in self.process.stdout if line.startswith("Page: ")), None)
        if address is None:
            raise SystemExit((self.folder / "log.txt").read_text())
        self.host = address.split()[1].partition("//")[2].rstrip("/")

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, timeout=600)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, **body: object) -> Any:
        status, content = self.ask(method, path, json.dumps(body).encode() if body else None)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {content[:200]!r}")
        return json.loads(content)

    def connect(self) -> socket.socket:
        host, _, port = self.host.partition(":")
        return socket.create_connection((host, int(port)), timeout=600)

    @property
    def memory(self) -> float:
        return round(psutil.Process(self.process.pid).memory_info().rss / 1e6, 1)

    def stop(self) -> str:
        """End it as a user does; what was wrong about its end."""
        self.process.send_signal(signal.SIGINT)
        last, _ = self.process.communicate(timeout=300)
        ended = self.process.returncode == 0 and last.startswith("Stopped; ")
        traceback = "Traceback" in (self.folder / "log.txt").read_text()
        return ("" if ended else f"code {self.process.returncode} ") + "a traceback" * traceback


class Load:
    """Threads that ask until the end, what they count and what went wrong."""

    def __init__(self, app: Server, studio: Server, images: list[Path], project: Path) -> None:
        self.app, self.studio, self.project = app, studio, project
        self.files = [image.read_bytes() for image in images]
        self.expected = [self.classify(number)[1] for number in range(len(self.files))]
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.marks: list[tuple[int, str, str | None, str]] = []  # what was acknowledged
        self.begun, self.end, self.open = time.monotonic(), threading.Event(), threading.Event()
        self.open.set()

    def classify(self, number: int) -> tuple[int, Any]:
        status, content = self.app.ask("POST", "/predict?name=a.png", self.files[number])
        return status, json.loads(content)["models"] if status == 200 else content

    def judge(self, kind: str, number: int, status: int, models: Any) -> None:
        right = status == 200 and models == self.expected[number]
        self.counts[kind if right else f"{kind}, 503" if status == 503 else f"{kind}, wrong"] += 1
        if not right and status != 503:
            self.wrong.append(f"{kind}: {status} {models}"[:300])

    def client(self, choose: random.Random) -> None:
        elapsed = time.monotonic() - self.begun
        self.end.wait(min(choose.expovariate(1 / THINK), BURST - elapsed % BURST))
        number = choose.randrange(len(self.files))
        if not self.end.is_set():
            self.judge("predictions", number, *self.classify(number))

    def trickle(self, choose: random.Random) -> None:
        """An upload that takes a minute, and whose answer is right all the same."""
        number = choose.randrange(len(self.files))
        content = self.files[number]
        size = len(content) // 12 + 1
        with self.app.connect() as sender:
            head = f"POST /predict?name=a.png HTTP/1.1\r\nHost: {self.app.host}\r\n"
            sender.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode())
            for at in range(0, len(content), size):
                self.end.wait(5)
                sender.sendall(content[at : at + size])
            reply = http.client.HTTPResponse(sender)
            reply.begin()
            content = reply.read()
            models = json.loads(content)["models"] if reply.status == 200 else content
            self.judge("slow uploads", number, reply.status, models)

    def half(self, choose: random.Random) -> None:
        with self.app.connect() as sender:
            sender.sendall(choose.choice([b"POST /predict HT", b"GET / HTTP/1.1\r\nHost: "]))
            self.end.wait(choose.uniform(10, 120))
        self.counts["half requests"] += 1

    def abort(self, choose: random.Random) -> None:
        server, path = choose.choice([(self.app, "/predict"), (self.studio, "/api/upload?name=a")])
        content = choose.choice(self.files)
        with server.connect() as sender:
            head = f"POST {path} HTTP/1.1\r\nHost: {server.host}\r\n"
            sender.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode())
            sender.sendall(content[: choose.randrange(len(content))])
        self.counts["aborted uploads"] += 1
        self.end.wait(choose.uniform(0, 1))

    def mistake(self, choose: random.Random) -> None:
        """A request of which something is wrong; only an internal error is a wrong answer."""
        server = choose.choice([self.app, self.studio])
        noise = choose.randbytes(choose.randint(0, 60))
        content = bytearray(choose.choice(self.files))
        for _ in range(choose.randint(1, 9)):
            content[choose.randrange(len(content))] = choose.randrange(256)
        paths = ["/predict", "/model", "/api/label", "/api/undo", "/api/classes", "/api/look/x"]
        path = choose.choice([*paths, "/thumb/99999", "/../etc/passwd", "/api/next?by=%ff", "/x"])
        body = choose.choice([None, b"", b"{}", b"[" * 3000, noise, bytes(content)])
        method = choose.choice(["GET", "POST", "POST", "PUT", "DELETE"])
        kind = choose.choice(["image/png", "multipart/form-data", "application/json", ""])
        status, reply = server.ask(method, path, body, **{"Content-Type": kind})
        self.counts["mistakes"] += 1
        if status >= 500 and status != 503:
            self.wrong.append(f"mistake: {method} {path} {status} {reply[:200]!r}")
        self.end.wait(choose.uniform(0, 0.6))

    def label(self, choose: random.Random) -> None:
        """One click; it is kept here when the answer says that it is kept there."""
        self.open.wait()
        by, row = f"window {choose.randrange(3)}", choose.randrange(len(self.names))
        state = choose.choice(["label", "label", "label", "skip", "unsure"])
        label = choose.choice(CLASSES) if state == "label" else None
        reply = self.studio.json("POST", "/api/label", row=row, state=state, label=label, by=by)
        self.marks.append((reply["number"], self.names[row], label, state))
        self.counts["labels acknowledged"] += 1
        if (reply["state"], reply["label"]) != (state, label):
            self.wrong.append(f"label: {reply}")
        if choose.random() < 0.1:
            self.studio.ask("POST", "/api/undo", json.dumps({"by": by}).encode())
        if choose.random() < 0.2:
            self.studio.json("GET", "/api/next?by=x")
        self.end.wait(choose.uniform(0.5, 3))

    def begin_labelling(self) -> None:
        self.studio.json("POST", "/api/classes", classes=[{"name": name} for name in CLASSES])
        self.names = self.studio.json("GET", "/api/images")["names"]

    def kill(self) -> None:
        """End it by kill -9; then everything acknowledged is in its log and on its page."""
        self.studio.process.kill()
        self.studio.process.communicate()
        self.open.clear()
        acknowledged = list(self.marks)
        project = Project.open(self.project)
        history = {mark.number: (mark.image, mark.label, mark.state) for mark in project.history}
        lost = [mark for mark in acknowledged if history.get(mark[0]) != mark[1:]]
        self.wrong += [f"lost: {mark}" for mark in lost]
        self.counts.update({"kills": 1, "labels lost": len(lost)})
        self.studio.start()
        columns = self.studio.json("GET", "/api/images")
        rows = zip(columns["names"], columns["label"], columns["state"], strict=True)
        for name, label, state in rows:
            mark = project.marks.get(name)
            kept = CLASSES[label] if label >= 0 else None
            if (
                mark is not None
                and mark.state != "clear"
                and (mark.label, mark.state) != (kept, state)
            ):
                self.wrong.append(f"not on the page: {mark} but {label} {state}")
        self.open.set()

    def forever(self, task: Callable[[random.Random], None], seed: int) -> None:
        choose = random.Random(seed)
        while not self.end.is_set():
            server, before = self.studio, self.counts["kills"]
            try:
                task(choose)
            except (OSError, http.client.HTTPException) as error:
                # The studio was killed meanwhile; a cut request may be answered by a closed line.
                about_studio = task.__name__ in ("label", "abort", "mistake")
                late = isinstance(error, TimeoutError)
                self.counts[f"{task.__name__}, {'late' if late else 'no answer'}"] += 1
                if not late and not about_studio and not self.end.is_set():
                    self.wrong.append(f"{task.__name__}: {error!r}")
                self.end.wait(0.5)
            except Exception as error:
                self.wrong.append(f"{task.__name__}: {error!r}, kills {before}, {server.host}")
                self.end.wait(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--kill-every", type=float, default=180, help="seconds, on average")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    images = sorted(options.images.rglob("*.png"))[:24]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for part in ("app", "studio"):
            (root / part).mkdir()
        project = root / "project"
        app = Server(root / "app", "app", options.model)
        words = ("studio", options.images, "--out", project, "--backbone", "builtin")
        studio = Server(root / "studio", *words)
        load = Load(app, studio, images, project)
        load.begin_labelling()
        studio.words[4:] = [str(project)]  # from now on it is continued
        crowd = [load.client] * options.clients + [load.half] * HALF + [load.trickle] * TRICKLES
        crowd += [load.abort, load.mistake, load.label, load.label, load.label]
        threads = [
            threading.Thread(target=load.forever, args=(task, seed))
            for seed, task in enumerate(crowd)
        ]
        for thread in threads:
            thread.start()
        memory: list[dict[str, float]] = []
        choose, next_kill = random.Random(0), options.kill_every
        try:
            while (elapsed := time.monotonic() - load.begun) < options.minutes * 60:
                if elapsed > next_kill:
                    load.kill()
                    next_kill += options.kill_every * choose.uniform(0.6, 1.4)
                sizes = {"app": app.memory, "studio": studio.memory}
                memory.append({"second": round(elapsed), **sizes})
                load.end.wait(min(15, options.minutes * 6))
        finally:
            load.end.set()
            load.open.set()
            for thread in threads:
                thread.join()
            processor = {
                part: round(sum(psutil.Process(server.process.pid).cpu_times()[:2]))
                for part, server in (("app", app), ("studio", studio))
            }
            load.kill()  # the last check
            ends = {"app": app.stop(), "studio": studio.stop()}
            left = {part: len([*(root / part).glob("ogkd-app-*")]) for part in ends}
    result = {
        "minutes": options.minutes,
        "counts": dict(sorted(load.counts.items())),
        "wrong": load.wrong[:50],
        "how_many_wrong": len(load.wrong),
        "ends": ends,
        "upload_folders_left": left,
        "processor_seconds": processor,
        "memory_mb": memory,
    }
    text = json.dumps({**result, "memory_mb": memory[:: max(1, len(memory) // 12)]}, indent=1)
    print(text)
    if options.out is not None:
        write_json(options.out, result, ours=True)


if __name__ == "__main__":
    main()
