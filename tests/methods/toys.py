"""Small supports, texts and batches of made-up features; a text side with or without a tower."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import normalize

from ogkd.backbones.base import ImageFeatures
from ogkd.core.batches import Batch
from ogkd.features.views import FixedViews
from ogkd.methods import METHODS, Head, PromptMethod, Support, TextSide, make_method

NAMES = ("cyst", "kidney stone", "tumor", "normal tissue")
WORDS = ("a", "the", "one", "seen")
LEARNERS = sorted(  # not those of plugins, which have no presets
    name
    for name, method in METHODS.items()
    if issubclass(method, PromptMethod) and method.__module__.startswith("ogkd.")
)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def text_of(backbone: Any, names: tuple[str, ...] = NAMES[:3], normal: Any = ()) -> TextSide:
    """Class texts through the text tower of a backbone."""
    prompts = tuple(tuple(f"{word} {name}" for word in WORDS) for name in names)
    return TextSide(backbone, tuple(names), prompts, normal)


def make_text(classes: int = 4, *, d: int = 12, scale: float = 30.0) -> Any:
    """Text features near the centres of `make_support`; the bank has three prompts per class."""
    centres = unit(classes, d, seed=100)
    single = normalize(centres + unit(classes, d, seed=7), dim=-1)
    bank = [normalize(centres[c] + 0.9 * unit(3, d, seed=20 + c), dim=-1) for c in range(classes)]
    backbone = SimpleNamespace(logit_scale=scale)
    return SimpleNamespace(backbone=backbone, class_names=NAMES[:classes], single=single, bank=bank)


def make_support(
    counts: tuple[int, ...] = (4, 4, 4, 4),
    *,
    d: int = 12,
    views: int = 1,
    seed: int = 0,
    spread: float = 0.8,
    validation: int = 0,
    grid: int = 0,
) -> Support:
    """Classes around random centres; `validation` more images of each, `grid` patches each."""
    labels = torch.cat([torch.full((n,), label) for label, n in enumerate(counts)])
    centres = unit(len(counts), d, seed=100)

    def draw(which: torch.Tensor, number: int, stream: int) -> torch.Tensor:
        noise = unit(len(which), number, d, seed=1000 * seed + stream)
        return normalize(centres[which].unsqueeze(1) + spread * noise, dim=-1)

    patches = unit(len(labels), views, grid, d, seed=seed).half() if grid else None
    held = None
    if validation:
        truth = torch.arange(len(counts)).repeat_interleave(validation)
        held = (draw(truth, 1, 2)[:, 0], truth)
    features = ImageFeatures(draw(labels, views, 1), patches)
    return Support(FixedViews(features), labels, held)


def pixel_support(counts: tuple[int, ...], backbone: Any, views: int = 1, seed: int = 0) -> Support:
    """Pixels of images that are brighter the higher their label, for methods that tune towers."""
    labels = torch.cat([torch.full((n,), label) for label, n in enumerate(counts)])
    size = backbone.preprocessing.size
    noise = torch.randn(
        len(labels), views, 3, size, size, generator=torch.Generator().manual_seed(seed)
    )
    return Support(FixedViews(ImageFeatures(noise + labels.view(-1, 1, 1, 1, 1))), labels)


def two_views(backbone: Any, seed: int = 0, views: int = 2) -> Support:
    """Two images of each of three classes, with patches."""
    return make_support((2, 2, 2), d=backbone.embed_dim, views=views, seed=seed, grid=4, spread=1.3)


def support_for(name: str, backbone: Any) -> Support:
    """Two images of each of three classes: features with patches, or pixels."""
    if METHODS[name].needs_pixels:
        return pixel_support((2, 2, 2), backbone)
    return two_views(backbone)


def fit_head(name: str, support: Support, text: Any = None, seed: int = 1, **settings: Any) -> Head:
    """The head of a method with these settings; the text side is that of the support's classes."""
    text = text or make_text(len(support.labels.unique()))
    return make_method(name, settings=settings).fit(support, text, seed=seed)


def quick(name: str, **settings: Any) -> Any:
    """A prompt learner that is done at once."""
    given = {"train.epochs": 3, "train.lr": 0.05, "train.batch_size": 3, **settings}
    return make_method(name, settings=given)


def fit(
    method: Any, backbone: Any, *supports: Support, text: Any = None, folder: Any = None
) -> list[Head]:
    """Heads of all supports, trained together."""
    seeds = range(1, len(supports) + 1)
    given = text or text_of(backbone)
    methods = [method] * len(supports)
    return method.fit_many(methods, supports, given, seeds=list(seeds), folder=folder)


def batch_of(runs: int = 2, images: int = 4, d: int = 8, patches: int = 0) -> Batch:
    return Batch(
        globals=unit(runs, images, d, seed=1),
        labels=torch.arange(runs * images).view(runs, images) % 3,
        patches=unit(runs, images, patches, d, seed=2) if patches else None,
    )
