"""A small dataset with planted faults, and where they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from ogkd.data.phantoms import write_folder

Rng = np.random.Generator


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ultrasound phantoms with nothing wrong: {train,test}, 4 classes, no test changes them."""
    root = tmp_path_factory.mktemp("phantoms") / "us"
    return write_folder("us-breast", root, splits={"train": 8, "test": 4}, size=128)


@pytest.fixture
def data(clean: Path, tmp_path: Path) -> Path:
    """A copy to plant faults in."""
    return shutil.copytree(clean, tmp_path / "data")


@pytest.fixture
def texture() -> Callable[[int], NDArray[np.uint8]]:
    """A smooth random RGB image by number; two numbers give images that do not look alike."""

    def make(seed: int, height: int = 120, width: int = 150) -> NDArray[np.uint8]:
        coarse = np.random.default_rng(seed).integers(0, 256, (9, 9, 3)).astype(np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        return np.asarray(image)

    return make
