"""Pictures of evidence maps: the image, the map beside it, a colour key, the class in words.

The map lies on a grey, darkened copy of the image, so its colours (blue to light cyan) mean
evidence and nothing else, on an orange fundus as on a grey scan. The empty background is masked.
"""

from __future__ import annotations

import textwrap
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.model.explain import Evidence, smoothed

_SIDE = 672  # most pixels of a drawn map: three times 224
_STRONGEST = 0.8  # opacity of the colour where the evidence is greatest
_STOPS = (0.0, 0.5, 1.0)  # of the scale, from weak to strong
_COLOURS = ((40, 60, 255), (0, 170, 255), (150, 255, 255))  # lighter means stronger
_AGAINST = ((150, 60, 0), (240, 120, 0), (255, 205, 120))  # the same for what speaks against
_DARKENED = 0.65  # of the grey copy below the map
_DARK, _WHITE = 20, 235  # levels up to and from which a pixel may be empty background
_EVEN, _NEAR = 8, 5  # most levels between pixels of a 5 x 5 square in it; speckle has more
_RIM = 4  # pixels at its edge, which are less even
_MENTIONED = 0.1  # share of the evidence on the background from which the picture says so
_PAPER, _INK, _FAINT, _ALERT = "#18181b", "#f4f4f5", "#96969e", "#fcbe5a"
_WIDTH, _LINE, _DPI = 9.6, 0.27, 150  # inches of a picture and of a line in it; pixels per inch
_FONT = "DejaVu Sans"  # which matplotlib brings along
_LETTERS, _NAME = 100, 40  # letters of a line, and at most of a name


def draw(evidence: Evidence) -> Image.Image:
    """The image, its evidence map beside it, a colour key, and class and probability in words.

    Blue speaks for the class and orange against it; colours compare places within this image, not
    images with each other. Stronger is also lighter, so the map can be read without seeing colours.
    Parts are smoothed, and nothing is drawn on the empty background.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here: only pictures need it
    from matplotlib.figure import Figure

    heat, hidden = _map(evidence)
    lines = _words(evidence, hidden)
    side = 0.47 * _WIDTH
    height = (len(lines) + 3) * _LINE + side
    figure = Figure((_WIDTH, height), dpi=_DPI, facecolor=_PAPER)
    line = _LINE / height
    key = _coloured(
        np.full((1, 256), 80, np.float32), np.linspace(-1, 1, 256, dtype=np.float32)[None]
    )
    for place, pixels in (
        ((0.02, 2.2 * line, 0.47, side / height), evidence.image.convert("RGB")),
        ((0.51, 2.2 * line, 0.47, side / height), heat),
        ((0.58, 0.6 * line, 0.35, 0.4 * line), key),
    ):
        axes = figure.add_axes(place)
        axes.imshow(pixels, aspect="auto", interpolation="bicubic")
        axes.set_axis_off()
    texts = [(0.02, 1 - (row + 0.8) * line, *words, 12) for row, words in enumerate(lines)]
    texts += [
        (0.02, 1.5 * line, "The image as the model saw it", _INK, 10),
        (0.51, 1.5 * line, "Evidence for and against it", _INK, 10),
        (0.51, 0.6 * line, "against", _INK, 10),
        (0.94, 0.6 * line, "for", _INK, 10),
    ]
    for x, y, text, colour, size in texts:
        figure.text(x, y, text, color=colour, fontsize=size, fontfamily=_FONT, parse_math=False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


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
    return Image.fromarray(_coloured(_DARKENED * np.asarray(gray, np.float32), heat)), share


def _coloured(base: NDArray[np.float32], strength: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Grey levels [H, W] with strengths [H, W] from -1 to 1 in colour: [H, W, 3]."""
    stops = [-stop for stop in reversed(_STOPS)] + list(_STOPS)
    channels = [
        np.interp(strength, stops, [*reversed(less), *more])
        for more, less in zip(zip(*_COLOURS, strict=True), zip(*_AGAINST, strict=True), strict=True)
    ]
    opacity = _STRONGEST * np.minimum(1.0, np.abs(strength))[..., None]
    mixed = (1 - opacity) * base[..., None] + opacity * np.stack(channels, axis=-1)
    return np.asarray(mixed.round().astype(np.uint8))


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


def _words(evidence: Evidence, hidden: float) -> list[tuple[str, str]]:
    """Lines above the panels and their colours. What speaks against trust comes first."""
    lines = [(text, _ALERT) for text in textwrap.wrap(evidence.caution, _LETTERS)]
    share = "" if evidence.probability is None else f"   {100 * evidence.probability:.1f} %"
    lines.append((_name(evidence) + share, _FAINT if evidence.caution else _INK))
    if hidden >= _MENTIONED:
        text = f"{100 * hidden:.0f} % of the evidence lies on the empty background, not drawn."
        lines.append((text, _ALERT))
    return lines


def _name(evidence: Evidence) -> str:
    """The class in letters that the font has, or else its number; shortened to fit."""
    name = " ".join(evidence.name.split())
    if not name or any(ord(letter) not in _letters() for letter in name):
        name = f"class {evidence.label + 1}"
    return name if len(name) <= _NAME else f"{name[: _NAME - 1].rstrip()}…"


@cache
def _letters() -> frozenset[int]:
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(findfont(_FONT)).get_charmap())
