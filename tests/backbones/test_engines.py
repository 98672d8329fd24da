"""Engines: what stays the same, what may differ and by how much, and that nothing mixes."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, linear

import tiny_backbones
from ogkd.backbones import _onnx_tower, _vit
from ogkd.backbones.base import Backbone
from ogkd.backbones.engines import ENGINES, ON_CPU, EngineBackbone, digest_with, with_engine
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.backbones.transformers_format import load_transformers
from ogkd.errors import BackboneError, ConfigError
from ogkd.images.decode import read_image
from ogkd.images.transforms import to_pixels
from tiny_backbones import SIZE, TEXTS, make_clip, make_dual, make_siglip

CPU = torch.device("cpu")
FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"
OTHERS = list(ON_CPU)


@pytest.fixture(scope="module", autouse=True)
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graphs take seconds to make: the tests of this file share them."""
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(autouse=True)
def use_it(one_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_onnx_tower, "cache_dir", lambda: one_cache)


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
    assert caught.value.argument == "engine"


@pytest.mark.parametrize("engine", OTHERS)
def test_an_engine_for_the_cpu_refuses_a_model_elsewhere(clip: Backbone, engine: str) -> None:
    elsewhere = copy.copy(clip)
    elsewhere.device = torch.device("cuda:1")
    with pytest.raises(ConfigError, match=r"cuda:1.*device cpu"):
        with_engine(elsewhere, engine)


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named_with_the_extra_to_install(
    clip: Backbone, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    load = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name == missing:
            raise ImportError(name)
        return load(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ConfigError, match=rf"needs the package {missing}, .*ogkd\[onnx\]"):
        with_engine(clip, "onnx")
    assert with_engine(clip, "torch") is clip


def test_a_tower_without_inner_blocks_is_refused(bert_backbone: Backbone) -> None:
    with pytest.raises(ConfigError, match="no inner blocks"):
        with_engine(bert_backbone, "onnx-int8")


def test_a_tower_that_cannot_be_converted_is_refused(
    clip: Backbone, monkeypatch: pytest.MonkeyPatch, one_cache: Path
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operator")

    other = copy.copy(clip)
    other.digest = "0" * 64
    before = set(one_cache.rglob("*"))
    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(ConfigError, match=r"no such operator.*Use the engine torch"):
        with_engine(other, "onnx").encode_images(some_pixels(1))
    assert {path for path in one_cache.rglob("*") if path.is_file()} <= before


def test_engines_take_each_others_place_and_do_not_pile_up(clip: Backbone) -> None:
    first = with_engine(clip, "onnx")
    second = with_engine(first, "onnx-int8")
    assert isinstance(second, EngineBackbone)
    assert second.base is clip
    assert with_engine(second, "torch") is clip


def test_every_engine_has_a_digest_of_its_own_that_does_not_change(clip: Backbone) -> None:
    made = [with_engine(clip, name) for name in ENGINES]
    assert len({engine.digest for engine in made}) == len(ENGINES)
    assert [engine.digest for engine in made] == [digest_with(clip.digest, e) for e in ENGINES]
    assert all(len(engine.digest) == 64 for engine in made)
    assert [engine.engine for engine in made] == list(ENGINES)


# What it computes


def test_onnx_computes_the_same_features_in_float32(clip: Backbone) -> None:
    pixels = some_pixels(3)
    own = with_engine(clip, "onnx")
    for patches in (True, False):
        want = clip.encode_images(pixels, patches=patches)
        got = own.encode_images(pixels, patches=patches)
        torch.testing.assert_close(got.globals, want.globals, rtol=0, atol=1e-5)
        if patches:
            torch.testing.assert_close(got.patches, want.patches, rtol=0, atol=1e-5)
        else:
            assert got.patches is None


@pytest.mark.parametrize("family", ["clip", "siglip", "dual"])
def test_8_bit_features_are_close_to_float32_but_not_the_same(
    deep: Callable[[str], Backbone], family: str
) -> None:
    backbone, pixels = deep(family), some_pixels(5)
    want = backbone.encode_images(pixels)
    got = with_engine(backbone, "onnx-int8").encode_images(pixels)
    assert want.patches is not None
    assert got.patches is not None
    assert got.patches.shape == want.patches.shape
    assert not torch.allclose(got.globals, want.globals, atol=1e-5)
    assert cosine_similarity(got.globals, want.globals).min() > 0.995
    assert cosine_similarity(got.patches, want.patches, dim=-1).min() > 0.99
    torch.testing.assert_close(got.globals.norm(dim=-1), torch.ones(5))
    torch.testing.assert_close(got.patches.norm(dim=-1), torch.ones(got.patches.shape[:2]))


def test_open_clip_models_are_served_too() -> None:
    backbone = load_open_clip(FIXTURES / "class_token_mlp", name="tiny", device=CPU)
    torch.manual_seed(0)
    tower = _vit.ImageTower(replace(backbone.model.image.spec, depth=4))
    backbone.model.image = tower.eval().requires_grad_(False)
    pixels = some_pixels(4, size=backbone.preprocessing.size)
    want = backbone.encode_images(pixels, patches=False).globals
    got = with_engine(backbone, "onnx-int8").encode_images(pixels, patches=False).globals
    assert not torch.equal(got, want)
    assert cosine_similarity(got, want).min() > 0.999


@pytest.mark.parametrize("engine", OTHERS)
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


def test_wrong_pixels_are_refused_and_no_images_have_no_features(clip: Backbone) -> None:
    own = with_engine(clip, "onnx")
    with pytest.raises(BackboneError, match=str(SIZE)):
        own.encode_images(some_pixels(2, size=SIZE + 8))
    got = own.encode_images(some_pixels(0))
    rows, columns = clip.patch_grid
    assert got.globals.shape == (0, clip.embed_dim)
    assert got.patches is not None
    assert got.patches.shape == (0, rows * columns, clip.embed_dim)


def test_only_inner_layers_that_do_not_narrow_have_8_bits(clip: Backbone) -> None:
    import onnx

    path = _onnx_tower.tower_graph(clip, "onnx-int8", patches=True)
    operations = [node.op_type for node in onnx.load(path).graph.node]
    # Two inner blocks: query, key, value, output, widening layer.
    assert operations.count("MatMulInteger") == 2 * 5


def test_a_graph_is_made_once_and_then_read(
    clip: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = with_engine(clip, "onnx").encode_images(some_pixels(1)).globals
    monkeypatch.setattr(_onnx_tower, "_export", None)  # would fail if it were called
    assert torch.equal(with_engine(clip, "onnx").encode_images(some_pixels(1)).globals, want)


# One layer


def test_a_wide_input_channel_does_not_drown_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 48)
    values = torch.randn(200, 64, generator=generator)
    values[:, 7] *= 60
    smooth = _onnx_tower._SmoothLinear(layer, values.abs().amax(dim=0))
    want = layer(values).detach()
    torch.testing.assert_close(smooth(values).detach(), want, rtol=1e-4, atol=1e-4)
    scaled, weight = values * smooth.shrink, smooth.inner.weight.detach()

    def in_8_bits(inputs: Tensor, weights: Tensor) -> Tensor:
        """One step size for all inputs, one per row of the weights."""
        step = float(inputs.abs().max()) / 127
        steps = weights.abs().amax(dim=1, keepdim=True) / 127
        return linear((inputs / step).round() * step, (weights / steps).round() * steps)

    plain = in_8_bits(values, layer.weight.detach()) + layer.bias.detach()
    got = in_8_bits(scaled, weight) + layer.bias.detach()
    assert (got - want).norm() < 0.5 * (plain - want).norm()
    assert (got - want).norm() < 0.02 * want.norm()


# What it leaves alone


def test_texts_are_the_bases_own(clip: Backbone) -> None:
    own = with_engine(clip, "onnx-int8")
    assert torch.equal(own.encode_texts(TEXTS), clip.encode_texts(TEXTS))
    assert own.tokenize(TEXTS).ids.tolist() == clip.tokenize(TEXTS).ids.tolist()
    for name in ("name", "preprocessing", "embed_dim", "context_length", "logit_scale", "device"):
        assert getattr(own, name) == getattr(clip, name)


@pytest.mark.parametrize("engine", OTHERS)
def test_the_base_stays_as_it_was(clip: Backbone, engine: str) -> None:
    before = clip.encode_images(some_pixels(2)).globals
    with_engine(clip, engine).encode_images(some_pixels(2))
    assert torch.equal(clip.encode_images(some_pixels(2)).globals, before)
    assert not any(parameter.requires_grad for parameter in clip.model.parameters())
    assert not any(module._forward_pre_hooks for module in clip.model.modules())


def test_float32_weights_are_shared_with_the_base(clip: Backbone) -> None:
    twin, layers = _onnx_tower._smoothed(clip)
    theirs = {id(parameter) for parameter in clip.model.parameters()}
    changed = {id(layer.weight) for layer in layers}
    assert {id(parameter) for parameter in twin.model.parameters()} <= theirs | changed
    assert len(changed) == 2 * 5


# Real images


@pytest.mark.shared
@pytest.mark.parametrize(("engine", "least"), [("onnx", 0.999999), ("onnx-int8", 0.998)])
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
    spec = backbone.model.image.spec
    one = 4 * (spec.grid**2 + 1) * spec.width * spec.mlp_ratio
    monkeypatch.setattr(_vit, "_CACHE", 2 * one)
    assert backbone.model.image._at_once() == 2
    parts = backbone.encode_images(pixels, patches=patches)
    torch.testing.assert_close(parts.globals, whole.globals, rtol=0, atol=1e-6)
    if patches:
        torch.testing.assert_close(parts.patches, whole.patches, rtol=0, atol=1e-6)
