"""A benchmark of five images: its split, its archive and its record in the catalogue."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from typing import Any

from ogkd.data.catalog import Benchmark
from stub_server import StubServer

SPLIT = {
    "train": [["tumor/2.png", 1, "tumor"], ["no_finding/1.png", 0, "no finding"]],
    "val": [["tumor/3.png", 1, "tumor"]],
    "test": [["tumor/1.png", 1, "tumor"], ["no_finding/2.png", 0, "no finding"]],
}
COUNTS = {"train": 2, "val": 1, "test": 2}
PATHS = [row[0] for rows in SPLIT.values() for row in rows]
SPLIT_BYTES = json.dumps(SPLIT).encode()
SPLIT_SHA256 = hashlib.sha256(SPLIT_BYTES).hexdigest()


def packed(files: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_STORED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return memory.getvalue()


def content(*, images: str = "TINY/TINY/", split: str | None = "TINY/split_TINY.json") -> bytes:
    """An archive with the images below one path and the split file at another."""
    files = {f"{images}{path}": random.Random(path).randbytes(400) for path in PATHS}
    if split is not None:
        files[split] = SPLIT_BYTES
    return packed(files)


def record(server: StubServer, **changes: Any) -> Benchmark:
    facts: dict[str, Any] = {
        "name": "tiny",
        "title": "Tiny",
        "modality": "CT",
        "organ": "none",
        "class_names": ("no finding", "tumor"),
        "base": 1,
        "archive": "TINY.zip",
        "url": f"{server.address}/TINY.zip",
        "folder": "TINY",
        "split_file": "split_TINY.json",
        "split_sha256": SPLIT_SHA256,
        "counts": COUNTS,
        "citation": "c.",
        "licence": "unknown",
    }
    return Benchmark(**facts | changes)
