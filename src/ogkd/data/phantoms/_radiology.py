"""Chest radiographs and breast ultrasound."""

from __future__ import annotations

import numpy as np

from ogkd.data.phantoms._draw import (
    Array,
    Attributes,
    Canvas,
    Drawing,
    Frame,
    mix,
    record,
    soft,
)

# Neighbouring classes share values on purpose: no single attribute decides.
_BREAST = record("us-breast")["looks"]


def us_breast(label: int, canvas: Canvas) -> Drawing:
    """0 normal tissue, 1 simple cyst, 2 benign solid mass, 3 malignant mass."""
    rng, view = canvas.rng, canvas.frame(turn=0.07, zoom=(0.9, 1.2), shift=0.08, bend=0.05)
    tissue = _tissue(view)
    attributes: Attributes = {}
    mask = view.empty()
    behind = view.empty()
    if label == 0:
        # A fat lobule or a shadowing ligament is normal, and looks a little like a lesion.
        attributes["finding"] = view.pick({"none": 0.55, "fat lobule": 0.3, "shadow": 0.15})
        if attributes["finding"] == "fat lobule":
            centre = (rng.uniform(-0.5, 0.5), rng.uniform(-0.3, 0.3))
            _, lobule = view.lesion(
                centre, rng.uniform(0.2, 0.35), shape="oval", margin="indistinct", angle=0
            )
            tissue = mix(tissue, 0.3, lobule * 0.7)
        elif attributes["finding"] == "shadow":
            behind -= 0.6 * _column(view.x, view.y, rng.uniform(-0.6, 0.6), -0.2, 0.12)
    else:
        kind = label - 1
        shape, margin = view.pick(_BREAST["shape"][kind]), view.pick(_BREAST["margin"][kind])
        echo, posterior = view.pick(_BREAST["echo"][kind]), view.pick(_BREAST["posterior"][kind])
        tall = rng.random() < _BREAST["tall"][kind]
        radius = float(np.clip(rng.lognormal(_BREAST["size"][kind], 0.28), 0.14, 0.5))
        centre = (rng.uniform(-0.4, 0.4), rng.uniform(-0.25, 0.25))
        angle = rng.normal(1.57 if tall else 0.0, 0.25)
        field, mask = view.lesion(centre, radius, shape=shape, margin=margin, angle=angle)
        inner = _BREAST["level"][echo] * (1.0 + (0.2 + 0.2 * kind) * 0.5 * view.clouds(9))
        tissue = mix(tissue, inner, mask)
        if margin == "smooth" and rng.random() < 0.6:
            tissue = tissue + 0.16 * soft(0.035 - np.abs(field), 0.04)  # a thin bright capsule
        strength = _BREAST["behind"][posterior]
        behind += strength * _column(
            view.x, view.y, centre[0], centre[1] + 0.4 * radius, radius * 0.75
        )
        foci = rng.random() < _BREAST["foci"][kind]
        if foci:
            count = int(rng.integers(3, 9))
            points = np.array(centre) + rng.normal(0.0, radius * 0.4, (count, 2))
            tissue += view.spots(points, np.full(count, 0.018), np.full(count, 0.9, np.float32))
        attributes |= {
            "shape": shape,
            "margin": margin,
            "echo": echo,
            "posterior": posterior,
            "orientation": "taller" if tall else "wider",
            "calcification": "present" if foci else "absent",
            "radius": radius,
        }
    # Speckle: the length of a random phasor, finer along the beam than across it.
    real = view.clouds(int(view.size * 0.36), rows=int(view.size * 0.62))
    imaginary = view.clouds(int(view.size * 0.36), rows=int(view.size * 0.62))
    speckle = np.sqrt(real * real + imaginary * imaginary)
    depth = (view.y + 1.0) * 0.5
    light = 1.0 + behind + rng.normal(0.0, 0.18) * (depth - 0.4) - 0.35 * depth * depth
    picture = np.clip(tissue, 0, 1) * (0.25 + 0.8 * speckle) * np.clip(light, 0.05, 2.0)
    picture = 1.25 * picture / (picture + np.float32(0.5))
    if rng.random() < 0.3:  # the dark sides of a curved probe's field
        picture *= soft(1.02 - np.abs(view.x) + 0.25 * depth - 0.2, 0.05)
    return view.finish(picture, gain=0.16, gamma=0.18, marker=0.3), attributes, mask


def _tissue(view: Frame) -> Array:
    """Skin, fat with septa, gland and muscle from the top down."""
    rng, y = view.rng, view.y
    wave = 0.08 * view.clouds(4)
    fat, muscle = rng.uniform(-0.75, -0.35), rng.uniform(0.35, 0.8)
    picture = 0.2 + 0.3 * view.ridges(7, rows=9)
    gland = 0.42 + 0.13 * view.clouds(6, rows=16) + 0.1 * view.ridges(5, rows=12)
    picture = mix(picture, gland * rng.uniform(0.7, 1.1), soft(y + wave - fat, 0.15))
    striped = 0.22 + 0.3 * view.ridges(3, rows=22)
    picture = mix(picture, striped, soft(y + wave - muscle, 0.08))
    return np.asarray(picture + 0.5 * soft(-0.9 - y, 0.06), dtype=np.float32)


def _column(x: Array, y: Array, centre: float, top: float, half: float) -> Array:
    """The strip below a structure that shadows or brightens what is behind it."""
    spread = half * (1.0 + 0.25 * np.clip(y - top, 0, None))
    return soft(spread - np.abs(x - np.float32(centre)), 0.14) * soft(
        y - np.float32(top) - 0.25, 0.6
    )


def chest(label: int, canvas: Canvas) -> Drawing:
    """0 normal, 1 lobar pneumonia, 2 viral pneumonia, 3 pleural effusion, 4 enlarged heart."""
    return film((label,), canvas)


def film(labels: tuple[int, ...], canvas: Canvas) -> Drawing:
    """A chest that shows one or several of the labels of `chest`."""
    rng, view = (
        canvas.rng,
        canvas.frame(turn=0.05, zoom=(0.9, 1.12), shift=0.08, bend=0.025, mirror=False),
    )
    x, y = view.x, view.y
    lungs = view.empty()
    halves = []
    for side in (-1.0, 1.0):
        half = view.blob((side * 0.44, -0.02), 0.36, aspect=1.9, angle=1.57 + side * 0.1,
            waves=[(2, 0.04, 0.4)],
        )  # fmt: skip
        dome = np.float32(0.56) - y + 0.28 * (x - np.float32(side * 0.42)) ** 2
        half = np.minimum(half, dome)
        halves.append(half)
        lungs = np.maximum(lungs, soft(half, 0.06))
    air = rng.uniform(0.1, 0.22)
    body = 0.52 + 0.04 * view.clouds(4)
    body = body - 0.22 * soft(np.abs(x) - 0.95 + 0.2 * y, 0.1) - 0.2 * soft(-0.85 - y, 0.2)
    marks = 0.2 * view.ridges(11) ** 2 * np.exp(-((np.abs(x) - 0.2) ** 2) / 0.12)
    picture = mix(body, air + 0.03 * view.clouds(8) + marks, lungs)
    wide = float(rng.normal(0.47 if 4 in labels else 0.34, 0.035))
    heart = view.blob((0.1, 0.3), wide, aspect=1.15, angle=0.5)
    shadow = soft(heart, 0.12)
    picture = mix(picture, 0.7, 0.88 * shadow)
    picture = mix(picture, 0.72, 0.6 * soft(0.13 - np.abs(x - 0.01), 0.14))
    disease = view.empty()
    attributes: Attributes = {}
    for label in labels:
        more, seen = _lung_disease(label, view, lungs, halves)
        disease = np.maximum(disease, more)
        attributes |= seen
    mask = disease
    if 4 in labels:
        mask = soft(heart, 0.06) if labels == (4,) else np.maximum(disease, soft(heart, 0.06))
    picture = mix(picture, 0.72, disease)
    picture = picture + _ribs(view) * (0.25 + 0.75 * lungs) * (1.0 - 0.8 * shadow)
    attributes["heart"] = "large" if wide > 0.405 else "usual"
    attributes["heart width"] = wide
    picture = view.finish(picture, gain=0.15, noise=(0.01, 0.05), marker=0.5)
    return picture, attributes, mask


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
            ragged = patch + 0.07 * view.clouds(12)
            disease = np.maximum(disease, dense * soft(ragged, 0.16))
    elif label == 2:
        opacity = view.pick({"hazy": 0.85, "dense patch": 0.15})
        sides = view.pick({"both lungs": 0.82, "one lung": 0.18})
        haze = soft(view.clouds(7) + 0.35 + 0.5 * view.y, 1.2) * rng.uniform(0.4, 0.75)
        if opacity == "dense patch":
            haze = np.clip(haze * 1.35, 0, 0.95)
        if sides == "one lung":
            haze = haze * soft(halves[side], 0.06)
        disease = haze
    elif label == 3 or rng.random() < 0.05:
        fluid = "present"
        sides = view.pick({"one lung": 0.75, "both lungs": 0.25})
        for which in (0, 1) if sides == "both lungs" else (side,):
            level = rng.uniform(-0.1, 0.42) if label == 3 else rng.uniform(0.35, 0.48)
            outer = np.abs(view.x) - 0.45
            pool = soft(view.y - level + 0.5 * outer * np.abs(outer) * 2 + 0.1 * outer, 0.1)
            disease = np.maximum(disease, 0.9 * pool * soft(halves[which] + 0.02, 0.06))
    disease = disease * lungs if fluid == "absent" else disease
    if fluid == "present" and rng.random() < 0.2:
        opacity = "hazy"
        disease = np.maximum(disease, 0.35 * lungs * soft(view.clouds(6), 1.0))
    attributes: Attributes = {"opacity": opacity, "sides": sides, "fluid level": fluid}
    return np.asarray(disease, dtype=np.float32), attributes


def _ribs(view: Frame) -> Array:
    """Paired bright arcs and two collar bones."""
    rng, strokes = view.rng, []
    t = np.linspace(0.0, 1.0, 10)
    bright = rng.uniform(0.35, 0.6)
    for side in (-1.0, 1.0):
        for rib in range(8):
            top = -0.75 + 0.19 * rib
            x = side * (0.1 + 0.78 * t)
            y = top + 0.22 * t**2 - 0.08 * np.sin(t * 3.1)
            strokes.append((view.to_pixels(np.stack([x, y], 1)), 0.026, bright))
        x, y = side * (0.08 + 0.7 * t), -0.72 - 0.16 * t
        strokes.append((view.to_pixels(np.stack([x, y], 1)), 0.04, bright + 0.2))
    return view.lines(strokes, blur=1.4) * np.float32(0.22)
