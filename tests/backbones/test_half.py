"""Half precision for images: close to float32, kept apart from it, refused where it fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity

from ogkd.backbones import _half, engines, load_backbone
from ogkd.backbones._half import HalfProducts
from ogkd.backbones.engines import with_engine
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.backbones.transformers_format import load_transformers
from ogkd.errors import ConfigError
from ogkd.features.store import FeatureStore
from pretend_device import THERE, move, pretending
from tiny_backbones import TEXTS, make_clip, make_dual, make_siglip

CPU = torch.device("cpu")
FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"
FAMILIES = {"clip": make_clip, "siglip": make_siglip, "dual": make_dual}


@pytest.fixture
def _safe(monkeypatch):
    """The device computes in half precision, whatever this machine's can do."""
    monkeypatch.setattr(engines, "half_problem", lambda *_: "")


def pixels_of(backbone, count=3):
    size = backbone.preprocessing.size
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.usefixtures("_safe")
@pytest.mark.parametrize("family", ["open_clip", *FAMILIES])
def test_features_are_close_to_float32_and_texts_are_the_same(family, tmp_path):
    if family == "open_clip":
        base = load_open_clip(FIXTURE, name=family, device=CPU)
    else:
        FAMILIES[family](tmp_path)
        base = load_transformers(tmp_path, name=family, device=CPU)
    pixels, deep = pixels_of(base), bool(base.deep_parts)
    want = base.encode_images(pixels, deep=deep)
    errors = {}
    for name in ("bf16", "fp16"):
        half = with_engine(base, name)
        got = half.encode_images(pixels, deep=deep)
        assert {got.globals.dtype, got.patches.dtype} == {torch.float32}
        for mine, other in ((got.globals, want.globals), (got.patches, want.patches)):
            assert cosine_similarity(mine, other, dim=-1).min() > 0.999
        if deep:
            torch.testing.assert_close(got.deep, want.deep, rtol=0, atol=0.05)
        errors[name] = float((got.globals - want.globals).abs().max())
        assert errors[name] > 0
        assert torch.equal(half.encode_texts(TEXTS), base.encode_texts(TEXTS))
    assert errors["fp16"] < errors["bf16"]
    assert torch.equal(base.encode_images(pixels).globals, want.globals)  # the base is unchanged


@pytest.mark.usefixtures("_safe")
def test_products_are_in_half_precision_and_sums_are_not():
    base = load_open_clip(FIXTURE, name="tiny", device=CPU)
    seen = {"linear": set(), "layer_norm": set()}

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if getattr(func, "__name__", "") in seen:
                seen[func.__name__].add(args[0].dtype)
            return func(*args, **(kwargs or {}))

    with Watch():  # what the mode, which is further in, passes on
        with_engine(base, "bf16").encode_images(pixels_of(base))
    assert seen == {"linear": {torch.bfloat16}, "layer_norm": {torch.float32}}


@pytest.mark.usefixtures("_safe")
def test_on_the_device_weights_are_converted_once_and_nothing_is_copied_back():
    here, there = (load_open_clip(FIXTURE, name="tiny", device=CPU) for _ in range(2))
    move(there.model)
    there.device = THERE
    pixels = pixels_of(here)
    expected = with_engine(here, "bf16").encode_images(pixels)
    with pretending() as count:
        half = with_engine(there, "bf16")
        first = half.encode_images(pixels)
        copies = (count.there, count.back)
        half.encode_images(pixels)
        assert (count.there - copies[0], count.back - copies[1]) == (1, 0)  # the pixels
        torch.testing.assert_close(first.globals.cpu(), expected.globals, rtol=0, atol=1e-2)
    assert len(half._products._weights) > 0


@pytest.mark.usefixtures("_safe")
def test_features_of_another_precision_have_another_place_and_digest():
    base = load_open_clip(FIXTURE, name="tiny", device=CPU)
    made = [base, with_engine(base, "bf16"), with_engine(base, "fp16")]
    assert len({one.digest for one in made}) == 3
    assert len({FeatureStore(one).folder for one in made}) == 3
    assert with_engine(made[1], "torch") is base


def test_float32_is_the_default_and_half_precision_is_not_even_tried(monkeypatch):
    monkeypatch.setattr(engines, "half_problem", None)
    assert load_backbone(str(FIXTURE), device="cpu").engine == "torch"


@pytest.mark.parametrize("engine", ["bf16", "fp16"])
def test_a_device_that_fails_is_refused_with_the_reason(engine, monkeypatch):
    _half.half_problem.cache_clear()
    monkeypatch.setattr(_half, "_PROBE", "raise SystemExit('no such instruction')")
    with pytest.raises(ConfigError, match=rf"cannot compute in {engine} \(exit code 1 no such"):
        load_backbone(str(FIXTURE), device="cpu", engine=engine)
    _half.half_problem.cache_clear()


def test_wrong_numbers_are_a_problem_too(monkeypatch):
    """The probe compares with float32: a device that only runs is not enough."""
    asked = []

    def run(command, **_):
        asked.append(command[2:])
        return subprocess.CompletedProcess(command, 1, b"", b"Trace\nAssertionError: wrong numbers")

    _half.half_problem.cache_clear()
    monkeypatch.setattr(_half.subprocess, "run", run)
    assert "wrong numbers" in _half.half_problem("cuda:1", "bf16")
    assert asked[0][1:] == ["cuda:1", "bfloat16"]
    _half.half_problem.cache_clear()


def test_numbers_beyond_the_range_of_fp16_are_not_hidden():
    with HalfProducts(torch.float16):
        product = torch.nn.functional.linear(torch.full((1, 4), 300.0), torch.full((1, 4), 300.0))
    assert not product.isfinite().all()  # `encode_crops` refuses such features
