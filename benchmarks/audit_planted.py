"""How many changed copies the search for near duplicates finds, and how many it makes up.

    python benchmarks/audit_planted.py [FOLDER ...]

Without folders: phantoms of every kind. Each image is compared with changed copies of a sample
of them; the pairs among the originals themselves are counted too (in phantoms, all are wrong).
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter

from ogkd.audit.duplicates import (
    close_pairs,
    likeness,
    perceptual_hashes,
    small_gray,
)
from ogkd.data.phantoms import PHANTOMS, render
from ogkd.data.read import read_dataset
from ogkd.images.decode import read_image

Change = Callable[[Image.Image], Image.Image]
BITS = (2, 4, 6, 8, 10, 12)
LIKENESS = (0.0, 0.8, 0.85, 0.9, 0.95)


def jpeg(quality: int) -> Change:
    def change(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        return Image.open(buffer).convert("RGB")

    return change


def scaled(factor: float) -> Change:
    return lambda i: i.resize((max(8, int(i.width * factor)), max(8, int(i.height * factor))))


def cropped(share: float) -> Change:
    def change(image: Image.Image) -> Image.Image:
        x, y = round(image.width * share), round(image.height * share)
        return image.crop((x, y, image.width - x, image.height - y))

    return change


def noise(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(float)
    values += np.random.default_rng(0).normal(0, 8, values.shape)
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


CHANGES: dict[str, Change] = {
    "half size": scaled(0.5),
    "1.7 times the size": scaled(1.7),
    "64 pixels wide": lambda image: scaled(64 / image.width)(image),
    "JPEG 75": jpeg(75),
    "JPEG 30": jpeg(30),
    "brightness 0.8": lambda image: ImageEnhance.Brightness(image).enhance(0.8),
    "brightness 1.3": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "contrast 0.7": lambda image: ImageEnhance.Contrast(image).enhance(0.7),
    "gamma 0.7": lambda image: image.point(lambda value: 255 * (value / 255) ** 0.7),
    "blur": lambda image: image.filter(ImageFilter.GaussianBlur(1.5)),
    "noise": noise,
    "grey": lambda image: image.convert("L").convert("RGB"),
    "cut 1 % each side": cropped(0.01),
    "cut 3 % each side": cropped(0.03),
    "turned by 2 degrees": lambda image: image.rotate(2, Image.Resampling.BILINEAR),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}


def measure(images: Sequence[NDArray[np.uint8]], *, sample: int = 40) -> dict[str, object]:
    """Recall of each change, and pairs among the originals, for each pair of limits."""
    small = np.stack([small_gray(image) for image in images])
    hashes, flat = perceptual_hashes(small)
    step = max(1, len(images) // sample)
    rows = np.array([row for row in range(0, len(images), step) if not flat[row]])
    recall: dict[str, dict[str, float]] = {}
    for name, change in CHANGES.items():
        copies = [np.asarray(change(Image.fromarray(images[row]))) for row in rows]
        theirs = np.stack([small_gray(copy) for copy in copies])
        differing = hashes[rows] ^ perceptual_hashes(theirs)[0]
        bits = np.unpackbits(differing.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=1)
        both = np.concatenate([small[rows], theirs])
        count = len(rows)
        alike = likeness(both, np.arange(count), np.arange(count) + count)
        recall[name] = {
            f"{most}/{least}": round(float(((bits <= most) & (alike >= least)).mean()), 3)
            for most in BITS
            for least in LIKENESS
        }
    kept = np.flatnonzero(~flat)
    found = list(close_pairs(hashes[kept], max(BITS)))
    parts = zip(*found, strict=True) if found else ([np.zeros(0, np.intp)],) * 3
    first, second, bits = (np.concatenate(part) for part in parts)
    alike = likeness(small[kept], first, second)
    # Equal images are exact duplicates, which are found in another way.
    other = alike < 1 - 1e-9
    pairs = {
        f"{most}/{least}": int(((bits <= most) & (alike >= least) & other).sum())
        for most in BITS
        for least in LIKENESS
    }
    return {"images": len(images), "flat": int(flat.sum()), "recall": recall, "pairs": pairs}


def phantoms(name: str, per_class: int = 40) -> list[NDArray[np.uint8]]:
    classes = len(PHANTOMS[name].class_names)
    return [
        render(name, label, seed=0, index=index).image
        for label in range(classes)
        for index in range(per_class)
    ]


if __name__ == "__main__":
    places = [Path(word) for word in sys.argv[1:]]
    results = {
        place.name: measure([read_image(image) for image in read_dataset(place).images])
        for place in places
    }
    if not places:
        results = {name: measure(phantoms(name)) for name in PHANTOMS}
    print(json.dumps(results, indent=1))
