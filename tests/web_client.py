"""`ogkd app` and `ogkd studio` as processes of their own, and a real browser to visit them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

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


class Server(httpx.Client):
    """A client of a running server."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, address: str) -> None:
        super().__init__(base_url=address, timeout=3000, trust_env=False)
        self.process, self.folder, self.address = process, folder, address

    def __exit__(self, *error: Any) -> None:
        """A test that fails leaves no process to the tests after it."""
        super().__exit__(*error)
        with self.process as process:
            process.kill()

    def classify(self, content: bytes, **query: str) -> httpx.Response:
        return self.post("/predict", content=content, params=query)

    def waiting(self) -> list[Path]:
        """Uploads that lie on the disk."""
        return [file for file in (self.folder / "temp").rglob("*") if file.is_file()]


def launch(folder: Path, *words: object, command: str = "app") -> Server:
    """Start a server that keeps its temporary files and what it prints in `folder`."""
    (folder / "temp").mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(WATCH)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), *map(str, sys.path[1:])]),
        "OGKD_CACHE": str(folder / "cache"),
        "OGKD_TEST_CALLS": str(folder / "calls.txt"),
        "TMPDIR": str(folder / "temp"),
    }
    options = [*map(str, words), "--max-mb", "2", "--port", "0"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ogkd", command, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
        )
    assert process.stdout is not None
    giving_up = threading.Timer(800, process.kill)
    giving_up.start()
    address = next((line for line in process.stdout if line.startswith("Page: ")), None)
    giving_up.cancel()
    assert address is not None, (folder / "log.txt").read_text()
    return Server(process, folder, address.split()[1])


@contextmanager
def started(folder: Path, *words: object, command: str = "app") -> Iterator[Server]:
    """A server that a user ends; at its end nothing may have gone wrong or out."""
    with launch(folder, *words, command=command) as server:
        yield server
        server.process.send_signal(signal.SIGINT)
        last, _ = server.process.communicate(timeout=300)
        log = (folder / "log.txt").read_text()
        assert (server.process.returncode, last.startswith("Stopped; ")) == (0, True), log
        assert "Traceback" not in log
        assert not (folder / "calls.txt").exists()
        assert list((folder / "temp").glob("ogkd-app-*")) == []


def browse(script: Path, *words: object) -> Any:
    """What a script of playwright-core met in Chromium, or a skip that says what is missing.

    With OGKD_REQUIRE_BROWSER set, as in .ci/run, what is missing is a failure.
    """
    missing = pytest.fail if os.environ.get("OGKD_REQUIRE_BROWSER") else pytest.skip
    node = shutil.which("node")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = os.environ.get("OGKD_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    root = Path(os.environ.get("OGKD_PLAYWRIGHT") or Path(__file__).parents[1] / ".venv" / "node")
    core = root / "node_modules" / "playwright-core" / "index.js"
    if node is None or chromium is None:
        missing("node or chromium is not installed")
    if not core.is_file():
        missing(f"no playwright-core in {root}: run `make browser`, or set OGKD_PLAYWRIGHT")
    command = [*map(str, (node, script, core, chromium, *words))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
