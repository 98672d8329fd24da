from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import normalize

from ogkd.backbones import load_backbone
from ogkd.backbones._layers import deep_parts
from ogkd.backbones._vit import ImageTower, VisionSpec
from ogkd.backbones.base import ImageFeatures
from ogkd.backbones.token_parts import split_products


def split(made, pixels, W):
    spec = made.spec
    deeper = deep_parts(spec.depth, spec.width, class_token=True)
    fake = SimpleNamespace(image=made)
    facts = {"engine": "torch", "embed_dim": spec.embed_dim, "deep_parts": deeper}
    return split_products(SimpleNamespace(model=fake, **facts), pixels, W)


def tower(*, layer_scale=False, late_norm=False, proj="linear", seed=0):
    """A small random tower whose norms, biases and scales all do something."""
    spec = VisionSpec(
        width=24,
        depth=3,
        heads=4,
        inner=48,
        patch=8,
        image_size=32,
        layer_scale=layer_scale,
        qkv_bias=True,
        late_norm=late_norm,
        pool="token",
        proj=proj,
        proj_bias=True,
        embed_dim=24 if proj == "none" else 10,
    )
    torch.manual_seed(seed)
    made = ImageTower(spec).eval().double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


@pytest.mark.parametrize("layer_scale", [False, True])
@pytest.mark.parametrize("late_norm", [False, True])
@pytest.mark.parametrize("proj", ["linear", "none"])
@pytest.mark.parametrize("deep", [False, True])
def test_the_parts_sum_to_the_products_with_the_feature(layer_scale, late_norm, proj, deep):
    made = tower(layer_scale=layer_scale, late_norm=late_norm, proj=proj)
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        found = made(pixels, patches=False, deep=deep)
    rows = ImageFeatures(normalize(found[0], dim=-1), deep=found[2]).rows
    W = torch.randn(2, rows.shape[1], dtype=torch.float64)
    parts = split(made, pixels, W)
    assert parts.patches.shape == (3, 16, 2)
    torch.testing.assert_close(parts.patches.sum(1) + parts.rest, rows @ W.mT)
    assert float(parts.patches.abs().sum()) > 0.1


def test_the_parts_of_the_built_in_model_sum_to_its_feature():
    backbone = load_backbone("builtin")
    size = backbone.preprocessing.size
    pixels = torch.randn(2, 3, size, size)
    rows = backbone.encode_images(pixels, patches=False, deep=True).rows
    W = torch.randn(3, rows.shape[1])
    parts = split_products(backbone, pixels, W)
    torch.testing.assert_close(parts.patches.sum(1) + parts.rest, rows @ W.mT, atol=1e-4, rtol=0)


def test_what_is_not_linear_is_not_split():
    pixels = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    W = torch.zeros(1, 10, dtype=torch.float64)
    assert split(tower(proj="mlp"), pixels, W) is None
    other = SimpleNamespace(model=torch.nn.Identity(), engine="torch")
    assert split_products(other, pixels, W) is None
