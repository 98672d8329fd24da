"""Small supports, texts and batches for the tests of prompt learners."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from ogkd.backbones.base import ImageFeatures
from ogkd.core.batches import Batch
from ogkd.features.views import FixedViews
from ogkd.methods import METHODS, PromptMethod, Support, TextSide, make_method

NAMES = ("cyst", "kidney stone", "tumor")
WORDS = ("a", "the", "one", "seen")
LEARNERS = sorted(  # not those of plugins, which have no presets
    name
    for name, method in METHODS.items()
    if issubclass(method, PromptMethod) and method.__module__.startswith("ogkd.")
)


def unit(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=dtype), dim=-1)


def text_of(backbone, names=NAMES, normal=()):
    prompts = tuple(tuple(f"{word} {name}" for word in WORDS) for name in names)
    return TextSide(backbone, tuple(names), prompts, normal)


def support_of(backbone, seed=0, labels=(0, 0, 1, 1, 2, 2), views=2):
    labels = torch.tensor(labels)
    globals_ = unit(len(labels), views, backbone.embed_dim, seed=seed)
    patches = unit(len(labels), views, 4, backbone.embed_dim, seed=seed + 50).half()
    return Support(FixedViews(ImageFeatures(globals_, patches)), labels)


def quick(name, **settings):
    return make_method(
        name, settings={"train.epochs": 3, "train.lr": 0.05, "train.batch_size": 3, **settings}
    )


def fit(method, backbone, *supports, text=None, seeds=None, folder=None):
    """Heads of all supports, trained together."""
    return method.fit_many(
        [method] * len(supports),
        supports,
        text or text_of(backbone),
        seeds=seeds or list(range(1, len(supports) + 1)),
        folder=folder,
    )


def batch_of(runs=2, images=4, d=8):
    return Batch(
        globals=unit(runs, images, d, seed=1),
        labels=torch.arange(runs * images).view(runs, images) % 3,
        patches=None,
    )
