"""Engines: what stays the same, what may differ and by how much, and that nothing mixes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, linear

import tiny_backbones
from ogkd.backbones import _vit
from ogkd.backbones.base import Backbone
from ogkd.backbones.engines import ENGINES, EngineBackbone, _Int8Linear, with_engine
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.backbones.transformers_clip import load_transformers
from ogkd.errors import BackboneError, ConfigError
from ogkd.images.decode import read_image
from ogkd.images.transforms import to_pixels
from tiny_backbones import SIZE, TEXTS, make_clip, make_dual, make_siglip

CPU = torch.device("cpu")
FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"
EIGHT_BIT = [name for name in ENGINES if name != "torch"]
KERNELS = set(torch.backends.quantized.supported_engines)

needs_kernels = pytest.mark.skipif(
    not KERNELS & {"onednn", "x86", "fbgemm"}, reason="torch has no 8-bit kernels on this machine"
)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Backbone]:
    """Tiny models of each family with four blocks, so that two of them are inner ones."""
    made: dict[str, Backbone] = {}
    makers: dict[str, Callable[[Path], Any]] = {
        "clip": make_clip,
        "siglip": make_siglip,
        "dual": make_dual,
    }

    def get(family: str) -> Backbone:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(tiny_backbones._VISION, "num_hidden_layers", 4)
                makers[family](folder)
            made[family] = load_transformers(folder, name=f"tiny-{family}", device=CPU)
        return made[family]

    return get


@pytest.fixture
def clip(deep: Callable[[str], Backbone]) -> Backbone:
    return deep("clip")


def some_pixels(count: int, size: int = SIZE) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


# Choosing one


def test_torch_is_the_backbone_itself(clip: Backbone) -> None:
    assert with_engine(clip, "torch") is clip


def test_an_unknown_engine_is_named_beside_the_known_ones(clip: Backbone) -> None:
    with pytest.raises(ConfigError, match="tensorrt") as caught:
        with_engine(clip, "tensorrt")
    assert all(name in str(caught.value) for name in ENGINES)


def test_an_engine_for_the_cpu_refuses_a_model_elsewhere(clip: Backbone) -> None:
    elsewhere = copy.copy(clip)
    elsewhere.device = torch.device("cuda:1")
    with pytest.raises(ConfigError, match=r"cuda:1.*device cpu"):
        with_engine(elsewhere, "int8")


def test_a_torch_without_8_bit_layers_is_said_so(
    clip: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch, "quantize_per_channel")
    with pytest.raises(ConfigError, match="Use the engine torch"):
        with_engine(clip, "int8")


@needs_kernels
def test_a_tower_without_inner_blocks_is_refused(bert_backbone: Backbone) -> None:
    with pytest.raises(ConfigError, match="no inner blocks"):
        with_engine(bert_backbone, "int8")


@needs_kernels
def test_engines_take_each_others_place_and_do_not_pile_up(clip: Backbone) -> None:
    first = with_engine(clip, "int8")
    second = with_engine(first, "int8-fast")
    assert isinstance(second, EngineBackbone)
    assert second.base is clip
    assert with_engine(second, "torch") is clip


@needs_kernels
def test_every_engine_has_a_digest_of_its_own_that_does_not_change(clip: Backbone) -> None:
    engines = [with_engine(clip, name) for name in ENGINES]
    assert len({engine.digest for engine in engines}) == len(ENGINES)
    assert with_engine(clip, "int8").digest == engines[list(ENGINES).index("int8")].digest
    assert all(len(engine.digest) == 64 for engine in engines)
    assert [getattr(engine, "engine", "torch") for engine in engines] == list(ENGINES)


# What it computes


@needs_kernels
@pytest.mark.parametrize("engine", EIGHT_BIT)
@pytest.mark.parametrize("family", ["clip", "siglip", "dual"])
def test_image_features_are_close_to_float32_but_not_the_same(
    deep: Callable[[str], Backbone], family: str, engine: str
) -> None:
    backbone, pixels = deep(family), some_pixels(5)
    want, got = backbone.encode_images(pixels), with_engine(backbone, engine).encode_images(pixels)
    assert want.patches is not None
    assert got.patches is not None
    assert got.patches.shape == want.patches.shape
    assert not torch.allclose(got.globals, want.globals, atol=1e-5)
    assert cosine_similarity(got.globals, want.globals).min() > 0.995
    assert cosine_similarity(got.patches, want.patches, dim=-1).min() > 0.99
    torch.testing.assert_close(got.globals.norm(dim=-1), torch.ones(5))
    torch.testing.assert_close(got.patches.norm(dim=-1), torch.ones(got.patches.shape[:2]))


@needs_kernels
def test_open_clip_models_are_served_too() -> None:
    backbone = load_open_clip(FIXTURES / "class_token_mlp", name="tiny", device=CPU)
    torch.manual_seed(0)
    tower = _vit.ImageTower(replace(backbone._model.image.spec, depth=4))
    backbone._model.image = tower.eval().requires_grad_(False)
    pixels = some_pixels(4, size=backbone.preprocessing.size)
    want = backbone.encode_images(pixels, patches=False).globals
    got = with_engine(backbone, "int8-fast").encode_images(pixels, patches=False).globals
    assert not torch.equal(got, want)
    assert cosine_similarity(got, want).min() > 0.999


@needs_kernels
@pytest.mark.parametrize("engine", EIGHT_BIT)
def test_an_images_features_do_not_depend_on_its_neighbours(clip: Backbone, engine: str) -> None:
    own, pixels = with_engine(clip, engine), some_pixels(3)
    pixels[1] *= 50  # a neighbour whose activations would set a common scale
    together = own.encode_images(pixels)
    for row in range(3):
        alone = own.encode_images(pixels[row : row + 1])
        assert torch.equal(alone.globals[0], together.globals[row])
        assert alone.patches is not None
        assert together.patches is not None
        assert torch.equal(alone.patches[0], together.patches[row])


@needs_kernels
def test_patches_are_left_out_on_request_and_wrong_pixels_refused(clip: Backbone) -> None:
    own = with_engine(clip, "int8")
    assert own.encode_images(some_pixels(2), patches=False).patches is None
    with pytest.raises(BackboneError, match=str(SIZE)):
        own.encode_images(some_pixels(2, size=SIZE + 8))


@needs_kernels
def test_the_fast_engine_takes_more_layers_than_the_other(clip: Backbone) -> None:
    def layers(engine: str) -> int:
        own = with_engine(clip, engine)
        assert isinstance(own, EngineBackbone)
        return sum(isinstance(layer, _Int8Linear) for layer in own._images.model.modules())

    assert layers("int8") == 2 * 5  # two inner blocks: query, key, value, output, widening layer
    assert layers("int8-fast") == 2 * 6


# What it leaves alone


@needs_kernels
def test_texts_are_the_bases_own(clip: Backbone) -> None:
    own = with_engine(clip, "int8")
    assert torch.equal(own.encode_texts(TEXTS), clip.encode_texts(TEXTS))
    assert own.tokenize(TEXTS).ids.tolist() == clip.tokenize(TEXTS).ids.tolist()
    for name in ("name", "preprocessing", "embed_dim", "context_length", "logit_scale", "device"):
        assert getattr(own, name) == getattr(clip, name)


@needs_kernels
def test_the_base_stays_as_it_was(clip: Backbone) -> None:
    before, kernel = clip.encode_images(some_pixels(2)).globals, torch.backends.quantized.engine
    with_engine(clip, "int8-fast").encode_images(some_pixels(2))
    assert torch.equal(clip.encode_images(some_pixels(2)).globals, before)
    assert torch.backends.quantized.engine == kernel
    assert not any(module._forward_pre_hooks for module in clip.model.modules())


@needs_kernels
def test_float32_weights_are_shared_with_the_base(clip: Backbone) -> None:
    own = with_engine(clip, "int8")
    assert isinstance(own, EngineBackbone)
    theirs = {id(parameter) for parameter in clip.model.parameters()}
    assert {id(parameter) for parameter in own._images.model.parameters()} <= theirs


# One layer


@needs_kernels
def test_a_wide_input_channel_does_not_drown_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 48)
    values = torch.randn(200, 64, generator=generator)
    values[:, 7] *= 60
    want = layer(values).detach()
    kernel = next(k for k in ("onednn", "x86", "fbgemm") if k in KERNELS)
    got = _Int8Linear(layer, values.abs().amax(dim=0), kernel)(values)
    # The plain way: one step size for all inputs, one per row of the weights, 8 bits each.
    step = float(values.abs().max()) / 127
    steps = layer.weight.abs().amax(dim=1, keepdim=True) / 127
    plain = linear((values / step).round() * step, (layer.weight / steps).round() * steps)
    plain = plain + layer.bias
    assert (got - want).norm() < 0.5 * (plain - want).norm()
    assert (got - want).norm() < 0.02 * want.norm()


# Real images


@needs_kernels
@pytest.mark.shared
@pytest.mark.parametrize(("engine", "least"), [("int8", 0.998), ("int8-fast", 0.996)])
def test_real_features_stay_close(shared: Path, engine: str, least: float) -> None:
    folder = shared / "backbones" / "dinov2s14-minilm-med"
    backbone = load_open_clip(folder, name="proxy", device=CPU)
    files = sorted(path for path in (shared / "data" / "BUSI" / "test").rglob("*.*"))[::27]
    pixels = to_pixels([read_image(file) for file in files], backbone.preprocessing)
    want = backbone.encode_images(pixels, patches=False).globals
    got = with_engine(backbone, engine).encode_images(pixels, patches=False).globals
    assert cosine_similarity(got, want).mean() > least


# The torch engine's own short cuts


@pytest.mark.parametrize("case", ["class_token_mlp", "mean_linear", "norm_after_mean", "patch_14"])
@pytest.mark.parametrize("patches", [True, False])
def test_a_batch_in_parts_equals_the_batch_at_once(
    case: str, patches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load_open_clip(FIXTURES / case, name=case, device=CPU)
    pixels = some_pixels(5, size=backbone.preprocessing.size)
    whole = backbone.encode_images(pixels)
    spec = backbone._model.image.spec
    one = 4 * (spec.grid**2 + 1) * spec.width * spec.mlp_ratio
    monkeypatch.setattr(_vit, "_CACHE", 2 * one)
    assert backbone._model.image._at_once() == 2
    parts = backbone.encode_images(pixels, patches=patches)
    torch.testing.assert_close(parts.globals, whole.globals, rtol=0, atol=1e-6)
    if patches:
        torch.testing.assert_close(parts.patches, whole.patches, rtol=0, atol=1e-6)
