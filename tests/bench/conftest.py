"""A folder of two tiny datasets and a grid over them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"
CLASSES = ("benign_tumor", "malignant_tumor", "normal_lung", "striped_cyst")

GRID = """
name = "tiny"
title = "A tiny grid"
data = "{data}"
backbone = "{backbone}"
datasets = ["*"]
shots = [1, 3]
seeds = [1, 2]
methods = ["zero-shot", "gda", "coop"]

[settings]
"train.epochs" = 2

[[rows]]
label = "OGKD"
method = "ogkd"
"""


def make_dataset(root: Path, *, seed: int = 0) -> None:
    for label, name in enumerate(CLASSES):
        for split, count in (("train", 4), ("val", 1), ("test", 3)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                rng = np.random.default_rng([seed, label, index, len(split)])
                image = rng.integers(0, 100, (36, 40, 3)) + 45 * label
                Image.fromarray(image.astype(np.uint8)).save(folder / f"{index}.png")


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("datasets")
    for seed, name in enumerate(("first", "second")):
        make_dataset(root / name, seed=seed)
    return root


@pytest.fixture
def grid_file(datasets: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(GRID.format(data=datasets, backbone=FIXTURE))
    return path
