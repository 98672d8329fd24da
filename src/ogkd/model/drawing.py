"""Pictures of evidence maps: the image, the map beside it, a colour key, the class in words.

The map lies on a grey, darkened copy of the image, so its colours (blue to light cyan) mean
evidence and nothing else, on an orange fundus as on a grey scan. The empty background is masked.
"""

from __future__ import annotations

import textwrap
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ogkd.model.explain import Evidence, smoothed

_SIDE = 672  # most pixels of a drawn map: three times 224
_SMALLEST = 448  # of a panel of the whole picture, so that its words fit
_STRONGEST = 0.8  # opacity of the colour where the evidence is greatest
_STOPS = (0.0, 0.5, 1.0)  # of the scale, from weak to strong
_COLOURS = ((40, 60, 255), (0, 170, 255), (150, 255, 255))  # lighter means stronger
_DARKENED = 0.65  # of the grey copy below the map
_DARK, _WHITE = 20, 235  # levels up to and from which a pixel may be empty background
_EVEN, _NEAR = 8, 5  # most levels between pixels of a 5 x 5 square in it; speckle has more
_RIM = 4  # pixels at its edge, which are less even
_MENTIONED = 0.1  # share of the evidence on the background from which the picture says so
_AGAINST = ((150, 60, 0), (240, 120, 0), (255, 205, 120))  # the same for what speaks against
_PAPER, _INK, _FAINT, _ALERT = (24, 24, 27), (244, 244, 245), (150, 150, 158), (252, 190, 90)


def draw(evidence: Evidence) -> Image.Image:
    """The image, its evidence map beside it, a colour key, and class and probability in words.

    Blue speaks for the class and orange against it; colours compare places within this image, not
    images with each other. Stronger is also lighter, so the map can be read without seeing colours.
    Parts are smoothed, and nothing is drawn on the empty background.
    """
    right, hidden = _map(evidence)
    side = max(right.width, _SMALLEST)
    panels = [evidence.image.convert("RGB"), right]
    panels = [panel.resize((side, side), Image.Resampling.BICUBIC) for panel in panels]
    line, gap = side // 12, side // 28
    width = 2 * side + 3 * gap
    words = _words(evidence, hidden, width - 2 * gap, line)
    top = gap + len(words) * line + line // 2
    picture = Image.new("RGB", (width, top + side + 2 * line + 2 * gap), _PAPER)
    pen = ImageDraw.Draw(picture)
    for row, (text, colour, size) in enumerate(words):
        pen.text((gap, gap + row * line), text, colour, _font(size))
    for left, panel in zip((gap, side + 2 * gap), panels, strict=True):
        picture.paste(panel, (left, top))
    small = _font(round(line * 0.6))
    under = top + side + gap // 2
    pen.text((gap, under), "The image as the model saw it", _INK, small)
    name = _name(evidence, small, side - round(small.getlength("Evidence for ")))
    pen.text((side + 2 * gap, under), f"Evidence on {name}", _INK, small)
    _key(picture, (side + 2 * gap, under + line), (side, line), small)
    return picture


def heat_map(evidence: Evidence) -> Image.Image:
    """The map alone: the image in grey with the evidence in colour."""
    return _map(evidence)[0]


def background(image: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where [H, W] an image [H, W, 3] is empty: even dark or white areas that touch its border.

    Dark means up to 20 of 255 in every channel, white from 235; even means that the pixels of a
    5 x 5 square differ by at most 8. Dark places inside the picture and speckled shadows stay.
    """
    from scipy import ndimage  # here: only pictures need it

    gray = image.max(axis=2).astype(np.int16)
    level = (gray <= _DARK) | (image.min(axis=2) >= _WHITE)
    even = ndimage.maximum_filter(gray, _NEAR) - ndimage.minimum_filter(gray, _NEAR) <= _EVEN
    areas, _ = ndimage.label(level & even)
    edge = np.concatenate([areas[0], areas[-1], areas[:, 0], areas[:, -1]])
    empty = np.isin(areas, edge[edge > 0])
    wider: NDArray[np.bool_] = ndimage.binary_dilation(empty, iterations=_RIM, mask=level | empty)
    return wider


def _map(evidence: Evidence) -> tuple[Image.Image, float]:
    """The map, and the share of the evidence that lies on the masked background."""
    size = evidence.image.width
    side = size * (_SIDE // size) if size <= _SIDE else _SIDE
    zoom = side / size
    rows, columns = evidence.grid.shape
    # A tower drops what is left at the right and below when patches do not fill the image.
    cell = size // columns
    picture = evidence.image.convert("RGB")
    empty = background(np.asarray(picture))
    hidden = _mostly(empty, evidence.grid.shape)
    strength, share = _signed_strength(evidence.grid, hidden)
    covered = (round(columns * cell * zoom), round(rows * cell * zoom))
    heat = np.zeros((side, side), np.float32)
    smooth = Image.fromarray(strength).resize(covered, Image.Resampling.BILINEAR)
    heat[: covered[1], : covered[0]] = np.asarray(smooth)
    mask = Image.fromarray(empty).resize((side, side), Image.Resampling.NEAREST)
    heat[np.asarray(mask)] = 0
    gray = picture.convert("L").resize((side, side), Image.Resampling.BICUBIC)
    base = _DARKENED * np.asarray(gray, np.float32)[..., None]
    opacity = _STRONGEST * np.minimum(1.0, np.abs(heat))[..., None]
    mixed = (1 - opacity) * base + opacity * _colours(heat)
    drawn = Image.fromarray(mixed.round().astype(np.uint8))
    return drawn, share


def background_patches(evidence: Evidence) -> NDArray[np.bool_]:
    """Which patches [h, w] of a map lie mostly on the empty background."""
    return _mostly(background(np.asarray(evidence.image.convert("RGB"))), evidence.grid.shape)


def _mostly(empty: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    rows, columns = shape
    cell = empty.shape[1] // columns
    blocks = empty[: rows * cell, : columns * cell].reshape(rows, cell, columns, cell)
    return np.asarray(blocks.mean(axis=(1, 3)) > 0.5)


def _signed_strength(
    grid: NDArray[np.float32], hidden: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], float]:
    """Parts smoothed, from -1 (against) to 1 (for); the share that lies on the background."""
    parts = smoothed(grid)
    size = np.abs(parts)
    share = float(size[hidden].sum() / max(size.sum(), 1e-12))
    strength = np.where(hidden, 0, parts / max(float(size[~hidden].max(initial=0)), 1e-12))
    return strength.astype(np.float32), share


def _colours(strength: NDArray[np.float32]) -> NDArray[np.float32]:
    stops = [-stop for stop in reversed(_STOPS)] + list(_STOPS)
    channels = [
        np.interp(strength, stops, [*reversed(less), *more])
        for more, less in zip(zip(*_COLOURS, strict=True), zip(*_AGAINST, strict=True), strict=True)
    ]
    return np.stack(channels, axis=-1).astype(np.float32)


def _words(
    evidence: Evidence, hidden: float, width: int, line: int
) -> list[tuple[str, tuple[int, int, int], int]]:
    """Lines above the panels: text, colour, size. What speaks against trust comes first."""
    large, small = round(line * 0.75), round(line * 0.6)
    letters = int(width / _font(small).getlength("n"))
    lines = [(text, _ALERT, small) for text in textwrap.wrap(evidence.caution, letters)]
    share = "" if evidence.probability is None else f"   {100 * evidence.probability:.1f} %"
    name = _name(evidence, _font(large), width - round(_font(large).getlength(share)))
    lines.append((name + share, _FAINT if evidence.caution else _INK, large))
    if hidden >= _MENTIONED:
        text = f"{100 * hidden:.0f} % of the evidence lies on the empty background, not drawn."
        lines.append((text, _ALERT, small))
    return lines


def _name(evidence: Evidence, font: ImageFont.FreeTypeFont, width: int) -> str:
    """The class in letters that the font has, or else its number; shortened to the width."""
    name = " ".join(evidence.name.split())
    if not name or any(ord(letter) not in _letters() for letter in name):
        name = f"class {evidence.label + 1}"
    while font.getlength(name) > width and len(name) > 1:
        name = name[:-2].rstrip() + "…"
    return name


def _key(
    picture: Image.Image,
    corner: tuple[int, int],
    size: tuple[int, int],
    font: ImageFont.FreeTypeFont,
) -> None:
    """The colour key: a bar from against to for."""
    (left, top), (width, height) = corner, size
    weak, strong = "against ", " for"
    start = left + round(font.getlength(weak))
    length = width - round(font.getlength(weak + strong))
    scale = np.linspace(-1, 1, length, dtype=np.float32)[None].repeat(round(height * 0.5), axis=0)
    opacity = np.minimum(1.0, 1.5 * np.abs(scale))[..., None]
    bar = _colours(scale) * opacity + np.float32(80) * (1 - opacity)
    picture.paste(Image.fromarray(bar.round().astype(np.uint8)), (start, top + round(height * 0.1)))
    pen = ImageDraw.Draw(picture)
    pen.text((left, top), weak, _INK, font)
    pen.text((start + length, top), strong, _INK, font)


@lru_cache(maxsize=8)
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_font_file(), size)


@lru_cache(maxsize=1)
def _font_file() -> str:
    from matplotlib import get_data_path  # here: it takes a while, and only pictures need it

    return str(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


@lru_cache(maxsize=1)
def _letters() -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(_font_file()).get_charmap())
