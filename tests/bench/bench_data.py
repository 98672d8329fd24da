"""A tiny dataset of noise pictures, written on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("benign_tumor", "malignant_tumor", "normal_lung", "striped_cyst")


def make_dataset(root: Path, *, seed: int = 0) -> None:
    for label, name in enumerate(CLASSES):
        for split, count in (("train", 4), ("val", 1), ("test", 3)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                rng = np.random.default_rng([seed, label, index, len(split)])
                image = rng.integers(0, 100, (36, 40, 3)) + 45 * label
                Image.fromarray(image.astype(np.uint8)).save(folder / f"{index}.png")
