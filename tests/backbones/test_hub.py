"""Fetching, against a hub of our own on the loopback interface."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from ogkd.backbones import hub, load_backbone
from ogkd.backbones.catalog import Record
from ogkd.backbones.hub import fetch, present
from ogkd.errors import BackboneError
from tiny_backbones import TEXTS, make_clip

COMMIT = "a" * 40
HUB_ID = "some-one/some-model"


class FakeHub(http.server.ThreadingHTTPServer):
    """Serves the files of `folder` as the repository HUB_ID."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), FakeHandler)
        self.folder = folder
        self.asked: list[str] = []
        self.refusal: tuple[int, str] | None = None
        self.damage = False


class FakeHandler(http.server.BaseHTTPRequestHandler):
    server: FakeHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        content = self._answer()
        self.wfile.write(bytes(len(content)) if self.server.damage else content)

    def _answer(self) -> bytes:
        """Send the headers; returns the file."""
        self.server.asked.append(f"{self.command} {self.path}")
        start, content = f"/{HUB_ID}/resolve/", b""
        path = self.server.folder / self.path.removeprefix(start).partition("/")[2]
        status, code = self.server.refusal or (200, "")
        if not self.server.refusal and not (self.path.startswith(start) and path.is_file()):
            status, code = 404, "EntryNotFound"
        if status == 200:
            content = path.read_bytes()
        self.send_response(status)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Error-Code", code)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return content

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    folder = tmp_path / "published"
    make_clip(folder)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    with FakeHub(folder) as fake:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{fake.server_port}")
        thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield fake
        fake.shutdown()
        thread.join()


def record(**changes: Any) -> Record:
    facts = {"name": "tiny", "hub_id": HUB_ID, "licence": "MIT", "modality": "none"} | changes
    return Record(**facts)


def publish_as_bin(folder: Path) -> str:
    """Replace the safetensors file by a .bin with shared memory; returns its sha256."""
    state = load_file(folder / "model.safetensors")
    state["text_model.embeddings.position_ids"] = torch.arange(100)[None][:, 3:15]
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    return hashlib.sha256((folder / "pytorch_model.bin").read_bytes()).hexdigest()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_bin_is_converted_once_and_then_needs_no_network(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load_backbone(server.folder).encode_texts(TEXTS)
    original = publish_as_bin(server.folder)
    folder = fetch(record(weights="pytorch_model.bin", sha256=original))
    assert not list(folder.glob("*.bin"))
    source = json.loads((folder / "source.json").read_text())
    assert source["hub_id"] == HUB_ID
    assert source["revision"] == COMMIT
    assert source["original"] == {"file": "pytorch_model.bin", "sha256": original}
    assert source["weights"]["sha256"] == sha256(folder / "model.safetensors")
    assert {name: facts["sha256"] for name, facts in source["files"].items()} == {
        path.name: sha256(path) for path in folder.iterdir() if path.name != "source.json"
    }
    shutil.rmtree(tmp_path / "hub-cache")
    server.asked.clear()
    assert fetch(record()) == folder == present(record())
    assert server.asked == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert torch.equal(load_backbone(folder).encode_texts(TEXTS), expected)


def test_files_in_the_hubs_own_cache_serve_offline(
    server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(fetch(record()))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    server.asked.clear()
    folder = fetch(record())
    assert json.loads((folder / "source.json").read_text())["revision"] == COMMIT
    assert server.asked == []


@pytest.mark.parametrize("offline", [True, False])
def test_without_network_the_error_names_the_command_and_the_folder(
    server: FakeHub, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    else:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(BackboneError, match="ogkd backbones fetch biomedclip") as caught:
        load_backbone("biomedclip")
    assert caught.value.argument == "backbone"
    assert str(Path(os.environ["OGKD_CACHE"]) / "backbones" / "biomedclip") in str(caught.value)
    assert server.asked == []


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "GatedRepo"), (404, "RepoNotFound"), (404, "RevisionNotFound"), (403, "")],
)
def test_a_refusal_of_the_hub_is_one_error(server: FakeHub, status: int, code: str) -> None:
    server.refusal = (status, code)
    with pytest.raises(BackboneError) as caught:
        fetch(record())
    assert caught.value.argument == "backbone"
    assert ("hf auth login" in str(caught.value)) == (code in ("GatedRepo", "RepoNotFound"))
    assert not record().folder.exists()


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_repository_without_what_is_needed_is_refused(server: FakeHub, file: str) -> None:
    (server.folder / file).unlink()
    with pytest.raises(BackboneError) as caught:
        fetch(record())
    assert caught.value.argument == "backbone"
    assert not record().folder.exists()


def test_a_wrong_hash_is_refused_and_the_file_deleted(server: FakeHub, tmp_path: Path) -> None:
    digest = sha256(server.folder / "model.safetensors")
    with pytest.raises(BackboneError, match=f"{digest}, not {'0' * 64}"):
        fetch(record(weights="model.safetensors", sha256="0" * 64))
    assert not record().folder.exists()
    assert not list((tmp_path / "hub-cache").rglob(digest))


def test_damage_on_the_way_is_noticed_without_a_known_hash(server: FakeHub) -> None:
    server.damage = True
    with pytest.raises(BackboneError):
        fetch(record(format="transformers"))
    assert not record().folder.exists()


def test_damage_in_the_cache_is_noticed(server: FakeHub) -> None:
    weights = fetch(record()) / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(content[:100])
    for again in (present, fetch):
        with pytest.raises(BackboneError, match="ogkd backbones fetch tiny"):
            again(record())
    shutil.rmtree(weights.parent)
    assert (fetch(record()) / "model.safetensors").read_bytes() == content


def test_open_clip_takes_what_it_lacks_from_the_repositories_it_names(server: FakeHub) -> None:
    shutil.rmtree(server.folder)
    server.folder.mkdir()
    text = {"hf_model_name": HUB_ID, "hf_tokenizer_name": HUB_ID}
    config = {"model_cfg": {"vision_cfg": {"timm_model_name": "vit"}, "text_cfg": text}}
    (server.folder / "open_clip_config.json").write_text(json.dumps(config))
    (server.folder / "config.json").write_text('{"model_type": "bert"}')
    (server.folder / "vocab.txt").write_text("[PAD]\n")
    save_file({"visual.x": torch.ones(2)}, server.folder / "open_clip_model.safetensors")
    marker = server.folder / "open_clip_config.json"
    assert sorted(hub._text_files(marker, ["open_clip_config.json"])) == [
        "config.json",
        "vocab.txt",
    ]
    assert hub._text_files(marker, ["config.json", "vocab.txt"]) == {}
    source = json.loads((fetch(record()) / "source.json").read_text())
    assert source["format"] == "open_clip"
    assert set(source["files"]) == {
        "config.json",
        "open_clip_config.json",
        "open_clip_model.safetensors",
        "vocab.txt",
    }


def test_example_images_come_along(server: FakeHub) -> None:
    name = next(iter(hub.published_outputs()["probabilities"]))
    (server.folder / "shown").mkdir()
    (server.folder / "shown" / name).write_bytes(b"image")
    folder = fetch(record(examples="shown"))
    assert (folder / hub.EXAMPLES / name).read_bytes() == b"image"
    assert present(record()) == folder
