"""One server that looks like the places a reproduction fetches from, with small files.

The hub's datasets and models, and the files of public repositories, by their real paths.
"""

from __future__ import annotations

import hashlib
import http.server
import importlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import load_file

from ogkd.data import catalog as datasets
from ogkd.data.catalog import Benchmark, Counts
from ogkd.data.phantoms import PHANTOMS, render
from ogkd.download import GITHUB
from released_bank import PATH, released_source

backbones = importlib.import_module("ogkd.backbones.catalog")  # the package has a function so named
COMMIT = "c" * 40
FIXTURE = Path(__file__).parent / "parity" / "fixtures" / "class_token_mlp"
COUNTS = {"train": 3, "val": 2, "test": 2}  # images of each class


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        files: dict[str, bytes] = self.server.files  # type: ignore[attr-defined]
        content = files.get(self.path.partition("?")[0])
        self.send_response(404 if content is None else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        else:
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if body and content:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def stub_hub(files: dict[str, bytes]) -> Iterator[str]:
    """The address of a server with these files by path."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.files = files  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def publish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """Everything that is fetched, small; the catalogues' hashes and counts are of these files."""
    files = {PATH: released_source()}
    records = {}
    for name, record in datasets.benchmarks().items():
        archive, split = _dataset(record, with_split=name != "retina")
        files[record.url.removeprefix(datasets.HUB)] = archive
        files[str(record.split_url).removeprefix(GITHUB)] = split
        each = len(record.class_names)
        counts = Counts(**{part: count * each for part, count in COUNTS.items()})
        facts = {"split_sha256": hashlib.sha256(split).hexdigest(), "split_git_blob": None}
        records[name] = record.model_copy(update={"counts": counts, **facts})
    monkeypatch.setattr(datasets, "read_catalog", lambda _: records)
    model = backbones.catalog()["biomedclip"]
    memory = io.BytesIO()
    torch.save(_weights(), memory)
    start = f"/{model.hub_id}/resolve"
    own = {path.name: path.read_bytes() for path in FIXTURE.glob("*.json")}
    own |= {"vocab.txt": (FIXTURE / "vocab.txt").read_bytes()}
    own |= {str(model.weights): memory.getvalue()}
    for revision in ("main", COMMIT):
        files |= {f"{start}/{revision}/{name}": content for name, content in own.items()}
    listing = {
        "id": model.hub_id,
        "sha": COMMIT,
        "siblings": [{"rfilename": name, "size": len(content)} for name, content in own.items()],
    }
    files[f"/api/models/{model.hub_id}/revision/main"] = json.dumps(listing).encode()
    sha256 = hashlib.sha256(memory.getvalue()).hexdigest()
    small = model.model_copy(update={"sha256": sha256, "size": len(memory.getvalue())})
    known = {**backbones.catalog(), "biomedclip": small}
    monkeypatch.setattr(backbones, "_own_catalog", lambda: known)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return files


def _weights() -> dict[str, torch.Tensor]:
    """The fixture's text tower and a random ViT of the size that its configuration alone names."""
    wide = {24: 192, 72: 576, 96: 768}
    made = {}
    generator = torch.Generator().manual_seed(0)
    for name, tensor in load_file(FIXTURE / "open_clip_model.safetensors").items():
        if not name.startswith("visual.trunk.blocks.1."):
            layers = range(12) if name.startswith("visual.trunk.blocks.0.") else (0,)
            for layer in layers:
                own = name.replace("blocks.0.", f"blocks.{layer}.")
                made[own] = tensor
                if name.startswith("visual."):
                    shape = [wide.get(size, size) for size in tensor.shape]
                    made[own] = 0.05 * torch.randn(shape, generator=generator)
                    if "norm" in name and name.endswith("weight"):
                        made[own] += 1
    return made


def _dataset(record: Benchmark, *, with_split: bool) -> tuple[bytes, bytes]:
    """An archive FOLDER/FOLDER/CLASS/N.png with its split file, and that file."""
    kinds = len(PHANTOMS["endoscopy"].class_names)
    split: dict[str, list[list[object]]] = {part: [] for part in COUNTS}
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for label, name in enumerate(record.class_names):
            for number in range(sum(COUNTS.values())):
                part = ["train", "val", "test"][(number >= 3) + (number >= 5)]
                path = f"{name.replace(' ', '_')}/{number}.png"
                split[part].append([path, label, name])
                seed = len(record.name) + label // kinds
                drawn = render("endoscopy", label % kinds, seed=seed, index=number, size=64)
                image = io.BytesIO()
                Image.fromarray(drawn.image).save(image, format="PNG")
                archive.writestr(f"{record.folder}/{record.folder}/{path}", image.getvalue())
        content = json.dumps(split).encode()
        if with_split:
            archive.writestr(f"{record.folder}/{record.split_file}", content)
    return memory.getvalue(), content
