"""Half precision for the image tower on this machine: processor time and cosine to float32.

    OGKD_SHARED=../shared python benchmarks/half.py

The probe that refuses unsafe devices is left out: what is measured here is the computation.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import torch
from torch.nn.functional import cosine_similarity

from biomedclip_size import make_backbone
from ogkd.backbones import engines, load_backbone
from ogkd.backbones._towers import HALVES
from ogkd.backbones.base import Backbone
from ogkd.backbones.engines import with_engine
from ogkd.images import read_image
from ogkd.images.transforms import to_pixels

ROUNDS = 4  # the first warms up
DATASETS = ("BUSI", "RETINA", "BTMRI")


def some_images(shared: Path, dataset: str, step: int, count: int) -> list[Path]:
    return sorted((shared / "data" / dataset / "test").glob("*/*"))[::step][:count]


def speed(backbone: Backbone, files: list[Path]) -> None:
    """Interleaved rounds; ratios within a round, for the machine may be busy."""
    pixels = to_pixels([read_image(file) for file in files], backbone.preprocessing)
    made = {"torch": backbone, **{name: with_engine(backbone, name) for name in HALVES}}
    took: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(ROUNDS):
        for name, engine in made.items():
            began = time.process_time()
            engine.encode_images(pixels, patches=False)
            took[name].append((time.process_time() - began) / len(files))
    for name, seconds in took.items():
        ratio = median(a / b for a, b in zip(took["torch"][1:], seconds[1:], strict=True))
        print(f"{backbone.name} {name}: {median(seconds[1:]):.3f} s an image, {ratio:.2f}x")


def closeness(backbone: Backbone, files: list[Path]) -> None:
    pixels = to_pixels([read_image(file) for file in files], backbone.preprocessing)
    want = backbone.encode_images(pixels)
    assert want.patches is not None
    for name in HALVES:
        got = with_engine(backbone, name).encode_images(pixels)
        assert got.patches is not None
        pairs = {"images": (got.globals, want.globals), "patches": (got.patches, want.patches)}
        for what, both in pairs.items():
            found = cosine_similarity(*both, dim=-1)
            print(f"{backbone.name} {name}, {what}: {found.mean():.6f} ({found.min():.6f})")


def main() -> None:
    torch.set_num_threads(1)
    engines.half_problem = lambda device, engine: ""
    shared = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
    speed(make_backbone(), some_images(shared, "BUSI", 80, 2))
    proxy = load_backbone(shared / "backbones" / "dinov2s14-minilm-med", device="cpu")
    closeness(proxy, [file for name in DATASETS for file in some_images(shared, name, 60, 3)])


if __name__ == "__main__":
    main()
