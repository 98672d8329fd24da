"""Training images for the built-in model: drawn once to disk, cropped and captioned each step."""

from __future__ import annotations

import json
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from builtin_vlm.captions import Described, Fact, describe
from builtin_vlm.shapes import CLASSES, shapes
from ogkd.data.phantoms import PHANTOMS, render
from ogkd.data.phantoms._draw import Canvas, new_rng
from ogkd.files import write_atomically

SIZE, COARSE, GRID, INPUT = 160, 40, 8, 128
MEAN, STD = (0.45, 0.38, 0.37), (0.27, 0.24, 0.24)
CHUNK = 250

# Never seen in training, neither their images nor their captions.
HELD_OUT_DATASETS = ("endoscopy",)
HELD_OUT_CLASSES = (("cxr", "enlarged heart"),)
# Where the mask says how large the finding is and where it sits.
PLACED = {"us-breast", "cxr", "shapes"}


def trained_classes() -> dict[str, list[int]]:
    """Labels that training may draw, per dataset; `shapes` is the training-only family."""
    kept = {
        name: [
            label
            for label, class_name in enumerate(dataset.class_names)
            if (name, class_name) not in HELD_OUT_CLASSES
        ]
        for name, dataset in PHANTOMS.items()
        if name not in HELD_OUT_DATASETS
    }
    return kept | {"shapes": list(range(CLASSES))}


@dataclass(frozen=True)
class Pool:
    """All drawn images of one family."""

    name: str
    images: NDArray[np.uint8]  # [N, SIZE, SIZE, 3], on disk
    masks: NDArray[np.uint8]  # [N, COARSE, COARSE]
    described: list[tuple[Described, Described]]  # as drawn, and mirrored


def build_pools(folder: Path, per_dataset: int, seed: int, *, processes: int) -> list[Pool]:
    """Draw what is missing and open all families."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        (folder, name, labels, start, min(CHUNK, per_dataset - start), seed)
        for name, labels in trained_classes().items()
        for start in range(0, per_dataset, CHUNK)
    ]
    with ProcessPoolExecutor(processes) as workers:
        list(workers.map(_draw_chunk, jobs))
    return [_open(folder, name, range(0, per_dataset, CHUNK)) for name in trained_classes()]


def _draw_chunk(job: tuple[Path, str, list[int], int, int, int]) -> None:
    folder, name, labels, start, count, seed = job
    target = folder / f"{name}-{start}.npz"
    if target.exists():
        return
    images = np.empty((count, SIZE, SIZE, 3), np.uint8)
    masks = np.empty((count, COARSE, COARSE), np.uint8)
    notes = []
    for row in range(count):
        index = start + row
        label = labels[index % len(labels)]
        images[row], mask, attributes = _draw(name, label, seed, index)
        coarse = mask.reshape(COARSE, SIZE // COARSE, COARSE, SIZE // COARSE).mean((1, 3))
        masks[row] = np.rint(coarse)
        notes.append([label, attributes])
    with write_atomically(target) as aside, aside.open("wb") as file:
        np.savez(file, images=images, masks=masks, notes=np.array(json.dumps(notes)))


def _draw(
    name: str, label: int, seed: int, index: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], dict[str, str]]:
    if name != "shapes":
        drawn = render(name, label, seed=seed, index=index, size=SIZE, stream=7)
        return drawn.image, drawn.mask, dict(drawn.attributes)
    entropy = [zlib.crc32(b"shapes"), label, seed, index]
    scene, texture = np.random.SeedSequence(entropy).spawn(2)
    canvas = Canvas(new_rng(scene), new_rng(texture), SIZE)
    picture, attributes, mask = shapes(label, canvas)
    words = {k: v for k, v in attributes.items() if isinstance(v, str)}
    return np.rint(picture * 255).astype(np.uint8), np.rint(mask * 255).astype(np.uint8), words


def _open(folder: Path, name: str, starts: range) -> Pool:
    chunks = [np.load(folder / f"{name}-{start}.npz") for start in starts]
    images = np.concatenate([chunk["images"] for chunk in chunks])
    masks = np.concatenate([chunk["masks"] for chunk in chunks])
    described = []
    row = 0
    for chunk in chunks:
        for label, attributes in json.loads(str(chunk["notes"])):
            facts = list(attributes.items()) + _place(name, masks[row])
            described.append(
                (_describe(name, label, facts), _describe(name, label, _mirror(facts)))
            )
            row += 1
    return Pool(name, images, masks, described)


def _describe(name: str, label: int, facts: list[Fact]) -> Described:
    if name == "shapes":
        return describe(name, label, "drawing", "any", facts, named=True)
    dataset = PHANTOMS[name]
    return describe(name, label, dataset.modality, dataset.organ, facts, named=True)


def _place(name: str, mask: NDArray[np.uint8]) -> list[Fact]:
    """Size and side of the finding, read off its mask; the uncertain middle is left out."""
    weight = mask.astype(np.float64) / 255
    area = weight.mean()
    if name not in PLACED or area < 0.002:
        return []
    facts = [("extent", "small" if area < 0.035 else ("medium" if area < 0.1 else "large"))]
    axis = np.linspace(-1, 1, COARSE)
    x = (weight.sum(0) * axis).sum() / weight.sum()
    y = (weight.sum(1) * axis).sum() / weight.sum()
    if abs(x) > 0.22:
        facts.append(("across", "left" if x < 0 else "right"))
    elif abs(x) < 0.1:
        facts.append(("across", "middle"))
    if abs(y) > 0.22:
        facts.append(("along", "top" if y < 0 else "bottom"))
    return facts


def _mirror(facts: list[Fact]) -> list[Fact]:
    other = {"left": "right", "right": "left"}
    return [(k, other.get(v, v)) if k == "across" else (k, v) for k, v in facts]


def crop(
    pool: Pool, row: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float32], Described]:
    """A random view: image [INPUT, INPUT, 3], finding per patch [GRID, GRID], what is true."""
    side = np.sqrt(rng.uniform(0.62, 1.0)) * SIZE
    left, top = rng.uniform(0, SIZE - side, 2)
    picture = Image.fromarray(pool.images[row])
    box = (left, top, left + side, top + side)
    picture = picture.resize((INPUT, INPUT), Image.Resampling.BICUBIC, box=box)
    ratio = COARSE / SIZE
    small = tuple(value * ratio for value in box)
    mask = Image.fromarray(pool.masks[row]).resize((GRID, GRID), Image.Resampling.BOX, box=small)
    pixels, where = np.asarray(picture), np.asarray(mask, dtype=np.float32) / np.float32(255)
    flip = int(rng.random() < 0.5)
    if flip:
        pixels, where = pixels[:, ::-1], where[:, ::-1]
    gain = np.exp(rng.normal(0.0, 0.12)) * np.exp(rng.normal(0.0, 0.03, 3))
    pixels = np.clip(pixels * gain.astype(np.float32), 0, 255).astype(np.uint8)
    return pixels, where, pool.described[row][flip]


def normalise(pixels: Tensor) -> Tensor:
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)
    return (pixels.float() / 255 - mean) / std
