"""Load on `ogkd app`: whether of many requests at once any is lost or wrong, or memory grows.

    python benchmarks/app_load.py MODEL IMAGES [--clients 200] [--rounds 3]

Starts the page on a free port of this machine, asks it through its API, prints one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import psutil


def request(host: str, method: str, path: str, body: bytes) -> bytes:
    connection = http.client.HTTPConnection(host, timeout=600)
    try:
        connection.request(method, path, body)
        reply = connection.getresponse()
        content = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status} {content[:200]!r}")
        return content
    finally:
        connection.close()


def classify(host: str, image: Path) -> tuple[Any, float]:
    """What the page says of an image, and after how many seconds."""
    began = time.perf_counter()
    said = request(host, "POST", "/predict?name=a.png", image.read_bytes())
    return json.loads(said)["models"], time.perf_counter() - began


def start(model: Path) -> tuple[subprocess.Popen[str], str]:
    words = [sys.executable, "-m", "ogkd", "app", str(model), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Page: "):
            return process, line.split()[1].partition("//")[2]
    raise SystemExit("The page did not start.")


def one_round(host: str, jobs: list[Path], expected: dict[Path, Any]) -> dict[str, Any]:
    lost: list[str] = []
    wrong = 0
    seconds: list[float] = []
    began = time.perf_counter()
    with ThreadPoolExecutor(len(jobs)) as pool:  # all at once
        futures = [(image, pool.submit(classify, host, image)) for image in jobs]
        for image, future in futures:
            try:
                answer, took = future.result()
            except Exception as error:
                lost.append(str(error)[:200])
                continue
            seconds.append(took)
            wrong += answer != expected[image]
    return {
        "answered": len(seconds),
        "lost": len(lost),
        "reasons": sorted(set(lost)),
        "wrong": wrong,
        "seconds": round(time.perf_counter() - began, 1),
        "median_wait": round(median(seconds), 1) if seconds else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    images = sorted(options.images.rglob("*.png"))[:20]
    process, host = start(options.model)
    try:
        # One at a time first: what is right.
        expected = {image: classify(host, image)[0] for image in images}
        memory = psutil.Process(process.pid).memory_info
        jobs = [images[number % len(images)] for number in range(options.clients)]
        rounds = [{"rss_mb": round(memory().rss / 1e6, 1)}]
        for _ in range(options.rounds):
            result = one_round(host, jobs, expected)
            rounds.append({**result, "rss_mb": round(memory().rss / 1e6, 1)})
    finally:
        process.terminate()
        process.wait(timeout=60)
    print(json.dumps({"clients": options.clients, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()
