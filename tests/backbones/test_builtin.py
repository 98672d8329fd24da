"""The embedded model: its loader on a tiny stand-in, and the real one as it is shipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from ogkd.backbones import load_backbone
from ogkd.backbones.loading import BUILTIN_FOLDER, load_builtin
from ogkd.errors import BackboneError
from tiny_backbones import TEXTS, make_clip

CPU = torch.device("cpu")


def test_the_loader_reads_a_folder_of_the_package(tmp_path: Path) -> None:
    make_clip(tmp_path)
    backbone = load_builtin(device=CPU, folder=tmp_path)
    assert backbone.name == "builtin"
    assert backbone.encode_texts(TEXTS).shape == (len(TEXTS), backbone.embed_dim)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    make_clip(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(BackboneError, match=f"not complete: {name}"):
        load_builtin(device=CPU, folder=tmp_path)


def test_the_shipped_model_loads_and_works_offline() -> None:
    backbone = load_backbone("builtin", device="cpu")
    assert backbone.name == "builtin"
    size = backbone.preprocessing.size
    features = backbone.encode_images(torch.zeros(2, 3, size, size))
    texts = backbone.encode_texts(["an ultrasound image of a benign cyst", "a normal brain MRI"])
    assert features.patches is not None
    rows, columns = backbone.patch_grid
    assert features.patches.shape == (2, rows * columns, backbone.embed_dim)
    for values in (features.globals, features.patches, texts):
        torch.testing.assert_close(values.norm(dim=-1), torch.ones(values.shape[:-1]))
    assert float(texts[0] @ texts[1]) < 0.99  # it tells the two texts apart


def test_the_shipped_model_is_small_and_has_its_card() -> None:
    assert (BUILTIN_FOLDER / "model.safetensors").stat().st_size <= 15_000_000
    assert (BUILTIN_FOLDER / "MODEL_CARD.md").is_file()


def test_the_shipped_model_does_not_depend_on_where_it_lies(tmp_path: Path) -> None:
    copy = shutil.copytree(BUILTIN_FOLDER, tmp_path / "copy")
    moved = load_backbone(copy)
    assert moved.digest == load_backbone("builtin").digest
