"""Drawing primitives shared by all phantoms: warped frames, noise, outlines, lines, finish.

A scene has coordinates in -1..1 (x to the right, y down). All arrays are float32 in 0..1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Array = NDArray[np.float32]
Real = NDArray[np.floating[Any]]  # float32 by intent; numpy's types widen it on the way
Rng = np.random.Generator
Attributes = dict[str, str]
Drawing = tuple[Array, Attributes, Array]  # image [S, S] or [S, S, 3], what is in it, lesion mask

# Of a lesion: aspect, and amplitude and orders of the waves of its outline.
_SHAPES = {
    "round": (1.0, 0.02, (2, 3)),
    "oval": (1.45, 0.02, (2, 3)),
    "lobulated": (1.2, 0.13, (3, 4)),
    "irregular": (1.25, 0.11, (2, 3, 5, 7)),
}
_SOFTNESS = {"smooth": 0.025, "indistinct": 0.16, "spiculated": 0.04}


def to_levels(values: Real) -> NDArray[np.uint8]:
    """Values in 0..1 as bytes."""
    return np.rint(np.clip(values, 0.0, 1.0) * 255).astype(np.uint8)


def rgb(red: float, green: float, blue: float) -> Array:
    return np.array([red, green, blue], np.float32)


def new_rng(seed: np.random.SeedSequence) -> Rng:
    return np.random.Generator(np.random.PCG64(seed))


def record(name: str) -> dict[str, Any]:
    """What records/NAME.json says about a family."""
    file = resources.files("ogkd.data.phantoms") / "records" / f"{name}.json"
    facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return facts


@lru_cache(maxsize=4)
def plane(size: int) -> tuple[Array, Array]:
    axis = np.linspace(-1.0, 1.0, size, dtype=np.float32)
    x, y = np.meshgrid(axis, axis)
    return x, y


def resize(values: Array, size: int) -> Array:
    """Resample a small float field to [size, size] smoothly."""
    smooth = Image.fromarray(values).resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(smooth, dtype=np.float32)


def soft(field: Real, width: float) -> Array:
    """A smooth step from 0 (field below 0) to 1 (above 0) over `width`."""
    ramp = np.clip(field * np.float32(1.0 / width) + np.float32(0.5), 0.0, 1.0)
    return np.asarray(ramp * ramp * (3.0 - 2.0 * ramp), dtype=np.float32)


def mix(under: Real, over: Real | float, alpha: Real) -> Array:
    """Lay `over` on `under` where `alpha` is 1."""
    return np.asarray(under + (over - under) * alpha, dtype=np.float32)


@dataclass(frozen=True)
class Canvas:
    """A square to draw on, and its two sources of randomness."""

    rng: Rng  # decides what is drawn
    texture: Rng  # fills it with noise: how much is needed depends on the size
    size: int

    def empty(self) -> Array:
        """A picture or mask with nothing in it."""
        return np.zeros((self.size, self.size), dtype=np.float32)

    def frame(
        self,
        *,
        turn: float = 0.1,
        zoom: tuple[float, float] = (0.9, 1.1),
        shift: float = 0.08,
        bend: float = 0.03,
        mirror: bool = True,
    ) -> Frame:
        """Draw a random view of the scene; `bend` gives organs a hand-drawn, living outline."""
        rng = self.rng
        angle, scale = rng.normal(0.0, turn), rng.uniform(*zoom)
        sign = -1.0 if mirror and rng.random() < 0.5 else 1.0
        cos, sin = np.cos(angle) / scale, np.sin(angle) / scale
        matrix = np.array([[cos * sign, -sin], [sin * sign, cos]])
        offset = rng.uniform(-shift, shift, 2)
        px, py = plane(self.size)
        x = np.float32(matrix[0, 0]) * px + np.float32(matrix[0, 1]) * py + np.float32(offset[0])
        y = np.float32(matrix[1, 0]) * px + np.float32(matrix[1, 1]) * py + np.float32(offset[1])
        if bend:
            x = x + np.float32(bend) * self.clouds(5, rng=rng)
            y = y + np.float32(bend) * self.clouds(5, rng=rng)
        return Frame(rng, self.texture, self.size, x, y, matrix, offset)

    def clouds(self, cells: int, *, rows: int | None = None, rng: Rng | None = None) -> Array:
        """Smooth noise of about unit variance with `cells` grains across (and `rows` down)."""
        grains = (rng or self.texture).standard_normal((rows or cells, cells), dtype=np.float32)
        return resize(grains, self.size)

    def ridges(self, cells: int, *, rows: int | None = None) -> Array:
        """Thin bright winding lines in 0..1, such as septa, gyri or fibres."""
        folded = 1.0 - np.abs(self.clouds(cells, rows=rows)) * 1.6
        return np.asarray(np.clip(folded, 0.0, 1.0), dtype=np.float32)

    def pick(self, weights: Mapping[str, float]) -> str:
        """Draw one key with the given weights."""
        names = list(weights)
        parts = np.cumsum(list(weights.values()))
        return names[int(np.searchsorted(parts, self.rng.random() * parts[-1], side="right"))]

    def ink(
        self, strokes: Iterable[tuple[NDArray[np.float64], float, float]], *, blur: float
    ) -> Array:
        """Lines (pixel points [N, 2], strength 0..1, width as a part of the side), later on top."""
        image = Image.new("L", (self.size, self.size))
        pen = ImageDraw.Draw(image)
        for points, strength, width in strokes:
            thick = max(1, round(width * self.size))
            fill = int(255 * strength)
            pen.line(points.ravel().tolist(), fill=fill, width=thick, joint="curve")
        image = image.filter(ImageFilter.GaussianBlur(blur * self.size / 160))
        return np.asarray(image, dtype=np.float32) / np.float32(255.0)

    def finish(
        self,
        picture: Real,
        *,
        gain: float = 0.12,
        gamma: float = 0.15,
        noise: tuple[float, float] = (0.01, 0.04),
        marker: float = 0.0,
    ) -> Array:
        """Nuisances every modality has: gain, contrast curve, noise and burnt-in marks."""
        rng = self.rng
        picture = np.clip(picture * np.float32(np.exp(rng.normal(0.0, gain))), 0.0, 1.0)
        picture = picture ** np.float32(np.exp(rng.normal(0.0, gamma)))
        level, marked = np.float32(rng.uniform(*noise)), rng.random() < marker
        dots = self.texture.standard_normal((self.size, self.size), dtype=np.float32) * level
        picture = picture + (dots if picture.ndim == 2 else dots[..., None])
        if marked:
            _burn_in(picture, rng)
        return np.asarray(np.clip(picture, 0.0, 1.0), dtype=np.float32)


@dataclass(frozen=True)
class Frame(Canvas):
    """Scene coordinates of every pixel after a random turn, zoom, shift and bend."""

    x: Array  # [S, S]
    y: Array  # [S, S]
    matrix: NDArray[np.float64]  # pixel plane -> scene, without the bend
    offset: NDArray[np.float64]

    def to_pixels(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scene points [N, 2] as pixel positions (x, y) for the line-drawing primitives."""
        plane = np.linalg.solve(self.matrix, (points - self.offset).T).T
        return np.asarray((plane + 1.0) * 0.5 * (self.size - 1))

    def blob(
        self,
        centre: tuple[float, float],
        radius: float,
        *,
        aspect: float = 1.0,
        angle: float = 0.0,
        waves: Sequence[tuple[int, float, float]] = (),
        spikes: tuple[int, float, float] | None = None,
    ) -> Array:
        """Signed distance-like field of a closed outline: positive inside, 0 on the edge.

        `waves` are (order, amplitude, phase) of the outline; `spikes` the same but pointed.
        """
        dx, dy = self.x - np.float32(centre[0]), self.y - np.float32(centre[1])
        cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        u, v = (dx * cos + dy * sin) / np.float32(aspect), (dy * cos - dx * sin)
        distance = np.sqrt(u * u + v * v)
        edge: Real | float = 1.0
        if waves or spikes:
            theta = np.arctan2(v, u)
            for order, amplitude, phase in waves:
                edge = edge + np.float32(amplitude) * np.cos(order * theta + np.float32(phase))
            if spikes:
                order, amplitude, phase = spikes
                points = np.abs(np.cos(0.5 * order * theta + np.float32(phase)))
                edge = edge + np.float32(amplitude) * (points**6 - np.float32(0.2))
        # Divide rather than subtract: inner contours are then smaller copies of the outline.
        return np.asarray(np.float32(radius) - distance / np.maximum(edge, 0.3), dtype=np.float32)

    def lesion(
        self,
        centre: tuple[float, float],
        radius: float,
        *,
        shape: str,
        margin: str,
        angle: float | None = None,
    ) -> tuple[Array, Array]:
        """The field and the soft mask of a lesion with a named shape and margin."""
        rng = self.rng
        aspect, amplitude, orders = _SHAPES[shape]
        aspect *= float(np.exp(rng.normal(0.0, 0.06)))
        waves = [(o, amplitude * rng.uniform(0.5, 1.2), rng.uniform(0, 6.28)) for o in orders]
        spikes = None
        if margin == "spiculated":
            spikes = (2 * int(rng.integers(4, 8)), rng.uniform(0.35, 0.7), rng.uniform(0, 6.28))
        field = self.blob(
            centre,
            radius / aspect**0.5,
            aspect=aspect,
            angle=rng.uniform(0, 3.14) if angle is None else angle,
            waves=waves,
            spikes=spikes,
        )
        return field, soft(field, _SOFTNESS[margin] + 0.05 * radius)

    def spots(
        self, points: NDArray[np.float64], radii: NDArray[np.float64], strengths: Array
    ) -> Array:
        """Sum of small round Gaussian spots at scene points [N, 2]."""
        out = self.empty()
        pixels = np.arange(self.size)
        for (cx, cy), radius, strength in zip(
            self.to_pixels(points), radii, strengths, strict=True
        ):
            sigma = max(0.5, radius * self.size * 0.5)
            reach = int(np.ceil(2.5 * sigma))
            x = pixels[max(int(cx) - reach, 0) : max(int(cx) + reach + 1, 0)]
            y = pixels[max(int(cy) - reach, 0) : max(int(cy) + reach + 1, 0)]
            gx, gy = (np.exp(-((p - c) ** 2) / (2 * sigma**2)) for p, c in ((x, cx), (y, cy)))
            out[np.ix_(y, x)] += (strength * np.outer(gy, gx)).astype(np.float32)
        return out


def _burn_in(picture: Real, rng: Rng) -> None:
    """Small bright bars near a corner, as the letters a scanner writes."""
    size = picture.shape[0]
    unit = size / 160
    top = int(rng.choice([4, 146]) * unit)
    left = int(rng.choice([5, 120]) * unit)
    for _ in range(int(rng.integers(2, 7))):
        wide, high = int(rng.integers(1, 5) * unit), int(rng.integers(3, 8) * unit)
        picture[top : top + max(high, 1), left : left + max(wide, 1)] = rng.uniform(0.7, 1.0)
        left += wide + max(1, int(2 * unit))
