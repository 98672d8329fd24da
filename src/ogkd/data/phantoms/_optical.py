"""Colour images: haematoxylin and eosin tissue, and the bowel wall by endoscopy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.data.phantoms._draw import (
    Array,
    Attributes,
    Canvas,
    Drawing,
    Frame,
    mix,
    plane,
    record,
    resize,
    rgb,
    soft,
)

Points = NDArray[np.float64]
_TISSUES: dict[str, Any] = record("histology")["looks"]  # in the order of the classes
_BOWEL: dict[str, Any] = record("endoscopy")["looks"]  # a value for each class
_PINK, _PURPLE, _WHITE = rgb(0.92, 0.70, 0.82), rgb(0.36, 0.22, 0.56), rgb(0.96, 0.95, 0.96)
_TURN = np.linspace(0, 2 * np.pi, 9)[:-1]
_RING = np.stack([np.cos(_TURN), np.sin(_TURN)], axis=1)  # eight corners are enough for a nucleus


def histology(label: int, canvas: Canvas) -> Drawing:
    """0 glands, 1 tumor, 2 lymphocytes, 3 stroma, 4 muscle, 5 fat, 6 mucin, 7 debris."""
    rng, size = canvas.rng, canvas.size
    kind, look = list(_TISSUES.items())[label]
    zoom = float(np.exp(rng.normal(0.0, 0.15)))
    angle = rng.uniform(0, 3.14)
    ground, pale = _ground(kind, look, canvas, angle)
    nuclei: list[tuple[Points, float, float]] = []
    glands = _glands(kind, look["glands"], canvas, zoom, nuclei)
    number = int(rng.integers(*look["nuclei"]))
    larger, longer = rng.uniform(1.1, 1.7), rng.uniform(1.0, 1.5)
    nuclear = 0.028 * zoom * (larger if kind == "tumor" else look.get("scale", 1.0))
    long = look.get("long", longer)
    points = rng.uniform(0, 1, (number, 2))
    if kind in ("tumor", "lymphocytes", "debris") and rng.random() < 0.7:
        # Crowds rather than an even spread.
        hubs = rng.uniform(0, 1, (4, 2))[rng.integers(0, 4, number)]
        points = hubs + rng.normal(0, rng.uniform(0.1, 0.22), (number, 2))
    for x, y in points:
        radius = nuclear * float(np.exp(rng.normal(0, look["spread"])))
        dark = float(np.clip(rng.normal(0.8, 0.12), 0.35, 1.0))
        turn = angle + rng.normal(0, look.get("along", 1.6))
        nuclei.append((_oval(x, y, radius, long, turn, size), dark, 0))
        if kind == "debris" and rng.random() < 0.5:  # broken into crumbs
            for dx, dy in rng.normal(0, radius * 1.2, (3, 2)):
                crumb = _oval(x + dx, y + dy, radius * 0.4, 1.0, 0.0, size)
                nuclei.append((crumb, dark * 0.9, 0))
    ink = canvas.ink(nuclei, blur=0.7) * (0.85 + 0.22 * canvas.clouds(50))
    image = mix(ground, _WHITE, pale[..., None])
    if glands is not None:
        image = mix(image, _PINK * 0.97, 0.6 * glands[0][..., None])
        image = mix(image, _WHITE, glands[1][..., None])
    image = mix(image, _PURPLE, np.clip(ink, 0, 1)[..., None])
    stain = np.exp(rng.normal(0.0, (0.03, 0.06, 0.04))).astype(np.float32)
    blur = rng.random() < 0.15
    if blur:
        small = size * 2 // 5
        image = np.stack([resize(resize(image[..., c], small), size) for c in range(3)], -1)
    mask = np.clip(ink * 1.2, 0, 1).astype(np.float32)
    total = len(nuclei)
    attributes: Attributes = {
        "cellularity": "sparse" if total < 30 else ("moderate" if total < 85 else "dense"),
        "nuclei": look.get("nuclear", "elongated" if long > 1.7 else "oval"),
        "fibres": look.get("fibres", "none"),
        "spaces": look.get("spaces", "none"),
        "lumens": "present" if glands is not None else "absent",
        "focus": "blurred" if blur else "sharp",
    }
    return canvas.finish(image * stain, gain=0.08, noise=(0.005, 0.03)), attributes, mask


def _ground(kind: str, look: dict[str, Any], canvas: Canvas, angle: float) -> tuple[Array, Array]:
    """The stained background [S, S, 3] and where it is empty [S, S]."""
    rng, size, pale = canvas.rng, canvas.size, canvas.empty()
    tone = 0.04 * canvas.clouds(6)
    if kind in ("stroma", "muscle"):
        axis = np.linspace(0, 1, size, dtype=np.float32)
        x, y = np.meshgrid(axis, axis)
        across = x * np.float32(np.sin(angle)) - y * np.float32(np.cos(angle))
        bend = (0.06 if kind == "stroma" else 0.02) * canvas.clouds(4)
        waves = np.sin((across + bend) * np.float32(rng.uniform(60, 110)))
        tone = tone + (0.05 if kind == "stroma" else 0.035) * waves
        gap = soft(canvas.ridges(6) - 0.8, 0.5) * (0.6 if kind == "stroma" else 0.2)
        pale = gap * rng.uniform(0.2, 0.9)
    elif kind == "adipose":
        pale = _cells(canvas, int(rng.integers(10, 26)))
    elif kind == "mucin":
        pools = soft(canvas.clouds(4) + 0.4, 1.0)
        pale = pools * (0.75 + 0.12 * canvas.clouds(24, rows=8))
        tone = tone - 0.03
    elif kind == "debris":
        tone = tone + 0.07 * canvas.clouds(40) - 0.03
        pale = 0.4 * soft(canvas.clouds(10) - 0.9, 0.8)
    elif kind in ("tumor", "lymphocytes"):
        tone = tone - 0.07
        pale = soft(canvas.ridges(5) - 0.85, 0.3) * rng.uniform(0.0, 0.5)
    eosin = np.array(look.get("eosin", (0.0, 0.0, 0.0)), np.float32)
    shade = eosin * np.float32(rng.uniform(0.2, 1.3))
    return (_PINK + shade + tone[..., None]).astype(np.float32), np.clip(pale, 0, 1)


def _cells(canvas: Canvas, count: int) -> Array:
    """Rounded empty cells with thin walls (difference of the two nearest distances)."""
    axis = np.linspace(0, 1, canvas.size // 2, dtype=np.float32)
    points = canvas.rng.uniform(-0.1, 1.1, (count, 2)).astype(np.float32)
    dx = axis[None, :, None] - points[:, 0]
    dy = axis[:, None, None] - points[:, 1]
    near = np.partition(np.sqrt(dx * dx + dy * dy), 1, axis=-1)
    walls = soft(near[..., 1] - near[..., 0] - 0.03, 0.04)
    return resize(walls, canvas.size) * np.float32(0.95)


def _glands(
    kind: str, chance: float, canvas: Canvas, zoom: float, nuclei: list[tuple[Points, float, float]]
) -> tuple[Array, Array] | None:
    """Rings of nuclei round a lumen; a tumor forms a few, crooked and back to back."""
    rng, size = canvas.rng, canvas.size
    if rng.random() >= chance:
        return None
    bodies, lumens = [], []
    for _ in range(int(rng.integers(2, 6) if kind == "glands" else rng.integers(1, 4))):
        cx, cy = rng.uniform(0.05, 0.95, 2)
        radius = rng.uniform(0.1, 0.19) * zoom
        t = np.linspace(0, 2 * np.pi, 40, endpoint=False)
        crook = 0.06 if kind == "glands" else 0.22
        edge = radius * (1 + crook * np.sin(3 * t + rng.uniform(0, 6)) * rng.uniform(0.5, 1.3))
        ring = np.stack([cx + edge * np.cos(t), cy + edge * np.sin(t)], 1)
        centre = np.array([cx, cy])
        bodies.append((ring * size, 1.0, 0))
        lumens.append(((centre + (ring - centre) * rng.uniform(0.25, 0.5)) * size, 1.0, 0))
        number = int(2 * np.pi * radius / (0.03 * zoom))
        for corner in rng.permutation(40)[: min(number, 40)]:
            x, y = centre + (ring[corner] - centre) * rng.normal(0.9, 0.04)
            dark = float(rng.uniform(0.65, 0.95))
            nuclei.append((_oval(x, y, 0.022 * zoom, 1.5, t[corner], size), dark, 0))
    return canvas.ink(bodies, blur=0.7), canvas.ink(lumens, blur=0.7)


def _oval(x: float, y: float, radius: float, long: float, angle: float, size: int) -> Points:
    """The corners of a nucleus."""
    cos, sin = np.cos(angle), np.sin(angle)
    u, v = _RING[:, 0] * radius * long**0.5, _RING[:, 1] * radius / long**0.5
    return np.stack([(x + u * cos - v * sin) * size, (y + u * sin + v * cos) * size], axis=1)


def endoscopy(label: int, canvas: Canvas) -> Drawing:
    """0 normal mucosa, 1 polyp, 2 ulcer, 3 diffuse inflammation, 4 bleeding."""
    rng, view = canvas.rng, canvas.frame(turn=3.0, zoom=(0.85, 1.2), shift=0.1, bend=0.05)
    x, y = view.x, view.y
    redness = float(np.clip(rng.normal(_BOWEL["redness"][label], 0.14), 0, 1))
    wall = rgb(0.86, 0.5, 0.4) + np.float32(redness) * rgb(-0.06, -0.26, -0.2)
    hole = (rng.normal(0, 0.35), rng.normal(0, 0.35))
    distance = np.sqrt((x - hole[0]) ** 2 + (y - hole[1]) ** 2)
    folds = 0.5 + 0.5 * np.cos(distance * rng.uniform(9, 15) + 0.6 * view.clouds(5))
    light = 0.35 + 0.65 * soft(distance - 0.35, 0.9) - 0.16 * folds * soft(distance - 0.2, 0.4)
    granular = rng.random() < _BOWEL["granular"][label]
    bumpy = (0.1 if granular else 0.03) * view.clouds(30)
    image = wall * (light + bumpy + 0.04 * view.clouds(6))[..., None]
    veined = rng.random() < _BOWEL["veined"][label]
    web = (0.35 if veined else 0.05) * view.ridges(7) ** 4
    image = image * (1.0 - web[..., None] * rgb(0.2, 0.6, 0.5))
    attributes: Attributes = {
        "redness": "pale" if redness < 0.22 else ("pink" if redness < 0.52 else "red"),
        "surface": "granular" if granular else "smooth",
        "vessel pattern": "visible" if veined else "lost",
    }
    image, mask = _bowel_finding(label, view, image, wall, attributes)
    glints = int(rng.integers(2, 10))
    points = rng.uniform(-0.8, 0.8, (glints, 2))
    shine = view.spots(points, rng.uniform(0.01, 0.03, glints), np.full(glints, 0.8, np.float32))
    image = image + np.clip(shine, 0, 1)[..., None]
    edge = rng.uniform(0.95, 1.2)
    px, py = plane(canvas.size)
    corner = soft(edge - np.maximum(np.abs(px), np.abs(py)) * 0.6 - 0.4 * np.hypot(px, py), 0.03)
    return view.finish(image * corner[..., None], noise=(0.005, 0.03)), attributes, mask


def _bowel_finding(
    label: int, view: Frame, image: Array, wall: Array, attributes: Attributes
) -> tuple[Array, Array]:
    rng = view.rng
    # A normal wall may show a fold seen end-on or a little mucus.
    looks = _BOWEL["finding"][label]
    finding = view.pick(looks) if len(looks) > 1 else next(iter(looks))
    attributes["bowel finding"] = finding
    mask = view.empty()
    centre = (rng.uniform(-0.45, 0.45), rng.uniform(-0.45, 0.45))
    if finding == "raised lump":
        shape = view.pick({"round": 0.5, "oval": 0.3, "lobulated": 0.2})
        radius = rng.uniform(0.16, 0.4) if label == 1 else rng.uniform(0.12, 0.2)
        field, mask = view.lesion(centre, radius, shape=shape, margin="smooth")
        dome = np.sqrt(np.clip(field / radius, 0, 1))
        tone = np.clip(wall * rng.uniform(0.95, 1.2), 0, 1) * (0.55 + 0.55 * dome)[..., None]
        image = image * (1.0 - 0.35 * soft(field + 0.1, 0.2))[..., None]  # its shadow
        image = mix(image, tone, mask[..., None])
        attributes["shape"] = shape
    elif finding == "white crater":
        veil = rng.uniform(0.35, 0.95)
        count = 1 if label == 2 else int(rng.integers(1, 4))
        for _ in range(count):
            radius = rng.uniform(0.13, 0.34) if label == 2 else rng.uniform(0.07, 0.16)
            field, here = view.lesion(centre, radius, shape="irregular", margin="indistinct")
            image = mix(image, rgb(0.7, 0.18, 0.15), 0.5 * soft(field + 0.1, 0.15)[..., None])
            tone = rgb(0.93, 0.86, 0.68) * (0.9 + 0.06 * view.clouds(14))[..., None]
            image = mix(image, tone, veil * here[..., None])
            mask = np.maximum(mask, here)
            centre = (rng.uniform(-0.6, 0.6), rng.uniform(-0.6, 0.6))
    elif finding == "blood":
        pool = view.clouds(4) + 0.3 * view.clouds(12)
        share = rng.uniform(0.4, 1.5) if label == 4 else 1.5
        mask = soft(pool - share, 0.25)
        tone = rgb(0.5, 0.02, 0.03) * (0.8 + 0.15 * view.clouds(10))[..., None]
        image = mix(image, tone, 0.92 * mask[..., None])
    return image, mask
