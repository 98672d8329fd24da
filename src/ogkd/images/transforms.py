"""RGB pixels of any size to what an image tower takes. No file is opened here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ogkd.images.plain import gray_to_rgb, is_gray_view, own_pixels

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

RGB = NDArray[np.uint8]  # [H, W, 3]
Triple = tuple[float, float, float]
Box = tuple[int, int, int, int]  # top, left, rows, columns

LONGEST = 20  # times the short side; beyond it the ends cannot reach the centre crop
AREAS = (0.08, 1.0)  # of a random crop, as shares of the image
ADAPTER_AREAS = (0.5, 1.0)  # of the released adapters' crops (fidelity.md, 44)
_ASPECTS = (3 / 4, 4 / 3)
_RESAMPLE = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "nearest": Image.Resampling.NEAREST,
}


@dataclass(frozen=True, repr=False)
class Preprocessing:
    """How one backbone wants its images.

    `resize` is "shortest" (short side to `scaled`, which is `size` if not given, then centre
    crop), "squash" (both sides to `size`, the aspect lost, as SigLIP does), "pad" (long side to
    `size`, then black at the right and below, as FLAIR does) or "pad_center" (black around a
    smaller or oblong image, then to `size`, as MedCLIP does).
    """

    size: int = 224
    mean: Triple = CLIP_MEAN
    std: Triple = CLIP_STD
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    resize: Literal["shortest", "squash", "pad", "pad_center"] = "shortest"
    scaled: int | None = None

    def identity(self) -> dict[str, Any]:
        """All fields but those added later that are not in use: digests were made without them."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "scaled" or value is not None
        }

    def __repr__(self) -> str:
        values = (f"{name}={value!r}" for name, value in self.identity().items())
        return f"{type(self).__name__}({', '.join(values)})"


def center_crop(image: RGB, prep: Preprocessing) -> RGB:
    """The whole image at the model's size, as at test time. [H, W, 3] -> [size, size, 3]."""
    picture = _picture(image)
    size = prep.size
    resample = _RESAMPLE[prep.interpolation]
    if prep.resize == "squash":
        return _rgb(picture.resize((size, size), resample))
    if prep.resize == "pad":
        factor = max(picture.size) / size
        width, height = (max(1, int(side / factor)) for side in picture.size)
        return _rgb(_on_black(picture.resize((width, height), resample), size, 0, 0))
    if prep.resize == "pad_center":
        side = max(size, *picture.size)
        left, top = ((side - length) // 2 for length in picture.size)
        return _rgb(_on_black(picture, side, left, top).resize((size, size), resample))
    picture = _without_far_ends(picture)
    width, height = picture.size
    short, long = sorted((width, height))
    target = prep.scaled or size
    scaled = int(target * long / short)
    new = (target, scaled) if width <= height else (scaled, target)
    if new != picture.size:
        picture = picture.resize(new, resample)
    left = round((new[0] - size) / 2.0)
    top = round((new[1] - size) / 2.0)
    return _rgb(picture.crop((left, top, left + size, top + size)))


def _on_black(picture: Image.Image, side: int, left: int, top: int) -> Image.Image:
    square = Image.new(picture.mode, (side, side))
    square.paste(picture, (left, top))
    return square


def _picture(image: RGB) -> Image.Image:
    """One channel of a gray image: a third of the work for the same numbers."""
    return Image.fromarray(image[:, :, 0] if is_gray_view(image) else image)


def _rgb(picture: Image.Image) -> RGB:
    pixels = np.asarray(picture)
    return pixels if pixels.ndim == 3 else own_pixels(gray_to_rgb(pixels))


def _without_far_ends(picture: Image.Image) -> Image.Image:
    """Cut the ends of a very long strip, which the centre crop would lose after scaling them up."""
    width, height = picture.size
    most = LONGEST * min(width, height)
    if max(width, height) <= most:
        return picture
    left, top = max(0, (width - most) // 2), max(0, (height - most) // 2)
    return picture.crop((left, top, left + min(width, most), top + min(height, most)))


def random_resized_crop(
    image: RGB,
    prep: Preprocessing,
    rng: np.random.Generator,
    *,
    areas: tuple[float, float] = AREAS,
    flip: bool = False,
) -> RGB:
    """A random part of the image at the model's size, as in training (fidelity.md, 27).

    With `flip`, every second one is mirrored left to right, at random.
    """
    height, width = image.shape[:2]
    crop = cut_crop(image, draw_crop(height, width, rng, areas), prep)
    return np.ascontiguousarray(crop[:, ::-1]) if flip and rng.random() < 0.5 else crop


def cut_crop(image: RGB, box: Box, prep: Preprocessing) -> RGB:
    """A part of the image at the model's size."""
    top, left, rows, columns = box
    picture = _picture(image[top : top + rows, left : left + columns])
    return _rgb(picture.resize((prep.size, prep.size), _RESAMPLE[prep.interpolation]))


def draw_crop(
    height: int, width: int, rng: np.random.Generator, areas: tuple[float, float] = AREAS
) -> Box:
    """Ten tries at an area and an aspect, then the largest central part that fits."""
    for _ in range(10):
        area = height * width * rng.uniform(*areas)
        aspect = math.exp(rng.uniform(math.log(_ASPECTS[0]), math.log(_ASPECTS[1])))
        columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < columns <= width and 0 < rows <= height:
            top = int(rng.integers(0, height - rows + 1))
            left = int(rng.integers(0, width - columns + 1))
            return top, left, rows, columns
    columns = min(width, round(height * _ASPECTS[1]))
    rows = min(height, round(width / _ASPECTS[0]))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def normalise(
    images: Sequence[RGB], prep: Preprocessing, device: torch.device | str = "cpu"
) -> Tensor:
    """Stack crops of one size into [B, 3, H, W] float32, with mean and std removed.

    Bytes go to the device, a quarter of what the numbers would be.
    """
    stacked = torch.from_numpy(np.stack(images)).to(device)
    pixels = stacked.permute(0, 3, 1, 2).float().div_(255.0)
    for channel, (mean, std) in enumerate(zip(prep.mean, prep.std, strict=True)):
        pixels[:, channel].sub_(mean).div_(std)
    return pixels.contiguous()


def to_pixels(images: Sequence[RGB], prep: Preprocessing) -> Tensor:
    """Whole images of any size to pixels [B, 3, size, size]."""
    return normalise([center_crop(image, prep) for image in images], prep)
