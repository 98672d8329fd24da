"""What a user may write for a backbone, and what it leads to."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ogkd.backbones import load_backbone
from ogkd.backbones._folder import detect_format
from ogkd.backbones.catalog import Record, catalog
from ogkd.backbones.loading import resolve, resolve_device
from ogkd.errors import BackboneError, ConfigError
from tiny_backbones import make_clip


def test_builtin_is_taken_before_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_clip(tmp_path / "builtin")
    monkeypatch.chdir(tmp_path)
    assert resolve("builtin") == catalog()["builtin"]
    assert resolve(Path("builtin")) == Path("builtin")  # a Path always means the folder


def test_a_folder_with_a_known_name_counts_only_if_it_holds_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plip").mkdir()
    assert resolve("plip") == catalog()["plip"]
    make_clip(tmp_path / "plip")
    assert resolve("plip") == Path("plip")


@pytest.mark.parametrize("name", ["plip", "PLIP", "Vinid/PLIP"])
def test_a_name_or_hub_id_in_any_case_is_the_known_backbone(name: str) -> None:
    assert resolve(name) == catalog()["plip"]


@pytest.mark.parametrize("hub_id", ["google/siglip-large-patch16-384", "org/name_1.2"])
def test_another_hub_id_gets_a_bare_record(hub_id: str) -> None:
    record = resolve(hub_id)
    assert isinstance(record, Record)
    assert (record.hub_id, record.format) == (hub_id, None)
    assert "/" not in record.folder.name


@pytest.mark.parametrize(
    "name",
    ["biomed-clip", "zzzzzz", "a/b/c", "org/", "../x", Path("absent"), "model.safetensors"],
    ids=str,
)
def test_unknown_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(BackboneError) as caught:
        load_backbone(name)
    assert caught.value.argument == "backbone"


@pytest.mark.parametrize("config", [None, '{"model_type": "llama"}', "not json"])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, config: str | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(BackboneError) as caught:
        load_backbone(tmp_path)
    assert caught.value.argument == "backbone"


def test_a_folder_with_both_formats_uses_the_one_that_can_be_read(tmp_path: Path) -> None:
    make_clip(tmp_path)
    for vision, expected in (
        ({"layers": 12}, "transformers"),
        ({"timm_model_name": "vit_base_patch16_224"}, "open_clip"),
    ):
        config = {"model_cfg": {"vision_cfg": vision, "text_cfg": {"width": 512}}}
        (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
        assert detect_format(tmp_path) == expected


def test_auto_takes_a_gpu_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto").type == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("auto").type == "cuda"


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_a_gpu_computes_in_float32_and_always_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn, matmul = SimpleNamespace(), SimpleNamespace()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends, "cudnn", cudnn)
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(matmul=matmul))
    assert resolve_device(device) == torch.device("cuda" if device == "auto" else device)
    assert vars(cudnn) == {"allow_tf32": False, "benchmark": False, "deterministic": True}
    assert vars(matmul) == {"allow_tf32": False}


@pytest.mark.parametrize("device", ["gpu", "", "cuda:x", "meta", "cpu:3", "cuda:99"])
def test_absent_device_is_refused(device: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_backbone("builtin", device=device)
    assert caught.value.argument == "device"


# The catalogue


def test_biomedclip_is_the_published_file(shared: Path) -> None:
    record = catalog()["biomedclip"]
    facts = (shared / "biomedclip" / "README.md").read_text()
    assert record.hub_id is not None
    assert f"`{record.hub_id}`" in facts
    assert f"{record.size:,} bytes" in facts
    assert f"`{record.sha256}`" in facts
