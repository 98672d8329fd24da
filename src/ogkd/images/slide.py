"""Tiles of a whole slide: `slide.svs#tile=X,Y,SIDE`, in pixels of its largest level (OpenSlide).

Tissue is found first, on a small picture of the whole slide; a tile is read when it is needed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.errors import DataError
from ogkd.images.plain import check_size
from ogkd.images.ref import TIFF, damaged, decoding, file_state

TILE = 256  # pixels of a tile that is read, along each side
_OVERVIEW = 2048  # pixels of the picture that tissue is looked for on, along its longer side
_LEAST = 0.4  # share of a tile that is tissue
_PALE, _STAINED = 0.05, 0.12  # saturations below which nothing, and above which all, is tissue
_INSTALL = 'To read whole slides: pip install "ogkd[slides]".'


def is_slide(file: Path) -> bool:
    """Whether a TIFF file is a whole slide; False where OpenSlide is not installed."""
    if not file.name.lower().endswith(TIFF):
        return False
    try:
        import openslide
    except ImportError:
        return False
    return openslide.OpenSlide.detect_format(file) is not None


def tiles(file: Path, *, magnification: float, side: int | None) -> list[str]:
    """The parts of a slide with tissue in them, row by row.

    A tile has 256 pixels along each side at that magnification, or `side` of the slide's own.
    """
    mask = tissue(overview(file))
    slide = _slide(file, file_state(file))
    step = side or round(TILE * _power(file, slide) / magnification)
    width, height = slide.dimensions
    if step > min(width, height):
        raise DataError(
            f"{file} has {width} x {height} pixels, less than one tile of {step}.",
            argument="slices",
        )
    scale = mask.shape[1] / width
    sums = np.pad(mask.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    parts = []
    for y in range(0, height - step + 1, step):
        for x in range(0, width - step + 1, step):
            top, left = int(y * scale), int(x * scale)
            bottom = min(max(top + 1, round((y + step) * scale)), mask.shape[0])
            right = min(max(left + 1, round((x + step) * scale)), mask.shape[1])
            inside = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
            if inside >= _LEAST * (bottom - top) * (right - left):
                parts.append(f"tile={x},{y},{step}")
    return parts


def overview(file: Path) -> NDArray[np.uint8]:
    """A small picture of the whole slide, as RGB [H, W, 3]."""
    with decoding(file):
        slide = _slide(file, file_state(file))
        thumbnail = slide.get_thumbnail((_OVERVIEW, _OVERVIEW)).convert("RGB")
    return np.asarray(thumbnail)


def tissue(picture: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where a picture [H, W, 3] of a slide shows tissue: [H, W].

    Glass is gray; tissue is stained. The saturation that divides the two best (Otsu) is the limit,
    within bounds: a slide may be all glass or all tissue.
    """
    levels = picture.astype(np.float64)
    high = levels.max(axis=2)
    saturation = np.where(high > 0, (high - levels.min(axis=2)) / np.maximum(high, 1), 0.0)
    counts, edges = np.histogram(saturation, bins=256, range=(0.0, 1.0))
    centres = (edges[:-1] + edges[1:]) / 2
    below, total = counts.cumsum(), counts.sum()
    sums = (counts * centres).cumsum()
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = sums / below - (sums[-1] - sums) / (total - below)
        between = np.nan_to_num(below * (total - below) * apart**2)
    limit = float(np.clip(edges[1:][between.argmax()], _PALE, _STAINED))
    return np.asarray(saturation > limit)


def read_tile(file: Path, fragment: str, *, max_pixels: int) -> NDArray[np.uint8]:
    """One tile as RGB [256, 256, 3]; of a slide without a part, what to do."""
    match = re.fullmatch(r"tile=(\d{1,9}),(\d{1,9}),(\d{1,9})", fragment)
    if match is None:
        raise DataError(
            f"{file} is a whole slide: set `slices`, such as N=64, to read its tiles.",
            argument="slices",
        )
    x, y, side = map(int, match.groups())
    slide = _slide(file, file_state(file))
    level = slide.get_best_level_for_downsample(max(1.0, side / TILE))
    here = max(1, round(side / slide.level_downsamples[level]))
    check_size(file, here, here, max_pixels)
    region = slide.read_region((x, y), level, (here, here))  # RGBA
    paper = Image.new("RGB", region.size, "white")
    paper.paste(region, mask=region.getchannel("A"))
    return np.asarray(paper.resize((TILE, TILE), Image.Resampling.BICUBIC))


@lru_cache(maxsize=2)
def _slide(file: Path, _state: tuple[int, ...]) -> Any:
    try:
        import openslide
    except ImportError as error:
        raise DataError(f"{file} is a whole slide, which cannot be read. {_INSTALL}") from error
    try:
        return openslide.OpenSlide(file)
    except openslide.OpenSlideError as error:
        raise damaged(file, error) from error


def _power(file: Path, slide: Any) -> float:
    """The magnification of the largest level: as the slide says, or by the size of its pixels."""
    for name, value in (("objective-power", float), ("mpp-x", lambda mpp: 10 / float(mpp))):
        try:
            power = value(slide.properties[f"openslide.{name}"])
        except (KeyError, ValueError, ZeroDivisionError):
            continue
        if 0 < power < 1000:
            return power
    raise DataError(
        f"{file} does not state its magnification: give the side of a tile, such as side=512,all.",
        argument="slices",
    )
