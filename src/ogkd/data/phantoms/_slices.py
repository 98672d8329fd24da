"""Cross-sections: kidney CT in a soft-tissue window and brain MRI."""

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

_KIDNEY, _BRAIN = record("ct-kidney")["looks"], record("mri-brain")["looks"]


def ct_kidney(label: int, canvas: Canvas) -> Drawing:
    """0 normal kidney, 1 renal cyst, 2 kidney stone, 3 renal tumor."""
    rng, view = canvas.rng, canvas.frame(turn=0.12, zoom=(1.1, 1.35), shift=0.08, bend=0.03)
    enhanced = view.pick({"bright": 0.6, "grey": 0.4})
    cortex = rng.uniform(0.68, 0.85) if enhanced == "bright" else rng.uniform(0.5, 0.6)
    picture = _abdomen(view)
    waves = [(2, 0.05, rng.uniform(0, 6.3)), (3, 0.03, rng.uniform(0, 6.3))]
    tilt = rng.normal(1.3, 0.2)
    organ = view.blob((0.0, 0.0), rng.uniform(0.4, 0.48), aspect=1.35, angle=tilt, waves=waves)
    notch = view.blob((-0.5, 0.05), 0.24, aspect=1.2)
    body = soft(np.minimum(organ, -notch + 0.02), 0.05)
    kidney = cortex + 0.03 * view.clouds(10)
    pyramids = soft(organ - 0.13, 0.06) * soft(view.clouds(8) - 0.1, 0.6)
    kidney = kidney - (0.18 if enhanced == "bright" else 0.05) * pyramids
    sinus = soft(view.blob((-0.14, 0.02), rng.uniform(0.13, 0.2), aspect=1.5, angle=tilt), 0.1)
    kidney = mix(kidney, 0.27 + 0.06 * view.clouds(14), sinus * 0.85)
    picture = mix(picture, kidney, body)
    attributes: Attributes = {"contrast": enhanced}
    mask = view.empty()
    if label == 2:
        mask = _stones(view, attributes)
        picture = mix(picture, rng.uniform(0.92, 1.0), np.clip(mask * 1.4, 0, 1))
    elif label in (1, 3):
        picture, mask = _mass(label == 1, view, picture, cortex, attributes)
    else:
        attributes["finding"] = view.pick({"none": 0.7, "tiny cyst": 0.2, "vessel": 0.1})
        if attributes["finding"] != "none":
            # Too small to matter, yet it looks a little like its neighbours' lesions.
            angle, level = rng.uniform(0, 6.3), 0.35
            if attributes["finding"] == "vessel":
                level = 0.9
            point = (0.28 * np.cos(angle), 0.3 * np.sin(angle))
            picture = mix(picture, level, soft(view.blob(point, rng.uniform(0.03, 0.06)), 0.04))
    return view.finish(picture, noise=(0.015, 0.06), marker=0.2), attributes, mask


def _abdomen(view: Frame) -> Array:
    """Fat, muscle, a vertebra, and a neighbouring organ or bowel with gas."""
    rng = view.rng
    picture = 0.2 + 0.03 * view.clouds(12)
    muscle = soft(view.y - 0.45 + 0.25 * view.x * view.x + 0.03 * view.clouds(6), 0.05)
    picture = mix(picture, 0.47 + 0.04 * view.clouds(18, rows=9), muscle)
    bone = view.blob((-0.95, 0.35), 0.34, aspect=1.15, waves=[(3, 0.08, 0.5)])
    picture = mix(picture, 0.72 + 0.12 * view.clouds(22), soft(bone, 0.05))
    picture = np.maximum(picture, 0.98 * soft(0.03 - np.abs(bone), 0.04))
    centre = (rng.uniform(0.1, 0.6), rng.uniform(-1.15, -0.85))
    organ = soft(view.blob(centre, rng.uniform(0.4, 0.6), aspect=1.5), 0.05)
    picture = mix(picture, rng.uniform(0.5, 0.62) + 0.02 * view.clouds(16), organ)
    loop = view.blob((rng.uniform(-0.8, -0.4), rng.uniform(-0.9, -0.6)), rng.uniform(0.15, 0.26))
    picture = mix(picture, 0.52, soft(loop, 0.05))
    if rng.random() < 0.5:
        picture = mix(picture, 0.02, soft(loop - 0.07, 0.04))
    skin = view.blob((0.0, -0.3), 1.5, aspect=1.05)
    return mix(np.zeros_like(picture), picture, soft(skin, 0.04))


def _stones(view: Frame, attributes: Attributes) -> Array:
    rng = view.rng
    count = int(rng.choice([1, 1, 1, 2, 3]))
    points = np.array([-0.1, 0.02]) + rng.normal(0.0, 0.13, (count, 2))
    radii = rng.uniform(0.035, 0.08, count)
    attributes |= {
        "count": "single" if count == 1 else "several",
        "density": "very bright",
        "site in kidney": "sinus",
        "radius": float(radii.max()),
    }
    return np.clip(view.spots(points, radii, np.full(count, 1.6, np.float32)), 0, 1)


def _mass(
    cyst: bool, view: Frame, picture: Array, cortex: float, attributes: Attributes
) -> tuple[Array, Array]:
    rng = view.rng
    look = _KIDNEY["cyst" if cyst else "tumor"]
    shape, margin, inside = (view.pick(look[name]) for name in ("shape", "margin", "texture"))
    radius = float(np.clip(rng.lognormal(-1.45 if cyst else -1.2, 0.25), 0.15, 0.42))
    angle = rng.uniform(-1.9, 1.9)
    reach = 0.36 + rng.uniform(-0.15, 0.6) * radius
    centre = (reach * np.cos(angle), 1.2 * reach * np.sin(angle))
    field, mask = view.lesion(centre, radius, shape=shape, margin=margin)
    level = rng.normal(0.32, 0.02) if cyst else cortex - rng.uniform(0.02, 0.14)
    inner = level + 0.012 * view.clouds(10)
    if inside == "heterogeneous":
        inner = inner + 0.14 * view.clouds(11)
    elif inside == "necrotic":
        inner = inner - 0.28 * soft(field - radius * 0.45, 0.12)
    elif inside == "septated":
        inner = inner + 0.2 * view.ridges(6) ** 3
    attributes |= {
        "shape": shape,
        "margin": margin,
        "texture": inside,
        "density": "dark" if cyst else "grey",
        "radius": radius,
    }
    return mix(picture, inner, mask), mask


_KINDS = ("none", "glioma", "meningioma", "pituitary")


def mri_brain(label: int, canvas: Canvas) -> Drawing:
    """0 no tumor, 1 glioma, 2 meningioma, 3 pituitary tumor."""
    rng, view = canvas.rng, canvas.frame(turn=0.12, zoom=(0.9, 1.12), shift=0.07, bend=0.014)
    weighting = view.pick({"t1": 0.65, "t2": 0.35})
    aspect = rng.uniform(0.76, 0.88)
    head = view.blob((0.0, 0.0), 0.92, aspect=aspect, waves=[(2, 0.02, rng.uniform(0, 6.3))])
    fluid, white = (0.12, 0.48) if weighting == "t1" else (0.85, 0.36)
    folds = view.ridges(15) ** 2 * soft(0.42 - head, 0.3)
    brain = white + 0.05 * view.clouds(7) + (fluid - white) * 0.45 * folds
    brain = mix(brain, fluid, 0.6 * soft(0.018 - np.abs(view.x), 0.03) * soft(-view.y + 0.9, 0.1))
    wide = rng.uniform(0.09, 0.16)
    for side in (-1.0, 1.0):
        horn = view.blob((side * 0.13, -0.12), wide, aspect=0.5, angle=side * 0.35)
        tail = view.blob((side * 0.16, 0.2), wide * 0.8, aspect=0.5, angle=-side * 0.4)
        brain = mix(brain, fluid, soft(np.maximum(horn, tail), 0.05))
    attributes: Attributes = {"weighting": weighting}
    mask = view.empty()
    if label:
        brain, mask = _tumor(_KINDS[label], view, brain, fluid, aspect, attributes)
    else:
        attributes["finding"] = "none"
    picture = mix(np.zeros_like(brain), brain, soft(head - 0.12, 0.04))
    scalp = soft(0.035 - np.abs(head - 0.035), 0.03)
    picture = np.maximum(picture, scalp * rng.uniform(0.55, 0.95))
    bias = 1.0 + 0.1 * view.clouds(2)
    return view.finish(picture * bias, noise=(0.01, 0.05), marker=0.15), attributes, mask


def _tumor(
    kind: str, view: Frame, brain: Array, fluid: float, aspect: float, attributes: Attributes
) -> tuple[Array, Array]:
    rng = view.rng
    look = _BRAIN[kind]
    shape, margin, inside = (view.pick(look[name]) for name in ("shape", "margin", "texture"))
    radius = float(np.clip(rng.lognormal(np.log(look["radius"]), 0.3), 0.07, 0.42))
    angle = rng.uniform(0, 6.28)
    # Depth of the centre below the brain's surface: meningiomas sit on it, gliomas mostly not.
    depth = rng.beta(2.2, 2.0) if kind == "glioma" else rng.beta(1.3, 7.0)
    reach = (0.76 - 0.3 * radius) * (1.0 - 0.75 * depth)
    centre = (aspect * reach * np.cos(angle), reach * np.sin(angle))
    if kind == "pituitary":
        centre = (rng.normal(0.0, 0.06), rng.normal(-0.02, 0.1))
    field, mask = view.lesion(centre, radius, shape=shape, margin=margin)
    edema = rng.random() < look["edema"]
    if edema:
        halo = soft(field + radius * rng.uniform(0.3, 0.9), 0.25)
        brain = mix(brain, 0.3 if fluid < 0.5 else 0.7, 0.6 * halo)
    bright = rng.random() < look["bright"]
    # Never as grey as the brain around it: such a tumor could not be seen.
    level = rng.uniform(0.68, 0.95) if bright else rng.uniform(0.1, 0.26)
    inner = level + 0.02 * view.clouds(9)
    if inside == "ring":
        inner = inner - (level - 0.15) * soft(field - radius * 0.35, 0.08)
    elif inside == "heterogeneous":
        inner = inner + 0.16 * view.clouds(13)
    where = "midline" if kind == "pituitary" else ("deep" if depth > 0.35 else "surface")
    attributes |= {
        "shape": shape,
        "margin": margin,
        "texture": inside,
        "density": "bright" if bright else "dark",
        "depth": where,
        "edema": "present" if edema else "absent",
        "radius": radius,
    }
    return mix(brain, inner, mask), mask
