"""Small supports of made-up features, and a text side without a text tower."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import normalize

from ogkd.backbones.base import ImageFeatures
from ogkd.features.views import FixedViews
from ogkd.methods import Head, Support, make_method

NAMES = ("cyst", "stone", "tumor", "normal tissue")


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


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


def make_text(classes: int = 4, *, d: int = 12, scale: float = 30.0) -> Any:
    """Text features near the centres of `make_support`; the bank has three prompts per class."""
    centres = unit(classes, d, seed=100)
    single = normalize(centres + unit(classes, d, seed=7), dim=-1)
    bank = [normalize(centres[c] + 0.9 * unit(3, d, seed=20 + c), dim=-1) for c in range(classes)]
    backbone = SimpleNamespace(logit_scale=scale)
    return SimpleNamespace(backbone=backbone, class_names=NAMES[:classes], single=single, bank=bank)


def fit_head(name: str, support: Support, text: Any = None, seed: int = 1, **settings: Any) -> Head:
    """The head of a method with these settings; the text side is that of the support's classes."""
    text = text or make_text(len(support.labels.unique()))
    return make_method(name, settings=settings).fit(support, text, seed=seed)
