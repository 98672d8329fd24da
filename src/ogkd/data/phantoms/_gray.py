"""Gray images: breast ultrasound, kidney CT, brain MRI and chest radiographs."""

from __future__ import annotations

import numpy as np

from ogkd.data.phantoms._draw import Array, Attributes, Canvas, Drawing, Frame, mix, record, soft

# Neighbouring classes share values on purpose: no single attribute decides.
_BREAST, _KIDNEY, _BRAIN = (
    record(name)["looks"] for name in ("us-breast", "ct-kidney", "mri-brain")
)


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


def ct_kidney(label: int, canvas: Canvas) -> Drawing:
    """0 normal kidney, 1 renal cyst, 2 kidney stone, 3 renal tumor; a soft-tissue window."""
    rng, view = canvas.rng, canvas.frame(turn=0.12, zoom=(1.1, 1.35), shift=0.08, bend=0.03)
    enhanced = view.pick({"bright": 0.6, "grey": 0.4})
    cortex = rng.uniform(0.68, 0.85) if enhanced == "bright" else rng.uniform(0.5, 0.6)
    image = _abdomen(view)
    waves = [(2, 0.05, rng.uniform(0, 6.3)), (3, 0.03, rng.uniform(0, 6.3))]
    tilt = rng.normal(1.3, 0.2)
    organ = view.blob((0.0, 0.0), rng.uniform(0.4, 0.48), aspect=1.35, angle=tilt, waves=waves)
    notch = view.blob((-0.5, 0.05), 0.24, aspect=1.2)
    kidney = cortex + 0.03 * view.clouds(10)
    pyramids = soft(organ - 0.13, 0.06) * soft(view.clouds(8) - 0.1, 0.6)
    kidney = kidney - (0.18 if enhanced == "bright" else 0.05) * pyramids
    sinus = soft(view.blob((-0.14, 0.02), rng.uniform(0.13, 0.2), aspect=1.5, angle=tilt), 0.1)
    kidney = mix(kidney, 0.27 + 0.06 * view.clouds(14), sinus * 0.85)
    image = mix(image, kidney, soft(np.minimum(organ, -notch + 0.02), 0.05))
    attributes: Attributes = {"contrast": enhanced}
    mask = view.empty()
    if label == 2:
        mask = _stones(view, attributes)
        image = mix(image, rng.uniform(0.92, 1.0), np.clip(mask * 1.4, 0, 1))
    elif label:
        image, mask = _kidney_mass(label == 1, view, image, cortex, attributes)
    else:
        finding = view.pick({"none": 0.7, "tiny cyst": 0.2, "vessel": 0.1})
        attributes["finding"] = finding
        if finding != "none":
            # Too small to matter, yet it looks a little like its neighbours' lesions.
            angle, level = rng.uniform(0, 6.3), 0.9 if finding == "vessel" else 0.35
            point = (0.28 * np.cos(angle), 0.3 * np.sin(angle))
            image = mix(image, level, soft(view.blob(point, rng.uniform(0.03, 0.06)), 0.04))
    return view.finish(image, noise=(0.015, 0.06), marker=0.2), attributes, mask


def _abdomen(view: Frame) -> Array:
    """Fat, muscle, a vertebra, and a neighbouring organ or bowel with gas."""
    rng = view.rng
    image = 0.2 + 0.03 * view.clouds(12)
    muscle = soft(view.y - 0.45 + 0.25 * view.x * view.x + 0.03 * view.clouds(6), 0.05)
    image = mix(image, 0.47 + 0.04 * view.clouds(18, rows=9), muscle)
    bone = view.blob((-0.95, 0.35), 0.34, aspect=1.15, waves=[(3, 0.08, 0.5)])
    image = mix(image, 0.72 + 0.12 * view.clouds(22), soft(bone, 0.05))
    image = np.maximum(image, 0.98 * soft(0.03 - np.abs(bone), 0.04))
    centre = (rng.uniform(0.1, 0.6), rng.uniform(-1.15, -0.85))
    organ = soft(view.blob(centre, rng.uniform(0.4, 0.6), aspect=1.5), 0.05)
    image = mix(image, rng.uniform(0.5, 0.62) + 0.02 * view.clouds(16), organ)
    loop = view.blob((rng.uniform(-0.8, -0.4), rng.uniform(-0.9, -0.6)), rng.uniform(0.15, 0.26))
    image = mix(image, 0.52, soft(loop, 0.05))
    if rng.random() < 0.5:
        image = mix(image, 0.02, soft(loop - 0.07, 0.04))
    skin = view.blob((0.0, -0.3), 1.5, aspect=1.05)
    return mix(np.zeros_like(image), image, soft(skin, 0.04))


def _stones(view: Frame, attributes: Attributes) -> Array:
    rng = view.rng
    count = int(rng.choice([1, 1, 1, 2, 3]))
    points = np.array([-0.1, 0.02]) + rng.normal(0.0, 0.13, (count, 2))
    radii = rng.uniform(0.035, 0.08, count)
    number = "single" if count == 1 else "several"
    attributes |= {"count": number, "density": "very bright", "site in kidney": "sinus"}
    return np.clip(view.spots(points, radii, np.full(count, 1.6, np.float32)), 0, 1)


def _kidney_mass(
    cyst: bool, view: Frame, image: Array, cortex: float, attributes: Attributes
) -> tuple[Array, Array]:
    rng, look = view.rng, _KIDNEY["cyst" if cyst else "tumor"]
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
    density = "dark" if cyst else "grey"
    attributes |= {"shape": shape, "margin": margin, "texture": inside, "density": density}
    return mix(image, inner, mask), mask


def mri_brain(label: int, canvas: Canvas) -> Drawing:
    """0 no tumor, 1 glioma, 2 meningioma, 3 pituitary tumor; an axial slice."""
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
        kind = ("none", "glioma", "meningioma", "pituitary")[label]
        brain, mask = _tumor(kind, view, brain, fluid, aspect, attributes)
    else:
        attributes["finding"] = "none"
    image = brain * soft(head - 0.12, 0.04)
    scalp = soft(0.035 - np.abs(head - 0.035), 0.03)
    image = np.maximum(image, scalp * rng.uniform(0.55, 0.95))
    bias = 1.0 + 0.1 * view.clouds(2)
    return view.finish(image * bias, noise=(0.01, 0.05), marker=0.15), attributes, mask


def _tumor(
    kind: str, view: Frame, brain: Array, fluid: float, aspect: float, attributes: Attributes
) -> tuple[Array, Array]:
    rng, look = view.rng, _BRAIN[kind]
    shape, margin, inside = (view.pick(look[name]) for name in ("shape", "margin", "texture"))
    radius = float(np.clip(rng.lognormal(np.log(look["radius"]), 0.3), 0.07, 0.42))
    angle = rng.uniform(0, 6.28)
    # Depth of the centre below the brain's surface: meningiomas sit on it, gliomas mostly not.
    depth = rng.beta(2.2, 2.0) if kind == "glioma" else rng.beta(1.3, 7.0)
    reach = (0.76 - 0.3 * radius) * (1.0 - 0.75 * depth)
    centre = (aspect * reach * np.cos(angle), reach * np.sin(angle))
    where = "deep" if depth > 0.35 else "surface"
    if kind == "pituitary":
        centre, where = (rng.normal(0.0, 0.06), rng.normal(-0.02, 0.1)), "midline"
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
    attributes |= {"shape": shape, "margin": margin, "texture": inside, "depth": where}
    attributes["density"] = "bright" if bright else "dark"
    attributes["edema"] = "present" if edema else "absent"
    return mix(brain, inner, mask), mask


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
