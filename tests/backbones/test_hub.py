"""Fetching, against a hub of our own on the loopback interface."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from safetensors.torch import load_file, save_file

from ogkd.backbones import hub, load_backbone
from ogkd.backbones.catalog import Record
from ogkd.backbones.hub import fetch, present
from ogkd.errors import BackboneError
from stub_server import COMMIT, serve
from tiny_backbones import TEXTS, make_clip
from tower_folders import tower_weights, write_folder

BERT = ("embeddings.", "encoder.", "pooler.")
HUB_ID = "some-one/some-model"
Files = dict[str, bytes]


def publish(files: Files, folder: Path) -> None:
    """Have the hub serve the files of a folder as the repository HUB_ID."""
    files.clear()
    for path in folder.rglob("*"):
        if path.is_file():
            files[f"/{HUB_ID}/resolve/main/{path.relative_to(folder)}"] = path.read_bytes()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    make_clip(tmp_path / "published")
    return tmp_path / "published"


@pytest.fixture
def files(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """What the hub serves: a tiny model."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    served: Files = {}
    publish(served, model)
    with serve() as server:
        server.files = served
        address = server.address
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield served


def record(**changes: Any) -> Record:
    facts = {"name": "tiny", "hub_id": HUB_ID, "licence": "MIT", "modality": "none"} | changes
    return Record(**facts)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_bin_is_converted_once_and_then_needs_no_network(
    files: Files, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load_backbone(model).encode_texts(TEXTS)
    state = load_file(model / "model.safetensors")
    state["text_model.embeddings.position_ids"] = torch.arange(100)[None][:, 3:15]  # shared memory
    (model / "model.safetensors").unlink()
    torch.save(state, model / "pytorch_model.bin")
    original = sha256(model / "pytorch_model.bin")
    publish(files, model)
    folder = fetch(record(weights="pytorch_model.bin", sha256=original))
    assert not list(folder.glob("*.bin"))
    source = json.loads((folder / "source.json").read_text())
    assert (source["hub_id"], source["revision"]) == (HUB_ID, COMMIT)
    assert source["original"] == {"file": "pytorch_model.bin", "sha256": original}
    assert source["weights"]["sha256"] == sha256(folder / "model.safetensors")
    assert {name: facts["sha256"] for name, facts in source["files"].items()} == {
        path.name: sha256(path) for path in folder.iterdir() if path.name != "source.json"
    }
    shutil.rmtree(tmp_path / "hub-cache")
    files.clear()
    assert fetch(record()) == folder == present(record())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert torch.equal(load_backbone(folder).encode_texts(TEXTS), expected)


def test_files_in_the_hubs_own_cache_serve_offline(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files[f"/{HUB_ID}/resolve/main/pytorch_model.bin"] = b"not needed beside safetensors"
    shutil.rmtree(fetch(record()))
    files.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = fetch(record())
    assert json.loads((folder / "source.json").read_text())["revision"] == COMMIT


@pytest.mark.parametrize("offline", [True, False])
def test_without_network_the_error_names_the_command_and_the_folder(
    files: Files, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    else:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(BackboneError, match="ogkd backbones fetch biomedclip") as caught:
        load_backbone("biomedclip")
    assert caught.value.argument == "backbone"
    assert str(Path(os.environ["OGKD_CACHE"]) / "backbones" / "biomedclip") in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "hint"),
    [(GatedRepoError, True), (RepositoryNotFoundError, True), (RevisionNotFoundError, False)],
)
def test_a_refusal_of_the_hub_is_one_error(
    monkeypatch: pytest.MonkeyPatch, kind: Any, hint: bool
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise kind(
            "refused", response=httpx.Response(404, request=httpx.Request("GET", "http://h"))
        )

    monkeypatch.setattr(hub, "hf_hub_download", refuse)
    with pytest.raises(BackboneError) as caught:
        fetch(record())
    assert caught.value.argument == "backbone"
    assert ("hf auth login" in str(caught.value)) == hint
    assert not record().folder.exists()


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_repository_without_what_is_needed_is_refused(files: Files, file: str) -> None:
    del files[f"/{HUB_ID}/resolve/main/{file}"]
    with pytest.raises(BackboneError) as caught:
        fetch(record())
    assert caught.value.argument == "backbone"
    assert not record().folder.exists()


@pytest.mark.parametrize("known", [True, False])
def test_a_wrong_hash_is_refused_and_the_file_deleted(
    files: Files, tmp_path: Path, model: Path, known: bool
) -> None:
    """The hash of the catalogue, or the one that the hub announced."""
    digest = sha256(model / "model.safetensors")
    if not known:
        shutil.rmtree(fetch(record()))
        (blob,) = (tmp_path / "hub-cache").rglob(digest)
        blob.chmod(0o644)
        blob.write_bytes(bytes(blob.stat().st_size))
    with pytest.raises(BackboneError, match="was deleted"):
        fetch(record(weights="model.safetensors", sha256="0" * 64 if known else None))
    assert not record().folder.exists()
    assert not list((tmp_path / "hub-cache").rglob(digest))


def test_damage_in_the_cache_is_noticed(files: Files) -> None:
    weights = fetch(record()) / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(content[:100])
    for again in (present, fetch):
        with pytest.raises(BackboneError, match="ogkd backbones fetch tiny"):
            again(record())
    shutil.rmtree(weights.parent)
    assert (fetch(record()) / "model.safetensors").read_bytes() == content


def test_open_clip_takes_what_it_lacks_from_the_repositories_it_names(
    files: Files, tmp_path: Path
) -> None:
    folder = tmp_path / "open_clip"
    folder.mkdir()
    text = {"hf_model_name": HUB_ID, "hf_tokenizer_name": HUB_ID}
    config = {"model_cfg": {"vision_cfg": {"timm_model_name": "vit"}, "text_cfg": text}}
    marker = folder / "open_clip_config.json"
    marker.write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "vocab.txt").write_text("[PAD]\n")
    save_file({"visual.x": torch.ones(2)}, folder / "open_clip_model.safetensors")
    publish(files, folder)
    assert sorted(hub._text_files(marker, [marker.name])) == ["config.json", "vocab.txt"]
    assert hub._text_files(marker, ["config.json", "vocab.txt"]) == {}
    source = json.loads((fetch(record()) / "source.json").read_text())
    assert source["format"] == "open_clip"
    assert set(source["files"]) == {path.name for path in folder.iterdir()}


def publish_tower(files: Files, name: str, folder: Path, *, dataset: bool = False) -> Path:
    """Serve a tiny model of `tests/parity/towers`."""
    write_folder(folder, name)
    publish(files, folder)
    if dataset:
        for address in list(files):
            files[f"/datasets{address}"] = files.pop(address)
    return folder


def test_a_model_in_several_files_of_a_dataset_is_fetched_whole(
    files: Files, tmp_path: Path
) -> None:
    """PMC-CLIP: a bare tensor is one of its files; its tokenizer is in another repository."""
    state = tower_weights("pmc_clip")
    parts = {
        "image_encoder(resnet50)": {k: v for k, v in state.items() if not k.startswith(BERT)},
        "text_encoder": {k: v for k, v in state.items() if k.startswith(BERT)},
    }
    projection = parts["image_encoder(resnet50)"].pop("text_projection_layer")
    folder = publish_tower(files, "pmc_clip", tmp_path / "whole")
    expected = load_backbone(folder).encode_texts(TEXTS)
    published = tmp_path / "parts"
    published.mkdir()
    for name, tensors in parts.items():
        torch.save(tensors, published / f"{name}.pth")
    torch.save(projection, published / "text_projection_layer.pth")
    files.clear()
    for path in published.iterdir():
        files[f"/datasets/{HUB_ID}/resolve/main/{quote(path.name)}"] = path.read_bytes()
        files[f"/datasets/{HUB_ID}/resolve/main/{path.name}"] = path.read_bytes()
    files["/others/texts/resolve/main/vocab.txt"] = (folder / "vocab.txt").read_bytes()
    known = {
        "format": "pmc_clip",
        "dataset": True,
        "weights": "image_encoder(resnet50).pth",
        "also": ("text_encoder.pth", "text_projection_layer.pth"),
        "texts": "others/texts",
    }
    fetched = fetch(record(**known))
    assert len(list(fetched.glob("*.safetensors"))) == 3
    assert fetch(record(**known)) == fetched == present(record(**known))
    features = load_backbone(fetched).encode_texts(TEXTS)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)
    del files[f"/datasets/{HUB_ID}/resolve/main/text_encoder.pth"]
    shutil.rmtree(fetched)
    shutil.rmtree(tmp_path / "hub-cache")
    with pytest.raises(BackboneError, match="weight file"):
        fetch(record(**known))


def test_a_configuration_that_is_not_published_comes_from_the_catalogue(
    files: Files, tmp_path: Path
) -> None:
    folder = publish_tower(files, "own_vit", tmp_path / "model")
    expected = load_backbone(folder).encode_texts(TEXTS)
    config = json.loads((folder / "open_clip_config.json").read_text())["model_cfg"]
    (folder / "open_clip_config.json").unlink()
    torch.save({"state_dict": tower_weights("own_vit")}, folder / "best.pt")
    (folder / "model.safetensors").unlink()
    publish(files, folder)
    fetched = fetch(record(format="open_clip", weights="best.pt", model_cfg=config))
    features = load_backbone(fetched).encode_texts(TEXTS)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)


def test_open_clips_files_are_used_where_a_clip_model_is_published_beside_them(
    files: Files, tmp_path: Path
) -> None:
    """QuiltNet-B-32, of whose weights for transformers the name has changed."""
    folder = publish_tower(files, "own_vit", tmp_path / "model")
    (folder / "config.json").write_text('{"model_type": "clip"}')
    (folder / "model.safetensors").rename(folder / "open_clip_model.safetensors")
    publish(files, folder)
    expected = load_backbone(folder).encode_texts(TEXTS)
    fetched = fetch(record(format="open_clip"))
    assert not (fetched / "config.json").exists()
    features = load_backbone(fetched).encode_texts(TEXTS)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)


def test_a_tokenizer_that_is_elsewhere_comes_along(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CONCH's is on GitHub."""
    folder = publish_tower(files, "conch", tmp_path / "model")
    expected = load_backbone(folder).encode_texts(TEXTS)
    monkeypatch.setenv("OGKD_GITHUB", os.environ["HF_ENDPOINT"])
    files["/lab/model/main/words.json"] = files.pop(f"/{HUB_ID}/resolve/main/tokenizer.json")
    address = "https://raw.githubusercontent.com/lab/model/main/words.json"
    fetched = fetch(record(format="conch", tokenizer=address))
    features = load_backbone(fetched).encode_texts(TEXTS)
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)


def test_example_images_come_along(files: Files) -> None:
    name = next(iter(hub.published_outputs()["probabilities"]))
    files[f"/{HUB_ID}/resolve/main/shown/{name}"] = b"image"
    folder = fetch(record(examples="shown"))
    assert (folder / hub.EXAMPLES / name).read_bytes() == b"image"
    assert present(record()) == folder
