"""Make tests/images/fixtures/torchvision.npz: what the real torchvision does to small images.

Runs in an environment of its own that has torchvision and Pillow; never a dependency.

    python tools/make_torchvision_fixtures.py tests/images/fixtures/torchvision.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resized_crop

SIZES = ((40, 57), (64, 33), (32, 32), (20, 25), (31, 90))
CROPS = ((0, 0, 20, 25), (3, 5, 11, 17), (8, 2, 12, 9))
TARGET = 32


def picture(height: int, width: int) -> np.ndarray:
    """Smooth waves and noise, so that resampling has something to do."""
    rng = np.random.default_rng(height * 1000 + width)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (3 + k)) * np.cos(y / (5 - k)) * 90 + 128 for k in range(3)]
    noisy = np.stack(waves, -1) + rng.normal(0, 25, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def main(out: Path) -> None:
    """Write inputs and outputs."""
    bicubic = InterpolationMode.BICUBIC
    whole = transforms.Compose(
        [transforms.Resize(TARGET, interpolation=bicubic), transforms.CenterCrop(TARGET)]
    )
    normal = transforms.Compose(
        [
            transforms.ToTensor(),
            transforms.Normalize(
                (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
            ),
        ]
    )
    arrays: dict[str, np.ndarray] = {}
    for index, (height, width) in enumerate(SIZES):
        image = Image.fromarray(picture(height, width))
        cropped = whole(image)
        arrays[f"image{index}"] = np.asarray(image)
        arrays[f"whole{index}"] = np.asarray(cropped)
        arrays[f"pixels{index}"] = normal(cropped).numpy()
        for number, (top, left, rows, columns) in enumerate(CROPS):
            crop = resized_crop(image, top, left, rows, columns, [TARGET, TARGET], bicubic)
            arrays[f"crop{index}_{number}"] = np.asarray(crop)
    # Where random crops fall: area shares and aspects over many draws.
    torch.manual_seed(0)
    blank = Image.fromarray(picture(90, 120))
    draws = [
        transforms.RandomResizedCrop.get_params(blank, [0.08, 1.0], [3 / 4, 4 / 3])
        for _ in range(20000)
    ]
    arrays["draws"] = np.asarray(draws, np.int16)
    np.savez_compressed(out, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
