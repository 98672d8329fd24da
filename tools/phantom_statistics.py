"""Describe the built-in model's features of phantoms, so that other images are noticed.

    python tools/phantom_statistics.py                    # after every change of model or phantoms
    python tools/phantom_statistics.py --measure DATA...  # the table of docs/evidence/trust.md

writes phantoms.safetensors beside the built-in model. Deterministic; about a minute.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import save_file

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.builtin import STATISTICS, Domain, mostly_strange, phantom_domain
from ogkd.data.phantoms import PHANTOMS, render
from ogkd.images import find_images, read_image
from ogkd.images.transforms import to_pixels

FITTED, HELD_OUT = 360, 120  # images of each dataset: for the Gaussian, and for its limit
RANK = 60
QUANTILE = 0.98  # of held-out phantoms that are below their limit
SIZES = (64, 80, 96, 128, 160, 160, 224, 320)
QUALITIES = (0, 0, 75, 90)  # of JPEG; 0: not compressed
SET = 24  # images that the choice of a backbone looks at
RGB = NDArray[np.uint8]


def drawn(name: str, count: int, seed: int, sizes: Sequence[int] = SIZES) -> Iterator[RGB]:
    """Phantoms of all classes in turn, of several sizes, some of them compressed."""
    rng = np.random.default_rng([seed, count])
    classes = len(PHANTOMS[name].class_names)
    for index in range(count):
        size, quality = int(rng.choice(sizes)), int(rng.choice(QUALITIES))
        image = render(name, index % classes, seed=seed, index=index, size=size).image
        yield compressed(image, quality) if quality else image


def compressed(image: RGB, quality: int) -> RGB:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file).convert("RGB"))


def encode(model: Backbone, images: Sequence[RGB]) -> NDArray[np.float32]:
    parts = [
        model.encode_images(
            to_pixels(images[start : start + 64], model.preprocessing), patches=False
        )
        for start in range(0, len(images), 64)
    ]
    return np.concatenate([part.globals.numpy() for part in parts])


def gaussian(rows: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Mean, leading directions and variances of one dataset's features."""
    mean = rows.mean(axis=0)
    _, s, directions = np.linalg.svd((rows - mean).astype(np.float64), full_matrices=False)
    variances = s**2 / len(rows)
    rest = variances[RANK:].sum() / (rows.shape[1] - RANK)
    return {
        "mean": mean,
        "directions": directions[:RANK],
        "variances": variances[:RANK],
        "rest": rest,
    }


def fit(model: Backbone) -> None:
    found, held_out = [], []
    for name in PHANTOMS:
        rows = encode(model, list(drawn(name, FITTED + HELD_OUT, seed=77)))
        found.append(gaussian(rows[:FITTED]))
        held_out.append(rows[FITTED:])
    # Half precision cannot hold small variances and large limits.
    kinds = {"mean": np.float16, "directions": np.float16}
    arrays = {
        key: np.stack([one[key] for one in found]).astype(kinds.get(key, np.float32))
        for key in found[0]
    }
    as_read = {key: array.astype(np.float32) for key, array in arrays.items()}
    whole = Domain(**as_read, limit=np.zeros(len(found), np.float32), digest=model.digest)
    arrays["limit"] = np.array(
        [np.quantile(whole.distances(rows)[:, k], QUANTILE) for k, rows in enumerate(held_out)],
        dtype=np.float32,
    )
    save_file(arrays, STATISTICS, {"digest": model.digest})
    print(f"{STATISTICS.name}: {STATISTICS.stat().st_size / 1000:.0f} kB")


def line(name: str, rows: NDArray[np.float32]) -> None:
    """Print how many images, and sets of images, are not taken for phantoms."""
    strange = phantom_domain().excludes(rows)
    rng = np.random.default_rng(0)
    sets = [mostly_strange(rng.choice(strange, SET).sum(), SET) for _ in range(1000)]
    print(f"| {name} | {len(rows)} | {strange.mean():.1%} | {np.mean(sets):.1%} |", flush=True)


def measure(model: Backbone, data: Sequence[Path]) -> None:
    print(f"| images | number | not phantoms, one by one | not phantoms, sets of {SET} |")
    print("|---|---|---|---|")
    sizes = (72, 100, 160, 192, 300)
    for name in PHANTOMS:
        line(f"phantoms: {name}", encode(model, list(drawn(name, 60, seed=4321, sizes=sizes))))
    rng = np.random.default_rng(0)
    line("noise", encode(model, [rng.integers(0, 256, (96, 96, 3), np.uint8) for _ in range(50)]))
    for folder in data:
        files = find_images([folder])
        chosen = [files[row] for row in rng.permutation(len(files))[:150]]
        line(folder.parent.name, encode(model, [read_image(file) for file in chosen]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", nargs="*", type=Path, metavar="DATA")
    options = parser.parse_args()
    builtin = load_backbone("builtin", device="cpu")
    if options.measure is None:
        fit(builtin)
    else:
        measure(builtin, options.measure)
