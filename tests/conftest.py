"""Fixtures that many tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from PIL import Image

from ogkd.backbones.base import Backbone
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.notes import notes_to
from tiny_backbones import make_clip
from tiny_data import write_dataset

torch.set_num_threads(1)  # tests run in parallel processes, one core each
# Hypothesis tries the same examples every time, but for `make hostile`, which looks for new ones.
# No example has a deadline: a busy machine would miss it.
patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **patient)
settings.register_profile("new", print_blob=True, **patient)
settings.load_profile("new" if os.environ.get("OGKD_HOSTILE") == "all" else "same")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Whatever an earlier test has set: the last bits of products depend on it."""
    torch.set_num_threads(1)


@pytest.fixture
def notes() -> Iterator[list[str]]:
    """What the library tells its users while a test runs."""
    lines: list[str] = []
    with notes_to(lines.append):
        yield lines


@pytest.fixture(scope="session")
def shared() -> Path:
    """The developers' shared folder, or a skip that says how to have it."""
    folder = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
    if not (folder / "data" / "MANIFEST.json").is_file():
        pytest.skip(f"no shared folder at {folder}: set OGKD_SHARED to run this test")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _known_backbones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where backbones are is known in all tests, as on a user's machine.

    Fixtures of more than one test have one cache.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("folders")
        patch.setattr("ogkd.model.card._places", lambda: folder)
        yield


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache, nor reaches for the network."""
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache for the fixtures of a module; ask for it where they fit a model."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("OGKD_CACHE", str(cache))
        yield cache


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random CLIP."""
    folder = tmp_path_factory.mktemp("backbones") / "clip"
    make_clip(folder)
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """{train,test} of three classes."""
    return write_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def bert_backbone() -> Backbone:
    """A tiny open_clip-format model whose BERT has dropout; random weights."""
    folder = Path(__file__).parent / "parity" / "fixtures" / "class_token_mlp"
    return load_open_clip(folder, name="tiny", device=torch.device("cpu"))


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three classes of small noise images: {train,test}/class/*.png."""
    root = tmp_path_factory.mktemp("pictures")
    for label, name in enumerate(("bright_spot", "dark_field", "striped_tissue")):
        for split, count in (("train", 6), ("test", 4)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                rng = np.random.default_rng([label, index, split == "test"])
                image = rng.integers(0, 120, (40, 48, 3)) + 60 * label
                Image.fromarray(image.astype(np.uint8)).save(folder / f"{index}.png")
    return root


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that slow.txt lists, by file or by name."""
    root = Path(__file__).parent
    listed = {
        line.split("#")[0].strip()
        for line in (root / "slow.txt").read_text(encoding="utf-8").splitlines()
    } - {""}
    for item in items:
        file = item.path.relative_to(root).as_posix() if item.path.is_relative_to(root) else ""
        if {file, f"{file}::{item.name.partition('[')[0]}"} & listed:
            item.add_marker(pytest.mark.slow)
