"""Weights that are a map of their file: memory is given back, and nothing else changes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

import ogkd
from ogkd.backbones import load_backbone
from ogkd.backbones._frozen import release_pages
from ogkd.backbones._towers import TowersBackbone
from ogkd.backbones.base import Backbone
from tiny_data import write_dataset

SOURCE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"
WEIGHTS = "open_clip_model.safetensors"
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux only")
TEXTS = ["a scan of a cyst.", "normal tissue"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SOURCE, tmp_path / "backbone"))


def features(backbone: Backbone) -> torch.Tensor:
    size = backbone.preprocessing.size
    pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    return torch.cat([backbone.encode_images(pixels).globals, backbone.encode_texts(TEXTS)])


def in_memory(tensor: torch.Tensor) -> int:
    """How many KiB of the map that a tensor lies in are in memory."""
    entry = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            low, high = (int(end, 16) for end in words[0].split("-"))
            entry = "here" if low <= tensor.data_ptr() < high else ""
        elif entry and words[0] == "Rss:":
            return int(words[1])
    raise AssertionError("the tensor is not in the table of memory")


@linux
def test_what_is_released_leaves_the_memory_and_is_read_again(folder):
    backbone = load_backbone(folder)
    before, weight = features(backbone), backbone.model.image.patch_embed.weight
    used = in_memory(weight)
    backbone.release()
    assert in_memory(weight) < used / 2
    assert torch.equal(features(backbone), before)
    assert in_memory(weight) > used / 2


def test_memory_of_any_other_kind_is_never_given_back():
    pages = 3 * 2**20
    plain, shared = torch.ones(pages), torch.ones(pages).share_memory_()
    trained = torch.ones(pages, requires_grad=True)
    release_pages([plain, shared, trained, plain.view(3, -1).mT])
    for tensor in (plain, shared, trained):
        assert bool((tensor == 1).all())


def test_a_fit_releases_the_towers_before_it_trains(folder, tmp_path, monkeypatch):
    events: list[str] = []
    release, train = TowersBackbone.release, ogkd.methods.prompt_method.train_contexts
    encode = TowersBackbone.encode_images

    def note(name, real):
        def call(*args, **options):
            events.append(name)
            return real(*args, **options)

        return call

    monkeypatch.setattr(TowersBackbone, "release", note("release", release))
    monkeypatch.setattr(TowersBackbone, "encode_images", note("images", encode))
    monkeypatch.setattr(ogkd.methods.prompt_method, "train_contexts", note("train", train))
    data = write_dataset(tmp_path / "data")
    ogkd.fit(data, backbone=folder, method="coop", settings={"train.epochs": 1}, shots=1)
    assert events.index("images") < events.index("release") < events.index("train")
    assert events[events.index("train") - 1] == "release"
