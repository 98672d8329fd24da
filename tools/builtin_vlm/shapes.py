"""A training-only family of plain test pictures: blobs, spots and stripes on any ground.

It teaches the words of shape, edge, brightness and place apart from any organ.
"""

from __future__ import annotations

import numpy as np

from ogkd.data.phantoms._draw import Array, Canvas, Drawing, Frame, mix, soft

CLASSES = 8  # nothing, cyst, tumor, stone, ulcer, bump, spots, stripes


def shapes(label: int, canvas: Canvas) -> Drawing:
    """One plain picture of a given kind; see CLASSES."""
    rng, view = canvas.rng, canvas.frame(turn=1.5, zoom=(0.8, 1.2), shift=0.05, bend=0.04)
    tint = view.pick({"grey": 0.5, "red": 0.25, "pink": 0.25})
    ground_kind = (
        "striped" if label == 7 else view.pick({"smooth": 0.4, "granular": 0.3, "folded": 0.3})
    )
    level = rng.uniform(0.35, 0.6)
    ground = level * _ground(ground_kind, view)
    attributes: dict[str, str | float] = {"tint": tint, "background": ground_kind}
    picture, mask = ground, np.zeros_like(ground)
    warm: Array | None = None
    if label in (1, 2, 3, 4, 5):
        shape, margin = _outline(label, view)
        radius = rng.uniform(0.05, 0.14) if label == 3 else rng.uniform(0.15, 0.5)
        place = (rng.uniform(-0.6, 0.6), rng.uniform(-0.6, 0.6))
        field, mask = view.lesion(place, radius, shape=shape, margin=margin)
        inside, density, inner = _interior(label, view, field, radius, level)
        attributes |= {"shape": shape, "margin": margin, "texture": inside, "density": density}
        if label == 3 and rng.random() < 0.4:
            count = int(rng.integers(1, 4))
            more = view.spots(
                rng.uniform(-0.6, 0.6, (count, 2)),
                rng.uniform(0.03, 0.07, count),
                np.ones(count, np.float32),
            )
            mask = np.clip(mask + more, 0, 1)
            attributes["count"] = "several"
        else:
            attributes["count"] = "single"
        if label == 5:
            attributes["relief"] = "raised"
            picture = picture * (1 - 0.4 * soft(field + 0.1, 0.2))
        if label == 4:
            attributes["relief"] = "sunken"
            warm = mask
        picture = mix(picture, inner, mask)
    elif label == 6:
        count = int(rng.integers(5, 25))
        mask = np.clip(
            view.spots(
                rng.uniform(-0.8, 0.8, (count, 2)),
                rng.uniform(0.02, 0.06, count),
                np.ones(count, np.float32),
            ),
            0,
            1,
        )
        bright = rng.random() < 0.5
        picture = mix(picture, 0.95 if bright else 0.05, mask)
        attributes |= {"count": "several", "density": "bright" if bright else "dark"}
    elif label == 0:
        attributes["finding"] = "none"
    colour = {"grey": (1.0, 1.0, 1.0), "red": (1.35, 0.45, 0.4), "pink": (1.4, 0.95, 0.9)}[tint]
    rgb = picture[..., None] * np.array(colour, np.float32)
    if warm is not None:
        rgb = mix(rgb, np.array([0.93, 0.88, 0.72], np.float32), 0.8 * warm[..., None])
        attributes["colour"] = "white"
    return view.finish(rgb, noise=(0.01, 0.06)), attributes, mask


def _outline(label: int, canvas: Canvas) -> tuple[str, str]:
    plain = {"round": 0.5, "oval": 0.35, "lobulated": 0.15}
    rough = {"round": 0.2, "oval": 0.25, "lobulated": 0.25, "irregular": 0.3}
    shape = canvas.pick(plain if label in (1, 3, 5) else rough)
    edges = (
        {"smooth": 0.8, "indistinct": 0.2}
        if label in (1, 3, 5)
        else {"smooth": 0.35, "indistinct": 0.4, "spiculated": 0.25}
    )
    return shape, canvas.pick(edges)


def _interior(
    label: int, canvas: Canvas, field: Array, radius: float, level: float
) -> tuple[str, str, Array]:
    rng = canvas.rng
    if label == 1:
        return "homogeneous", "dark", np.full_like(field, level * rng.uniform(0.1, 0.6))
    if label == 3:
        return "homogeneous", "very bright", np.full_like(field, 1.0)
    if label == 4:
        return "homogeneous", "bright", np.full_like(field, 0.8)
    if label == 5:
        dome = np.sqrt(np.clip(field / radius, 0, 1))
        return "homogeneous", "grey", np.asarray(level * 1.25 * (0.6 + 0.5 * dome), np.float32)
    density = canvas.pick({"bright": 0.5, "dark": 0.25, "grey": 0.25})
    base = {"bright": 0.9, "dark": 0.15, "grey": level * 1.25}[density]
    inside = canvas.pick({"homogeneous": 0.35, "heterogeneous": 0.4, "ring": 0.25})
    inner = np.full_like(field, base)
    if inside == "heterogeneous":
        inner = inner + 0.2 * canvas.clouds(12)
    if inside == "ring":
        density, inner = "bright", 0.9 - 0.75 * soft(field - radius * 0.35, 0.1)
    return inside, density, np.asarray(inner, np.float32)


def _ground(kind: str, view: Frame) -> Array:
    rng, x, y = view.rng, view.x, view.y
    base = 1.0 + 0.1 * view.clouds(5)
    if kind == "granular":
        base = base + 0.2 * view.clouds(40)
    elif kind == "folded":
        distance = np.sqrt((x - rng.normal(0, 0.4)) ** 2 + (y - rng.normal(0, 0.4)) ** 2)
        base = base + 0.2 * np.cos(distance * rng.uniform(9, 16))
    elif kind == "striped":
        base = base + 0.25 * np.sin((x + 0.1 * view.clouds(4)) * rng.uniform(15, 40))
    elif rng.random() < 0.4:
        base = base - 0.3 * view.ridges(8) ** 3
    return np.asarray(base, dtype=np.float32)
