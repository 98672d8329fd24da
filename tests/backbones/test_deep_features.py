"""Deeper features against the hidden states of reference models, and through the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_transformers_clip import FAMILIES, load

from ogkd.backbones._layers import deep_blocks
from ogkd.features import FeatureStore
from tiny_backbones import SIZE
from tiny_data import write_image


def some_pixels(count: int, size: int = SIZE) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def expected(states: list[torch.Tensor], *, class_token: bool) -> torch.Tensor:
    """What the documentation says, from the states after the chosen blocks, image by image."""
    rows = []
    for image in range(len(states[0])):
        parts = []
        for state in states:
            tokens = state[image]
            parts.append(tokens[0] if class_token else tokens.mean(0))
        for state in states[:-1]:
            patches = state[image][1:] if class_token else state[image]
            if class_token:
                parts.append(patches.mean(0))
            parts.append(patches.std(0, correction=0))
        rows.append(torch.cat([part / part.norm() for part in parts]))
    return torch.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_the_hidden_states_of_transformers_own_models(family: str, tmp_path: Path) -> None:
    model = FAMILIES[family](tmp_path)
    backbone, pixels = load(tmp_path), some_pixels(3)
    with torch.no_grad():
        output = model.vision_model(pixel_values=pixels, output_hidden_states=True)
    states = [output.hidden_states[n] for n in deep_blocks(len(output.hidden_states) - 1)]
    got = backbone.encode_images(pixels, deep=True)
    class_token = family != "siglip"
    torch.testing.assert_close(
        got.deep, expected(states, class_token=class_token), atol=1e-5, rtol=0
    )
    assert got.deep.shape[1] == sum(backbone.deep_parts)
    for part in got.deep.split(list(backbone.deep_parts), dim=1):
        torch.testing.assert_close(part.norm(dim=1), torch.ones(3))
    alone = backbone.encode_images(pixels)
    assert alone.deep is None
    torch.testing.assert_close(got.globals, alone.globals, atol=1e-6, rtol=0)


@pytest.mark.parametrize("patches", [True, False])
def test_those_of_a_timm_tower_are_its_blocks_outputs(bert_backbone: Any, patches: bool) -> None:
    tower, seen = bert_backbone.model.image, {}
    hooks = [
        block.register_forward_hook(lambda _m, _i, out, n=number: seen.__setitem__(n, out))
        for number, block in enumerate(tower.blocks, start=1)
    ]
    pixels = some_pixels(2, bert_backbone.preprocessing.size)
    try:
        got = bert_backbone.encode_images(pixels, patches=patches, deep=True)
    finally:
        for hook in hooks:
            hook.remove()
    states = [seen[number] for number in deep_blocks(len(tower.blocks))]
    torch.testing.assert_close(got.deep, expected(states, class_token=True), atol=1e-5, rtol=0)
    # The last block is still computed for the class token alone where nobody reads patches.
    rows, columns = bert_backbone.patch_grid
    assert states[-1].shape[1] == (1 + rows * columns if patches else 1)


def test_the_store_keeps_them_and_adds_them_to_what_it_has(
    bert_backbone: Any, tmp_path: Path
) -> None:
    images = [tmp_path / f"{number}.png" for number in range(3)]
    for number, image in enumerate(images):
        write_image(image, number)
    store = FeatureStore(bert_backbone, root=tmp_path / "store")
    before = store.get(images).globals
    first = store.get(images, deep=True)
    assert store.encoded == 6  # once without, once with
    assert torch.equal(first.globals, before)
    again = FeatureStore(bert_backbone, root=tmp_path / "store")
    features = again.get(images, deep=True)
    assert again.encoded == 0
    assert torch.equal(features.deep, first.deep)
    assert features.deep.shape == (3, 1, sum(bert_backbone.deep_parts))
    assert features.rows.shape == (3, 1, bert_backbone.embed_dim + sum(bert_backbone.deep_parts))
