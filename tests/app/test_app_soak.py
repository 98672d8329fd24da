"""The service under load: memory stays flat, slow clients harm nobody, no request breaks it.

Seconds with all tests, minutes with OGKD_HOSTILE=all (`make hostile`); on this machine alone.
`pytest -s` shows the counts and the memory.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import pytest

import ogkd.serve
from web_client import started

SECONDS = 120 if os.environ.get("OGKD_HOSTILE") == "all" else 6
SLOW = 40  # connections that send half a request and wait
GROWTH = 60 << 20  # bytes: less than two images of the largest size
PATHS = list(json.loads(Path(ogkd.serve.__file__).with_name("openapi.json").read_text())["paths"])
PATHS += ["/", "/openapi.json", "/page.js", "/nowhere", "/predict/", "/../etc/passwd"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def strange_request(choose, image):
    """A method, a path with a query, a body and headers: each may be wrong."""
    method = choose.choice(["GET", "POST", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"])
    noise = choose.randbytes(choose.randint(0, 40))
    words = ["", "1", "../../x", "http://127.0.0.1:1/x", "x" * 3000, "\0", noise.decode("latin-1")]
    query = f"?name={quote(choose.choice(words))}&images={quote(choose.choice(words))}"
    damaged = bytearray(image)
    for _ in range(choose.randint(0, 6)):
        damaged[choose.randrange(len(damaged))] = choose.randrange(256)
    body = choose.choice([None, b"", noise, bytes(damaged), image[: choose.randint(1, 99)], b"{}"])
    kind = choose.choice(["image/png", "multipart/form-data", "text/plain; charset=x", ""])
    origin = choose.choice([{}, {}, {}, {"Origin": "http://evil.example"}])
    return method, choose.choice(PATHS) + query, body, {"Content-Type": kind, **origin}


def test_under_load_memory_is_flat_and_every_request_is_answered(folders, phantoms, tmp_path):
    pytest.importorskip("uvicorn")
    images = [file.read_bytes() for file in sorted((phantoms / "test").rglob("*.png"))]
    with started(tmp_path, folders / "gda") as server:
        expected = [server.classify(image).json()["models"][0]["prediction"] for image in images]
        host, _, port = server.address.partition("//")[2].strip("/").partition(":")
        end = threading.Event()
        wrong: list[object] = []
        counts = {"right": 0, "strange": 0}

        def ask(number):
            for turn in range(number, 10**9, 3):
                if end.is_set():
                    return
                reply = server.classify(images[turn % len(images)])
                if reply.status_code == 503:
                    continue
                right = expected[turn % len(images)]
                if reply.status_code == 200 and right == reply.json()["models"][0]["prediction"]:
                    counts["right"] += 1
                else:
                    wrong.append((reply.status_code, reply.text[:200]))

        def disturb():
            choose = random.Random(0)
            while not end.is_set():
                method, path, body, headers = strange_request(choose, images[0])
                try:
                    reply = server.request(method, path, content=body, headers=headers)
                except (httpx.HTTPError, httpx.InvalidURL, ValueError):
                    continue  # it may refuse to talk
                counts["strange"] += 1
                if reply.status_code >= 500 and reply.status_code != 503:
                    wrong.append((method, path, reply.status_code, reply.text[:200]))

        slow = [socket.create_connection((host, int(port))) for _ in range(SLOW)]
        for member in slow:
            member.sendall(b"POST /predict HTTP/1.1\r\nHost: ")
        clients = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
        clients.append(threading.Thread(target=disturb))
        for member in clients:
            member.start()
        try:
            process = psutil.Process(server.process.pid)
            memory = [process.memory_info().rss]
            # On a busy machine it takes longer until every client has had some answers.
            while len(memory) < 11 or (min(counts.values()) < 3 and not wrong):
                time.sleep(SECONDS / 10)
                memory.append(process.memory_info().rss)
        finally:
            end.set()
            for member in clients:
                member.join()
            for member in slow:
                member.close()
        spent = process.cpu_times()
        print(f"{counts}, {spent.user + spent.system:.0f} s of a processor, {SLOW} slow clients")
        print("MiB at each tenth of the time:", *(rss >> 20 for rss in memory))
        assert wrong == []
        # By the half of the time every path through the code has been taken.
        assert max(memory[6:]) - memory[5] < GROWTH
        assert server.waiting() == []
