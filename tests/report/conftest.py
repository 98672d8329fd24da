"""Fixtures of the report's tests: a tiny model that was fitted once."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_world import World, make_world

from tiny_backbones import make_clip
from tiny_data import write_image


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backbone") / "clip"
    make_clip(folder)
    return folder


@pytest.fixture(scope="session")
def images_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """{train,val,test}/class folders whose files have telling names."""
    root = tmp_path_factory.mktemp("data")
    for number, (split, count) in enumerate({"train": 3, "val": 6, "test": 8}.items()):
        for label, name in enumerate(("a", "b", "c")):
            for index in range(count):
                file = root / split / name / f"Jane-Doe-{split}-{label}-{index}.png"
                write_image(file, label + 4 * (index + 100 * number))
    return root


@pytest.fixture(scope="session")
def world(clip: Path, images_of: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A calibrated text head."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        return make_world(clip, images_of, "zero-shot")
