from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ogkd.backbones import load_backbone
from ogkd.backbones._vit import ImageTower, VisionSpec
from ogkd.backbones.token_parts import split_feature


def split_token(made, pixels):
    return split_feature(SimpleNamespace(model=SimpleNamespace(image=made), engine="torch"), pixels)


def tower(*, layer_scale=False, late_norm=False, proj="linear", seed=0):
    """A small random tower whose norms, biases and scales all do something."""
    spec = VisionSpec(
        width=24,
        depth=3,
        heads=4,
        mlp_ratio=2,
        patch=8,
        image_size=32,
        grid=4,
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
def test_the_parts_sum_to_the_feature(layer_scale, late_norm, proj):
    made = tower(layer_scale=layer_scale, late_norm=late_norm, proj=proj)
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    parts = split_token(made, pixels)
    assert parts.patches.shape == (3, 3, 16, made.spec.embed_dim)
    with torch.no_grad():
        expected = torch.nn.functional.normalize(made(pixels, patches=False)[0], dim=-1)
    torch.testing.assert_close(parts.patches.sum((1, 2)) + parts.rest, expected)


def test_a_patch_that_cannot_be_read_has_no_part():
    """With values of zero for one patch in the last block, its part there vanishes."""
    made = tower()
    pixels = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    last = made.blocks[-1]
    inner = last.value.forward

    def silent(states):
        found = inner(states).clone()
        found[:, 1 + 5] = 0
        return found

    last.value.forward = silent
    parts = split_token(made, pixels)
    assert float(parts.patches[0, -1, 5].abs().max()) < 1e-12
    assert float(parts.patches[0, -1, 6].abs().max()) > 1e-6


def test_the_parts_of_the_built_in_model_sum_to_its_feature():
    backbone = load_backbone("builtin")
    size = backbone.preprocessing.size
    pixels = torch.randn(2, 3, size, size)
    parts = split_feature(backbone, pixels)
    expected = backbone.encode_images(pixels, patches=False).globals
    torch.testing.assert_close(parts.patches.sum((1, 2)) + parts.rest, expected, atol=2e-5, rtol=0)


def test_what_is_not_linear_is_not_split():
    pixels = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    assert split_token(tower(proj="mlp"), pixels) is None
    assert split_token(torch.nn.Identity(), pixels) is None
