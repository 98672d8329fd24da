"""Small labelled pictures, made on the spot; tiny_backbones knows the words of their classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ogkd.datasets.manifest import Item
from ogkd.images import ImageRef
from ogkd.records import sealed

CLASSES = ("benign tumor", "malignant tumor", "normal lung")
FAST = {"train.epochs": 2, "views": 1}  # settings of a fit that is over at once


def write_image(path: Path, seed: int = 0, *, size: tuple[int, int] = (40, 48)) -> Path:
    """One picture of noise; the seed decides its content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    level = 30 + 40 * (seed % 4)
    pixels = (rng.integers(0, 80, (*size, 3)) + level).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_dataset(
    root: Path,
    classes: Sequence[str] = CLASSES,
    splits: Mapping[str, int] | None = None,
) -> Path:
    """{split}/class_name/N.png; a split called "" puts the class folders at the top."""
    for place, (split, count) in enumerate((splits or {"train": 3, "test": 2}).items()):
        for label, name in enumerate(classes):
            for index in range(count):
                file = root / split / name.replace(" ", "_") / f"{index}.png"
                write_image(file, label + 4 * (index + 100 * place))
    return root


def write_exams(
    root: Path, *, per_class: int = 8, pictures: int = 4, splits: str = "train"
) -> Path:
    """A table of exams; one picture of an exam with a spot is bright, the others are dark."""
    lines = ["path,label,exam,split"]
    for split in splits.split(","):
        for label, name in enumerate(("normal", "spot")):
            for exam in range(per_class):
                for number in range(pictures):
                    rng = np.random.default_rng([label, exam, number, len(split)])
                    pixels = rng.integers(0, 60, (32, 32, 3))
                    if label and number == exam % pictures:
                        pixels[8:28, 8:28] += 190
                    file = root / split / f"{name}-{exam}-{number}.png"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels.astype(np.uint8)).save(file)
                    lines.append(f"{split}/{file.name},{name},{split} {name} {exam},{split}")
    table = root / "exams.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    return table


def item_of(image: object, label: int, split: str = "", group: str | None = None) -> Item:
    """A labelled image by its address."""
    return Item(ImageRef.of(image), label, split, group)


def edit_sealed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file that has a digest of itself as one who computes it again would."""
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["sha256"]
    change(content)
    path.write_text(json.dumps(sealed(content)), encoding="utf-8")
