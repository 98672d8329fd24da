"""What a user may write for a backbone, and what it leads to."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ogkd.backbones import load_backbone
from ogkd.backbones.catalog import Record, catalog
from ogkd.backbones.loading import detect_format, resolve, resolve_device
from ogkd.errors import BackboneError, ConfigError
from tiny_backbones import SIZE, TEXTS, make_clip, make_dual, make_siglip


@pytest.mark.parametrize("make", [make_clip, make_siglip, make_dual])
def test_a_folder_is_loaded_by_its_path_without_a_network(tmp_path: Path, make: object) -> None:
    make(tmp_path / "model")  # type: ignore[operator]
    backbone = load_backbone(str(tmp_path / "model"), device="cpu")
    assert backbone.name == str(tmp_path / "model")
    assert backbone.device == torch.device("cpu")
    assert backbone.encode_images(torch.zeros(1, 3, SIZE, SIZE)).globals.shape[0] == 1
    assert load_backbone(tmp_path / "model").digest == backbone.digest


def test_a_relative_folder_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_clip(tmp_path / "some" / "model")
    monkeypatch.chdir(tmp_path)
    assert load_backbone("some/model").encode_texts(TEXTS).shape[0] == len(TEXTS)


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


def test_a_known_hub_id_is_the_known_backbone() -> None:
    assert resolve("vinid/plip") == catalog()["plip"]


def test_another_hub_id_gets_a_bare_record() -> None:
    found = resolve("some-one/some-model")
    assert isinstance(found, Record)
    assert found.format is None


def test_unknown_names_and_paths_have_their_own_messages(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="Did you mean 'biomedclip'"):
        load_backbone("biomed-clip")
    with pytest.raises(BackboneError, match="There is no folder"):
        load_backbone(tmp_path / "absent")
    with pytest.raises(BackboneError, match="There is no folder"):
        load_backbone("./absent")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(BackboneError, match=r"is a file\. Give the folder"):
        load_backbone(str(tmp_path / "model.safetensors"))


def test_a_folder_without_a_model_is_told_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match=r"It needs open_clip_config\.json.*clip, siglip"):
        load_backbone(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(BackboneError, match="model_type 'llama'"):
        load_backbone(tmp_path)
    (tmp_path / "config.json").write_text("not json")
    with pytest.raises(BackboneError, match="It needs"):
        load_backbone(tmp_path)


def test_a_folder_with_both_formats_uses_the_one_that_can_be_read(tmp_path: Path) -> None:
    make_clip(tmp_path)
    config = {"model_cfg": {"vision_cfg": {"layers": 12}, "text_cfg": {"width": 512}}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    assert detect_format(tmp_path) == "transformers"
    config["model_cfg"]["vision_cfg"] = {"timm_model_name": "vit_base_patch16_224"}  # type: ignore[dict-item]
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    assert detect_format(tmp_path) == "open_clip"


def test_auto_takes_a_gpu_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto").type == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
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
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        load_backbone("builtin", device=device)
