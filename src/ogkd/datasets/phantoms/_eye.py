"""The eye: colour photographs of the fundus and OCT sections of the retina."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ogkd.datasets.phantoms._draw import (
    Array,
    Attributes,
    Canvas,
    Drawing,
    Frame,
    Rng,
    mix,
    rgb,
    soft,
)


def _count(number: int, few: int) -> str:
    return "none" if number == 0 else ("few" if number <= few else "many")


def fundus(label: int, canvas: Canvas) -> Drawing:
    """0 normal, 1 diabetic retinopathy, 2 glaucoma, 3 cataract, 4 macular degeneration."""
    rng, view = canvas.rng, canvas.frame(turn=0.12, zoom=(0.85, 1.05), shift=0.1, bend=0.01)
    disc = (0.48, rng.normal(0.0, 0.05))
    macula = (-0.12, disc[1] + 0.05)
    cup = {2: rng.normal(0.72, 0.1)}.get(label, rng.normal(0.42, 0.11))
    cup = float(np.clip(cup, 0.15, 0.9))
    # A normal eye may have one odd spot; a diseased one may show little.
    grade = rng.beta(1.6, 1.6)
    red = int(rng.poisson({1: 15.0 * grade, 4: 0.8}.get(label, 0.25)))
    exudates = int(rng.poisson({1: 8.0 * grade, 4: 0.8}.get(label, 0.1)))
    drusen = int(rng.poisson({4: 2.0 + 18.0 * grade, 1: 0.8}.get(label, 0.4)))
    haze = float(rng.beta(5, 4) if label == 3 else rng.beta(1.2, 7))
    tone = np.array([rng.uniform(0.62, 0.85), rng.uniform(0.24, 0.38), rng.uniform(0.06, 0.16)])
    base = tone.astype(np.float32) * (1.0 + 0.08 * view.clouds(6))[..., None]
    radius = np.sqrt(view.x**2 + view.y**2)
    base = base * (1.0 - 0.3 * radius**2)[..., None]
    base = base * (1.0 - 0.35 * soft(view.blob(macula, 0.14), 0.25))[..., None]
    vessels = view.lines(_vessels(view, disc), blur=0.6)
    base = base * (1.0 - vessels[..., None] * rgb(0.38, 0.62, 0.5))
    oval = view.blob(disc, 0.15, aspect=0.9)
    base = mix(base, rgb(0.98, 0.78, 0.45), 0.85 * soft(oval, 0.05)[..., None])
    inner = view.blob(disc, 0.15 * cup, aspect=0.9)
    base = mix(base, rgb(1.0, 0.95, 0.75), soft(inner, 0.04)[..., None])
    base = base * (1.0 - 0.35 * (vessels * soft(oval, 0.05))[..., None])
    mask = view.empty()
    for count, at, spread, wide, ink, strength, opacity in (
        (red, (0.0, 0.0), 0.42, (0.012, 0.045), rgb(0.32, 0.03, 0.02), 1.0, 0.85),
        (exudates, macula, 0.3, (0.012, 0.04), rgb(1.0, 0.93, 0.55), 1.3, 1.0),
        (drusen, macula, 0.13, (0.015, 0.04), rgb(0.95, 0.75, 0.4), 1.0, 0.65),
    ):
        if count:
            dots = np.clip(_scatter(view, count, at, spread, wide) * strength, 0, 1)
            base = mix(base, ink, opacity * dots[..., None])
            mask = np.maximum(mask, dots)
    if label == 2:
        mask = soft(oval, 0.05)
    veil = rgb(0.78, 0.66, 0.55)
    base = mix(
        base, veil, np.float32(0.75 * haze) * (0.8 + 0.2 * soft(0.9 - radius, 1.2))[..., None]
    )
    field = soft(rng.uniform(0.9, 1.05) - radius, 0.03)
    picture = base * field[..., None]
    attributes: Attributes = {
        "cup": "large" if cup > 0.58 else "small",
        "red spots": _count(red, 4),
        "exudates": _count(exudates, 3),
        "drusen": _count(drusen, 5),
        "clarity": "hazy" if haze > 0.38 else "clear",
        "cup ratio": cup,
        "haze": haze,
    }
    return view.finish(picture, gain=0.12, noise=(0.005, 0.025)), attributes, mask


def _scatter(
    view: Frame, count: int, at: tuple[float, float], spread: float, size: tuple[float, float]
) -> Array:
    rng = view.rng
    points = np.array(at) + rng.normal(0.0, spread, (count, 2))
    strengths = rng.uniform(0.7, 1.2, count).astype(np.float32)
    return view.spots(points, rng.uniform(*size, count), strengths)


def _vessels(
    view: Frame, disc: tuple[float, float]
) -> list[tuple[NDArray[np.float64], float, float]]:
    """Arcades that leave the disc up and down and bend round the macula, with branches."""
    rng, strokes = view.rng, []
    t = np.linspace(0.0, 1.0, 14)
    for side in (-1.0, 1.0):
        for reach, lift, width in ((-1.5, 0.62, 0.02), (-1.1, 0.9, 0.012), (0.45, 0.75, 0.013)):
            wobble = np.cumsum(rng.normal(0.0, 0.012, 14))
            x = disc[0] + reach * t**1.4 + wobble
            y = disc[1] + side * (lift * np.sqrt(t) * rng.uniform(0.85, 1.1)) + wobble[::-1]
            trunk = np.stack([x, y], axis=1)
            strokes.append((view.to_pixels(trunk), width, 0.9))
            for start in rng.integers(3, 11, 3):
                step = rng.uniform(0.25, 0.5) * np.array(
                    [rng.uniform(-1, 0.3), side * rng.normal()]
                )
                line = trunk[start] + t[:7, None] * step + np.cumsum(rng.normal(0, 0.01, (7, 2)), 0)
                strokes.append((view.to_pixels(line), width * 0.45, 0.6))
    return strokes


def oct_retina(label: int, canvas: Canvas) -> Drawing:
    """0 normal, 1 drusen, 2 choroidal neovascularization, 3 diabetic macular edema."""
    rng, size = canvas.rng, canvas.size
    columns = np.linspace(-1.0, 1.0, size, dtype=np.float32)
    rows = np.linspace(-1.0, 1.0, size, dtype=np.float32)[:, None]
    centre = rng.normal(0.0, 0.15)
    tilt, bow = rng.normal(0.0, 0.08), rng.uniform(-0.1, 0.14)
    x = columns - np.float32(centre)
    floor = rng.uniform(0.15, 0.4) + tilt * columns + bow * columns**2
    thick = rng.uniform(0.5, 0.62) * (1.0 + rng.normal(0.0, 0.05))
    dip = rng.uniform(0.18, 0.3) * np.exp(-((x / 0.2) ** 2))
    mask = canvas.empty()

    # Bumps lift the pigment epithelium: low and many for drusen, one high for a membrane.
    chances = (int(rng.random() < 0.12), int(rng.integers(1, 8)), int(rng.integers(0, 3)), 0)
    bumps = chances[label]
    lift = np.zeros(size, dtype=np.float32)
    for _ in range(bumps):
        high, wide = rng.uniform(0.025, 0.1), rng.uniform(0.04, 0.1)
        lift += np.float32(high) * np.exp(-(((columns - rng.uniform(-0.75, 0.75)) / wide) ** 2))
    membrane = label == 2 or (label == 1 and rng.random() < 0.06)
    hump, at = 0.0, rng.normal(centre, 0.2)
    if membrane:
        hump = rng.uniform(0.05, 0.24)
        lift += np.float32(hump) * np.exp(-(((columns - at) / rng.uniform(0.18, 0.36)) ** 2))
    cysts = int({0: rng.random() < 0.06, 2: rng.poisson(1.0), 3: rng.poisson(3.5)}.get(label, 0))
    fluid = rng.random() < {1: 0.05, 2: 0.5, 3: 0.3}.get(label, 0.0)
    swell = {2: rng.uniform(0.0, 0.2), 3: rng.uniform(0.02, 0.35)}.get(label, 0.0)
    dip = dip * (1.0 - min(1.0, 2.5 * swell))
    top = floor - lift * 0.7 - thick + dip - swell * np.exp(-((x / 0.5) ** 2))
    rpe = floor - lift
    depth = (rows - top) / np.maximum(rpe - top, 0.08)  # 0 at the surface, 1 at the epithelium
    picture = _layers(rng, depth.astype(np.float32))
    below = rows - rpe
    choroid = 0.42 * np.exp(-np.clip(below, 0, None) / 0.3) * (0.7 + 0.3 * canvas.clouds(18))
    picture = mix(picture, choroid.astype(np.float32), soft(below.astype(np.float32) - 0.05, 0.04))
    under = soft((floor - rows).astype(np.float32), 0.04) * soft(
        below.astype(np.float32) - 0.05, 0.04
    )
    picture = mix(picture, 0.55 if membrane else 0.4, under * (0.8 + 0.2 * canvas.clouds(20)))
    mask = np.maximum(mask, under * (lift > 0.02))
    line = np.exp(-((below / 0.035) ** 2)).astype(np.float32)
    picture = np.maximum(picture, 0.95 * line)
    dark = canvas.empty()
    for _ in range(cysts):
        where = centre + rng.normal(0.0, 0.3)
        column = int(np.clip((where + 1) / 2 * (size - 1), 0, size - 1))
        middle = top[column] + rng.uniform(0.3, 0.7) * (rpe[column] - top[column])
        wide, high = rng.uniform(0.04, 0.11), rng.uniform(0.04, 0.12)
        dark = np.maximum(dark, soft(_hole(columns, rows, where, middle, wide, high), 0.35))
    if fluid:
        dome = 0.12 * np.exp(-(((columns - at) / 0.35) ** 2))
        space = np.minimum(rpe - 0.05 - rows, rows - (rpe - 0.05 - dome)).astype(np.float32)
        dark = np.maximum(dark, soft(space, 0.03))
    picture = mix(picture, 0.05, 0.92 * dark)
    mask = np.maximum(mask, dark)
    speckle = np.abs(1.0 + 0.38 * canvas.clouds(int(size * 0.6)))
    picture = (picture * speckle + 0.05).astype(np.float32)
    attributes: Attributes = {
        "bumps": _count(bumps, 2),
        "membrane": "present" if membrane else "absent",
        "cysts": _count(cysts, 2),
        "subretinal fluid": "present" if fluid else "absent",
        "thickness": "swollen" if swell > 0.12 else "usual",
        "pit": "flattened" if swell > 0.15 else "preserved",
        "hump": float(hump),
    }
    picture = canvas.finish(picture, gain=0.15, noise=(0.02, 0.08), marker=0.1)
    return picture, attributes, mask


def _hole(x: Array, y: Array, cx: float, cy: float, wide: float, high: float) -> Array:
    return np.asarray(1.0 - ((x - cx) / wide) ** 2 - ((y - cy) / high) ** 2, dtype=np.float32)


def _layers(rng: Rng, depth: Array) -> Array:
    """Bands of the retina by relative depth; dark above it."""
    marks = np.array([0.0, 0.04, 0.14, 0.24, 0.38, 0.46, 0.6, 0.68, 0.84, 0.9, 1.0, 3.0])
    levels = np.array([0.05, 0.8, 0.7, 0.45, 0.5, 0.28, 0.48, 0.22, 0.2, 0.6, 0.5, 0.4])
    levels = levels * rng.uniform(0.88, 1.12, len(levels))
    return np.asarray(np.interp(depth, marks, levels, left=0.05), dtype=np.float32)
