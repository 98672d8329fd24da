"""The families: breast ultrasound, chest radiographs, and the bowel wall by endoscopy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ogkd.data.phantoms._draw import (
    Array,
    Attributes,
    Canvas,
    Drawing,
    Frame,
    mix,
    plane,
    record,
    rgb,
    soft,
)

# Neighbouring classes share values on purpose: no single attribute decides.
_BREAST: dict[str, Any] = record("us-breast")["looks"]
_BOWEL: dict[str, Any] = record("endoscopy")["looks"]  # a value for each class


def us_breast(label: int, canvas: Canvas) -> Drawing:
    """0 normal tissue, 1 simple cyst, 2 benign solid mass, 3 malignant mass."""
    rng, view = canvas.rng, canvas.frame(turn=0.07, zoom=(0.9, 1.2), shift=0.08, bend=0.05)
    tissue = _breast_tissue(view)
    draw = _breast_mass if label else _normal_breast
    tissue, behind, attributes, mask = draw(view, tissue, label)
    # Speckle: the length of a random phasor, finer along the beam than across it.
    grains, rows = int(view.size * 0.36), int(view.size * 0.62)
    real, imaginary = view.clouds(grains, rows=rows), view.clouds(grains, rows=rows)
    speckle = np.sqrt(real * real + imaginary * imaginary)
    depth = (view.y + 1.0) * 0.5
    light = 1.0 + behind + rng.normal(0.0, 0.18) * (depth - 0.4) - 0.35 * depth * depth
    image = np.clip(tissue, 0, 1) * (0.25 + 0.8 * speckle) * np.clip(light, 0.05, 2.0)
    image = 1.25 * image / (image + np.float32(0.5))
    if rng.random() < 0.3:  # the dark sides of a curved probe's field
        image *= soft(1.02 - np.abs(view.x) + 0.25 * depth - 0.2, 0.05)
    return view.finish(image, gain=0.16, gamma=0.18, marker=0.3), attributes, mask


def _breast_tissue(view: Frame) -> Array:
    """Skin, fat with septa, gland and muscle from the top down."""
    rng, y = view.rng, view.y
    wave = 0.08 * view.clouds(4)
    fat, muscle = rng.uniform(-0.75, -0.35), rng.uniform(0.35, 0.8)
    image = 0.2 + 0.3 * view.ridges(7, rows=9)
    gland = 0.42 + 0.13 * view.clouds(6, rows=16) + 0.1 * view.ridges(5, rows=12)
    image = mix(image, gland * rng.uniform(0.7, 1.1), soft(y + wave - fat, 0.15))
    striped = 0.22 + 0.3 * view.ridges(3, rows=22)
    image = mix(image, striped, soft(y + wave - muscle, 0.08))
    return np.asarray(image + 0.5 * soft(-0.9 - y, 0.06), dtype=np.float32)


def _column(view: Frame, centre: float, top: float, half: float) -> Array:
    """The strip below a structure that shadows or brightens what is behind it."""
    spread = half * (1.0 + 0.25 * np.clip(view.y - top, 0, None))
    strip = soft(spread - np.abs(view.x - np.float32(centre)), 0.14)
    return strip * soft(view.y - np.float32(top) - 0.25, 0.6)


def _normal_breast(
    view: Frame, tissue: Array, label: int
) -> tuple[Array, Array, Attributes, Array]:
    """A fat lobule or a shadowing ligament is normal, and looks a little like a lesion."""
    rng, behind = view.rng, view.empty()
    finding = view.pick({"none": 0.55, "fat lobule": 0.3, "shadow": 0.15})
    if finding == "fat lobule":
        centre = (rng.uniform(-0.5, 0.5), rng.uniform(-0.3, 0.3))
        radius = rng.uniform(0.2, 0.35)
        _, lobule = view.lesion(centre, radius, shape="oval", margin="indistinct", angle=0)
        tissue = mix(tissue, 0.3, lobule * 0.7)
    elif finding == "shadow":
        behind -= 0.6 * _column(view, rng.uniform(-0.6, 0.6), -0.2, 0.12)
    return tissue, behind, {"finding": finding}, view.empty()


def _breast_mass(view: Frame, tissue: Array, label: int) -> tuple[Array, Array, Attributes, Array]:
    rng, kind = view.rng, label - 1
    names = ("shape", "margin", "echo", "posterior")
    look = {name: view.pick(_BREAST[name][kind]) for name in names}
    tall = rng.random() < _BREAST["tall"][kind]
    radius = float(np.clip(rng.lognormal(_BREAST["size"][kind], 0.28), 0.14, 0.5))
    centre = (rng.uniform(-0.4, 0.4), rng.uniform(-0.25, 0.25))
    angle = rng.normal(1.57 if tall else 0.0, 0.25)
    shape, margin = look["shape"], look["margin"]
    field, mask = view.lesion(centre, radius, shape=shape, margin=margin, angle=angle)
    level = _BREAST["level"][look["echo"]]
    tissue = mix(tissue, level * (1.0 + (0.2 + 0.2 * kind) * 0.5 * view.clouds(9)), mask)
    if margin == "smooth" and rng.random() < 0.6:
        tissue = tissue + 0.16 * soft(0.035 - np.abs(field), 0.04)  # a thin bright capsule
    column = _column(view, centre[0], centre[1] + 0.4 * radius, radius * 0.75)
    behind = view.empty() + _BREAST["behind"][look["posterior"]] * column
    foci = rng.random() < _BREAST["foci"][kind]
    if foci:
        count = int(rng.integers(3, 9))
        points = np.array(centre) + rng.normal(0.0, radius * 0.4, (count, 2))
        tissue += view.spots(points, np.full(count, 0.018), np.full(count, 0.9, np.float32))
    look["orientation"] = "taller" if tall else "wider"
    look["calcification"] = "present" if foci else "absent"
    return tissue, behind, look, mask


def chest(labels: int | tuple[int, ...], canvas: Canvas) -> Drawing:
    """0 normal, 1 lobar pneumonia, 2 viral pneumonia, 3 pleural effusion, 4 enlarged heart.

    A chest may show several of them.
    """
    labels = (labels,) if isinstance(labels, int) else labels
    rng = canvas.rng
    view = canvas.frame(turn=0.05, zoom=(0.9, 1.12), shift=0.08, bend=0.025, mirror=False)
    x, y = view.x, view.y
    halves = []
    for side in (-1.0, 1.0):
        centre, tilt, waves = (side * 0.44, -0.02), 1.57 + side * 0.1, [(2, 0.04, 0.4)]
        half = view.blob(centre, 0.36, aspect=1.9, angle=tilt, waves=waves)
        dome = np.float32(0.56) - y + 0.28 * (x - np.float32(side * 0.42)) ** 2
        halves.append(np.minimum(half, dome))
    lungs = np.maximum(*(soft(half, 0.06) for half in halves))
    air = rng.uniform(0.1, 0.22)
    body = 0.52 + 0.04 * view.clouds(4)
    body = body - 0.22 * soft(np.abs(x) - 0.95 + 0.2 * y, 0.1) - 0.2 * soft(-0.85 - y, 0.2)
    marks = 0.2 * view.ridges(11) ** 2 * np.exp(-((np.abs(x) - 0.2) ** 2) / 0.12)
    image = mix(body, air + 0.03 * view.clouds(8) + marks, lungs)
    wide = float(rng.normal(0.47 if 4 in labels else 0.34, 0.035))
    heart = view.blob((0.1, 0.3), wide, aspect=1.15, angle=0.5)
    shadow = soft(heart, 0.12)
    image = mix(image, 0.7, 0.88 * shadow)
    image = mix(image, 0.72, 0.6 * soft(0.13 - np.abs(x - 0.01), 0.14))
    disease = view.empty()
    attributes: Attributes = {}
    for label in labels:
        more, words = _lung_disease(label, view, lungs, halves)
        disease = np.maximum(disease, more)
        attributes |= words
    mask = np.maximum(disease * (labels != (4,)), soft(heart, 0.06)) if 4 in labels else disease
    image = mix(image, 0.72, disease)
    image = image + _ribs(view) * (0.25 + 0.75 * lungs) * (1.0 - 0.8 * shadow)
    attributes["heart"] = "large" if wide > 0.405 else "usual"
    return view.finish(image, gain=0.15, noise=(0.01, 0.05), marker=0.5), attributes, mask


def _lung_disease(
    label: int, view: Frame, lungs: Array, halves: list[Array]
) -> tuple[Array, Attributes]:
    rng = view.rng
    disease = view.empty()
    opacity, sides, fluid = "none", "none", "absent"
    side = int(rng.integers(0, 2))
    if label == 1 or (label == 0 and rng.random() < 0.06):
        opacity = view.pick({"dense patch": 0.8, "hazy": 0.2}) if label else "hazy"
        sides = view.pick({"one lung": 0.85, "both lungs": 0.15})
        for which in (0, 1) if sides == "both lungs" else (side,):
            centre = ((-0.44, 0.44)[which] + rng.normal(0, 0.08), rng.uniform(-0.4, 0.4))
            patch = view.blob(centre, rng.uniform(0.17, 0.32), waves=[(3, 0.15, rng.uniform(0, 6))])
            dense = rng.uniform(0.6, 0.95) if opacity == "dense patch" else rng.uniform(0.3, 0.5)
            disease = np.maximum(disease, dense * soft(patch + 0.07 * view.clouds(12), 0.16))
    elif label == 2:
        opacity = view.pick({"hazy": 0.85, "dense patch": 0.15})
        sides = view.pick({"both lungs": 0.82, "one lung": 0.18})
        disease = soft(view.clouds(7) + 0.35 + 0.5 * view.y, 1.2) * rng.uniform(0.4, 0.75)
        if opacity == "dense patch":
            disease = np.clip(disease * 1.35, 0, 0.95)
        if sides == "one lung":
            disease = disease * soft(halves[side], 0.06)
    elif label == 3 or rng.random() < 0.05:
        fluid = "present"
        sides = view.pick({"one lung": 0.75, "both lungs": 0.25})
        for which in (0, 1) if sides == "both lungs" else (side,):
            level = rng.uniform(-0.1, 0.42) if label == 3 else rng.uniform(0.35, 0.48)
            outer = np.abs(view.x) - 0.45
            pool = soft(view.y - level + 0.5 * outer * np.abs(outer) * 2 + 0.1 * outer, 0.1)
            disease = np.maximum(disease, 0.9 * pool * soft(halves[which] + 0.02, 0.06))
    if fluid == "absent":
        disease = disease * lungs
    elif rng.random() < 0.2:
        opacity = "hazy"
        disease = np.maximum(disease, 0.35 * lungs * soft(view.clouds(6), 1.0))
    attributes: Attributes = {"opacity": opacity, "sides": sides, "fluid level": fluid}
    return np.asarray(disease, dtype=np.float32), attributes


def _ribs(view: Frame) -> Array:
    """Paired bright arcs and two collar bones."""
    strokes = []
    t = np.linspace(0.0, 1.0, 10)
    bright = view.rng.uniform(0.35, 0.6)
    for side in (-1.0, 1.0):
        x = side * (0.1 + 0.78 * t)
        for rib in range(8):
            y = -0.75 + 0.19 * rib + 0.22 * t**2 - 0.08 * np.sin(t * 3.1)
            strokes.append((view.to_pixels(np.stack([x, y], 1)), bright, 0.026))
        x, y = side * (0.08 + 0.7 * t), -0.72 - 0.16 * t
        strokes.append((view.to_pixels(np.stack([x, y], 1)), bright + 0.2, 0.04))
    return view.ink(strokes, blur=1.4) * np.float32(0.22)


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
