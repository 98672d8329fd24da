"""Surfaces seen by a camera: skin under a dermatoscope and the bowel wall by endoscopy."""

from __future__ import annotations

import numpy as np

from ogkd.datasets.phantoms._draw import (
    Array,
    Attributes,
    Canvas,
    Drawing,
    Frame,
    mix,
    plane,
    rgb,
    soft,
)

_TONE = {
    "light brown": (0.66, 0.45, 0.31),
    "dark brown": (0.38, 0.23, 0.16),
    "black": (0.16, 0.11, 0.11),
    "pink": (0.86, 0.55, 0.51),
    "red": (0.68, 0.16, 0.18),
    "purple": (0.42, 0.14, 0.3),
    "yellow": (0.8, 0.64, 0.38),
}
# Per class 0-5: nevus, melanoma, basal cell, keratosis, dermatofibroma, vascular.
_COLOUR = (
    {"light brown": 0.55, "dark brown": 0.4, "pink": 0.05},
    {"dark brown": 0.5, "black": 0.36, "light brown": 0.14},
    {"pink": 0.7, "light brown": 0.15, "red": 0.15},
    {"light brown": 0.4, "yellow": 0.3, "dark brown": 0.3},
    {"pink": 0.35, "light brown": 0.65},
    {"red": 0.62, "purple": 0.38},
)
_SHAPE = (
    {"round": 0.5, "oval": 0.4, "lobulated": 0.08, "irregular": 0.02},
    {"round": 0.08, "oval": 0.17, "lobulated": 0.3, "irregular": 0.45},
    {"round": 0.25, "oval": 0.35, "lobulated": 0.25, "irregular": 0.15},
    {"round": 0.25, "oval": 0.42, "lobulated": 0.23, "irregular": 0.1},
    {"round": 0.6, "oval": 0.35, "lobulated": 0.05},
    {"round": 0.45, "oval": 0.2, "lobulated": 0.35},
)
_SMOOTH = (0.7, 0.35, 0.45, 0.85, 0.25, 0.8)  # chance of a sharp edge; else a faded one
_PATTERN = (
    {"network": 0.5, "plain": 0.25, "globules": 0.25},
    {"network": 0.3, "patchy": 0.5, "globules": 0.2},
    {"vessels": 0.6, "plain": 0.2, "patchy": 0.2},
    {"pale dots": 0.6, "ridged": 0.25, "plain": 0.15},
    {"white centre": 0.65, "network": 0.2, "plain": 0.15},
    {"lagoons": 0.65, "plain": 0.35},
)


def derm(label: int, canvas: Canvas) -> Drawing:
    """0 nevus, 1 melanoma, 2 basal cell, 3 keratosis, 4 dermatofibroma, 5 vascular."""
    rng, view = canvas.rng, canvas.frame(turn=1.5, zoom=(0.8, 1.2), shift=0.12, bend=0.03)
    skin = rgb(0.86, 0.66, 0.56) * np.float32(rng.uniform(0.8, 1.1))
    skin = skin * np.exp(rng.normal(0, 0.04, 3)).astype(np.float32)
    relief = 0.025 * view.clouds(36) + 0.03 * view.clouds(5)
    picture: Array = (skin * (1.0 + relief)[..., None]).astype(np.float32)
    colour, shape = view.pick(_COLOUR[label]), view.pick(_SHAPE[label])
    margin = "smooth" if rng.random() < _SMOOTH[label] else "indistinct"
    pattern = view.pick(_PATTERN[label])
    several = rng.random() < (0.15, 0.7, 0.2, 0.2, 0.1, 0.1)[label]
    radius = float(
        np.clip(rng.lognormal(np.log((0.4, 0.5, 0.42, 0.45, 0.36, 0.36)[label]), 0.22), 0.2, 0.8)
    )
    field, mask = view.lesion((0.0, 0.0), radius, shape=shape, margin=margin)
    shade = (1.0 + 0.06 * view.clouds(9))[..., None]
    tone: Array = (np.array(_TONE[colour]) * shade).astype(np.float32)
    if several:
        other = np.array(
            _TONE[view.pick({"black": 0.35, "dark brown": 0.3, "pink": 0.35})], np.float32
        )
        tone = mix(tone, other, (0.8 * soft(view.clouds(4) - 0.2, 0.6))[..., None])
    tone = _pattern(pattern, view, tone, field, radius)
    picture = mix(picture, tone, (0.93 * mask)[..., None])
    if rng.random() < 0.35:
        picture = picture * (1.0 - 0.75 * _hairs(view))[..., None]
    if rng.random() < 0.2:  # the ring of the dermatoscope's lens
        distance = np.sqrt((view.x) ** 2 + (view.y) ** 2)
        picture = picture * soft(rng.uniform(0.95, 1.15) - distance, 0.08)[..., None]
    attributes: Attributes = {
        "colour": colour,
        "shape": shape,
        "margin": margin,
        "pattern": pattern,
        "colours": "several" if several else "single",
        "radius": radius,
    }
    return view.finish(picture, gain=0.08, noise=(0.005, 0.03)), attributes, mask


def _pattern(name: str, view: Frame, tone: Array, field: Array, radius: float) -> Array:
    rng = view.rng
    if name == "network":
        return tone * (1.0 - 0.4 * view.ridges(17) ** 2)[..., None]
    if name == "patchy":
        return tone * (1.0 - 0.55 * soft(view.clouds(6), 0.5))[..., None]
    if name == "ridged":
        return tone * (1.0 - 0.35 * view.ridges(8) ** 2)[..., None]
    if name == "white centre":
        return mix(tone, rgb(0.93, 0.83, 0.78), soft(field - radius * 0.5, 0.2)[..., None])
    if name == "vessels":
        strokes = []
        for _ in range(int(rng.integers(3, 7))):
            walk = np.cumsum(rng.normal(0, 0.05, (9, 2)) + rng.normal(0, 0.04, 2), axis=0)
            strokes.append((view.to_pixels(walk + rng.normal(0, radius * 0.4, 2)), 0.012, 0.9))
        return mix(tone, rgb(0.7, 0.12, 0.15), view.lines(strokes)[..., None])
    if name in ("globules", "pale dots", "lagoons"):
        count = int(rng.integers(10, 22))
        wide = {"globules": 0.03, "pale dots": 0.03, "lagoons": 0.08}[name]
        places = rng.normal(0, radius * 0.45, (count, 2))
        radii = wide * rng.uniform(0.7, 1.3, count)
        dots = np.clip(view.spots(places, radii, np.ones(count, np.float32)), 0, 1)
        ink = {
            "globules": (0.2, 0.12, 0.1),
            "pale dots": (0.95, 0.88, 0.7),
            "lagoons": (0.4, 0.04, 0.1),
        }
        return mix(tone, np.array(ink[name], np.float32), 0.75 * dots[..., None])
    return tone


def _hairs(canvas: Canvas) -> Array:
    rng, size = canvas.rng, canvas.size
    t = np.linspace(0, 1, 8)[:, None]
    strokes = []
    for _ in range(int(rng.integers(2, 9))):
        start, step = rng.uniform(0, size, 2), rng.normal(0, 0.6 * size, 2)
        curve = start + t * step + (t**2) * rng.normal(0, 0.2 * size, 2)
        strokes.append((curve, 0.006, rng.uniform(0.5, 1.0)))
    return canvas.lines(strokes, blur=0.4)


def endoscopy(label: int, canvas: Canvas) -> Drawing:
    """0 normal mucosa, 1 polyp, 2 ulcer, 3 diffuse inflammation, 4 bleeding."""
    rng, view = canvas.rng, canvas.frame(turn=3.0, zoom=(0.85, 1.2), shift=0.1, bend=0.05)
    x, y = view.x, view.y
    redness = float(np.clip(rng.normal((0.2, 0.28, 0.42, 0.8, 0.45)[label], 0.14), 0, 1))
    wall = rgb(0.86, 0.5, 0.4) + np.float32(redness) * rgb(-0.06, -0.26, -0.2)
    hole = (rng.normal(0, 0.35), rng.normal(0, 0.35))
    distance = np.sqrt((x - hole[0]) ** 2 + (y - hole[1]) ** 2)
    folds = 0.5 + 0.5 * np.cos(distance * rng.uniform(9, 15) + 0.6 * view.clouds(5))
    light = 0.35 + 0.65 * soft(distance - 0.35, 0.9) - 0.16 * folds * soft(distance - 0.2, 0.4)
    granular = rng.random() < (0.08, 0.1, 0.3, 0.65, 0.2)[label]
    bumpy = (0.1 if granular else 0.03) * view.clouds(30)
    picture = wall * (light + bumpy + 0.04 * view.clouds(6))[..., None]
    veined = rng.random() < (0.8, 0.6, 0.4, 0.15, 0.5)[label]
    web = (0.35 if veined else 0.05) * view.ridges(7) ** 4
    picture = picture * (1.0 - web[..., None] * rgb(0.2, 0.6, 0.5))
    attributes: Attributes = {
        "redness": "pale" if redness < 0.22 else ("pink" if redness < 0.52 else "red"),
        "surface": "granular" if granular else "smooth",
        "vessel pattern": "visible" if veined else "lost",
        "red level": redness,
    }
    picture, mask = _bowel_finding(label, view, picture, wall, attributes)
    glints = int(rng.integers(2, 10))
    places = rng.uniform(-0.8, 0.8, (glints, 2))
    shine = view.spots(places, rng.uniform(0.01, 0.03, glints), np.full(glints, 0.8, np.float32))
    picture = picture + np.clip(shine, 0, 1)[..., None]
    edge = rng.uniform(0.95, 1.2)
    px, py = plane(canvas.size)
    corner = soft(edge - np.maximum(np.abs(px), np.abs(py)) * 0.6 - 0.4 * np.hypot(px, py), 0.03)
    return view.finish(picture * corner[..., None], noise=(0.005, 0.03)), attributes, mask


def _bowel_finding(
    label: int, view: Frame, picture: Array, wall: Array, attributes: Attributes
) -> tuple[Array, Array]:
    rng = view.rng
    finding = ("none", "raised lump", "white crater", "none", "blood")[label]
    if label == 0:  # a fold seen end-on, or a little mucus
        finding = view.pick({"none": 0.8, "raised lump": 0.12, "white crater": 0.08})
    if label == 3:
        finding = view.pick({"none": 0.6, "white crater": 0.25, "blood": 0.15})
    attributes["bowel finding"] = finding
    mask = view.empty()
    place = (rng.uniform(-0.45, 0.45), rng.uniform(-0.45, 0.45))
    if finding == "raised lump":
        shape = view.pick({"round": 0.5, "oval": 0.3, "lobulated": 0.2})
        radius = rng.uniform(0.16, 0.4) if label == 1 else rng.uniform(0.12, 0.2)
        field, mask = view.lesion(place, radius, shape=shape, margin="smooth")
        dome = np.sqrt(np.clip(field / radius, 0, 1))
        tone = np.clip(wall * rng.uniform(0.95, 1.2), 0, 1) * (0.55 + 0.55 * dome)[..., None]
        picture = picture * (1.0 - 0.35 * soft(field + 0.1, 0.2))[..., None]  # its shadow
        picture = mix(picture, tone, mask[..., None])
        attributes["shape"] = shape
    elif finding == "white crater":
        veil = rng.uniform(0.35, 0.95)
        count = 1 if label == 2 else int(rng.integers(1, 4))
        for _ in range(count):
            radius = rng.uniform(0.13, 0.34) if label == 2 else rng.uniform(0.07, 0.16)
            field, here = view.lesion(place, radius, shape="irregular", margin="indistinct")
            picture = mix(picture, rgb(0.7, 0.18, 0.15), 0.5 * soft(field + 0.1, 0.15)[..., None])
            tone = rgb(0.93, 0.86, 0.68) * (0.9 + 0.06 * view.clouds(14))[..., None]
            picture = mix(picture, tone, veil * here[..., None])
            mask = np.maximum(mask, here)
            place = (rng.uniform(-0.6, 0.6), rng.uniform(-0.6, 0.6))
    elif finding == "blood":
        pool = view.clouds(4) + 0.3 * view.clouds(12)
        share = rng.uniform(0.4, 1.5) if label == 4 else 1.5
        mask = soft(pool - share, 0.25)
        tone = rgb(0.5, 0.02, 0.03) * (0.8 + 0.15 * view.clouds(10))[..., None]
        picture = mix(picture, tone, 0.92 * mask[..., None])
    return picture, mask
