"""Projection radiographs: a knee joint graded 0 to 4, and a frontal chest."""

from __future__ import annotations

import numpy as np

from ogkd.datasets.phantoms._draw import Array, Attributes, Canvas, Drawing, Frame, mix, soft

# Means per grade 0-4; the spreads make neighbouring grades overlap.
_GAP = (0.135, 0.12, 0.098, 0.062, 0.022)
_SPUR = (0.05, 0.22, 0.42, 0.62, 0.85)
_SCLEROSIS = (0.05, 0.12, 0.25, 0.5, 0.8)


def _level(value: float, steps: tuple[float, ...], names: tuple[str, ...]) -> str:
    return names[int(np.searchsorted(steps, value))]


def knee(label: int, canvas: Canvas) -> Drawing:
    """Grades 0 to 4: the joint space closes, spurs grow and the bone ends turn white."""
    rng, view = canvas.rng, canvas.frame(turn=0.06, zoom=(0.85, 1.15), shift=0.1, bend=0.02)
    gap = float(np.clip(rng.normal(_GAP[label], 0.02), 0.0, 0.2))
    spur = float(np.clip(rng.normal(_SPUR[label], 0.13), 0.0, 1.0))
    white = float(np.clip(rng.normal(_SCLEROSIS[label], 0.14), 0.0, 1.0))
    worse = rng.choice([-1.0, 1.0])  # wear is uneven: one compartment closes first
    uneven = rng.uniform(0.0, 0.05) * min(label, 3) / 3
    x, y = view.x, view.y
    wave = 0.012 * view.clouds(12)
    ax = np.abs(x)
    # Femur: two rounded condyles with a notch; tibia: a plateau with two spines.
    arc = 0.07 * np.clip(np.abs(ax - 0.3) / 0.3, 0, 1.5) ** 2
    joint = 0.5 * (np.float32(gap) - np.float32(uneven) * x * np.float32(worse))
    lower = -joint - arc + wave
    lower = np.where(ax < 0.13, lower - 0.14 * (1 - (ax / 0.13) ** 2), lower)
    spines = 0.06 * np.exp(-(((ax - 0.07) / 0.035) ** 2))
    upper = joint - spines + 0.02 * (ax / 0.5) + wave
    flare = 0.34 + 0.24 * np.exp(-(((y + 0.1) / 0.45) ** 2))
    tibia_half = 0.32 + 0.26 * np.exp(-((np.clip(y - 0.05, 0, None) / 0.38) ** 2))
    femur = np.minimum(lower - y, flare - ax).astype(np.float32)
    tibia = np.minimum(y - upper, tibia_half - ax).astype(np.float32)
    bone = np.maximum(soft(femur, 0.03), soft(tibia, 0.03))
    mask = view.empty()
    for side in (-1.0, 1.0):
        for edge, base in ((-0.06 - gap / 2, 0.57), (0.06 + gap / 2, 0.58)):
            reach = 0.1 * spur * rng.uniform(0.4, 1.2)
            tip = soft(
                view.blob((side * (base + reach * 0.4), edge), 0.025 + reach, aspect=1.6), 0.03
            )
            bone = np.maximum(bone, tip * min(1.0, 2.5 * spur))
            mask = np.maximum(mask, tip * min(1.0, 2.0 * spur))
    trabecula = 0.5 + 0.1 * view.ridges(26, rows=18) + 0.05 * view.clouds(7)
    rim = np.exp(-((np.maximum(femur, tibia) / 0.035) ** 2)) * bone
    picture = 0.22 + 0.05 * view.clouds(5) - 0.12 * soft(ax - 0.75, 0.15)
    picture = mix(picture, trabecula, bone)
    picture += 0.18 * rim
    near = np.exp(-((np.clip(lower - y, 0, None) / 0.09) ** 2)) * soft(femur, 0.03)
    near = np.maximum(
        near, np.exp(-((np.clip(y - upper, 0, None) / 0.09) ** 2)) * soft(tibia, 0.03)
    )
    picture += (0.06 + 0.26 * white) * near
    fibula = np.minimum(y - 0.3, 0.1 - np.abs(x - 0.55)).astype(np.float32)
    picture = mix(picture, 0.55, 0.6 * soft(fibula, 0.04))
    mask = np.maximum(mask, soft(np.minimum(y - lower, upper - y).astype(np.float32) + 0.02, 0.03))
    attributes: Attributes = {
        "joint space": _level(
            gap, (0.035, 0.08, 0.11), ("lost", "narrow", "slightly narrow", "wide")
        ),
        "spurs": _level(spur, (0.15, 0.35, 0.62), ("none", "tiny", "definite", "large")),
        "sclerosis": _level(white, (0.18, 0.42), ("none", "mild", "marked")),
        "gap": gap,
        "spur": spur,
        "white": white,
    }
    picture = view.finish(picture, gain=0.18, noise=(0.01, 0.05), marker=0.5)
    return picture, attributes, mask


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
            place = ((-0.44, 0.44)[which] + rng.normal(0, 0.08), rng.uniform(-0.4, 0.4))
            patch = view.blob(place, rng.uniform(0.17, 0.32), waves=[(3, 0.15, rng.uniform(0, 6))])
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
