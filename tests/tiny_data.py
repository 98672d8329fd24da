"""Small labelled images, made on the spot; tiny_backbones knows the words of their classes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ogkd.data.case import Case
from ogkd.data.task import Target
from ogkd.images import ImageRef
from ogkd.records import sealed

CLASSES = ("benign tumor", "malignant tumor", "normal lung")
FAST = {"train.epochs": 2, "views": 1}  # settings of a fit that is over at once


def write_image(path: Path, seed: int = 0, *, size: tuple[int, int] = (40, 48)) -> Path:
    """One image of noise; the seed decides its content."""
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
    root: Path,
    *,
    per_class: int = 8,
    images: int = 4,
    splits: str = "train",
    findings: bool = False,
) -> Path:
    """A table of exams; one image of an exam with a spot is bright, the others are dark.

    With `findings`, every second exam of either kind is streaked in one image, too, and the table
    has a column for each of the two findings.
    """
    lines = ["path,spot,streak,exam,split" if findings else "path,label,exam,split"]
    for split in splits.split(","):
        for spot, name in enumerate(("normal", "spot")):
            for exam in range(per_class):
                streak = int(findings and exam % 2)
                target = f"{spot},{streak}" if findings else name
                for number in range(images):
                    rng = np.random.default_rng([spot, exam, number, len(split)])
                    pixels = rng.integers(0, 60, (32, 32, 3))
                    if spot and number == exam % images:
                        pixels[8:28, 8:28] += 190
                    if streak and number == (exam + 1) % images:
                        pixels[::4] += 150
                    file = root / split / f"{name}-{exam}-{number}.png"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file)
                    lines.append(f"{split}/{file.name},{target},{split} {name} {exam},{split}")
    table = root / "exams.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    return table


def case_of(image: object, target: Target, split: str = "", group: str | None = None) -> Case:
    """A case of one image by its address."""
    return Case.single(ImageRef.of(image), target, split=split, group=group)


def rows_of(cases: Iterable[Case]) -> list[tuple[str, Target, str, str | None]]:
    """What tests compare of cases of one image: address, target, split and group."""
    return [(str(case.image), case.target, case.split, case.group) for case in cases]


def edit_sealed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file that has a digest of itself as one who computes it again would."""
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["sha256"]
    change(content)
    path.write_text(json.dumps(sealed(content)), encoding="utf-8")


WORDS = """
bright dark oval round smooth ragged thin thick grey white black pale dense fine coarse
edge rim band shadow halo layer fold vessel duct node patch streak speck core border
centre margin upper lower left right inner outer small large faint sharp blurred even
uneven linear nodular
"""


def texts(name: str, count: int, seed: int = 0) -> list[str]:
    """Sound prompts that differ from each other."""
    rng = random.Random(f"{name} {seed}")
    return [f"{name} {' '.join(rng.sample(WORDS.split(), 12))}" for _ in range(count)]
