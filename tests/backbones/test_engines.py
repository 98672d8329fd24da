"""Engines: close to float32, kept apart from it, refused where they fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ogkd.backbones import Backbone, _vit, engines, load_backbone
from ogkd.backbones.engines import (
    ENGINES,
    digest_with,
    half_problem,
    may_be_faster,
    with_engine,
    without_engine,
)
from ogkd.backbones.loading import load_builtin
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.backbones.transformers_format import load_transformers
from ogkd.errors import ConfigError
from ogkd.features.store import FeatureStore
from tiny_backbones import TEXTS, make_clip, make_siglip

CPU = torch.device("cpu")
FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"
FIXTURE = FIXTURES / "class_token_mlp"
FAMILIES = {"clip": make_clip, "siglip": make_siglip}
HALVES = ("bf16", "fp16")


@pytest.fixture
def _safe(monkeypatch):
    """The device computes in half precision, whatever this machine's can do."""
    monkeypatch.setattr(engines, "half_problem", lambda *_: "")


@pytest.fixture
def tiny() -> Backbone:
    return load_open_clip(FIXTURE, name="tiny", device=CPU)


def pixels_of(backbone: Backbone, count: int = 3) -> Tensor:
    size = backbone.preprocessing.size
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.usefixtures("_safe")
@pytest.mark.parametrize("family", ["open_clip", *FAMILIES])
def test_features_are_close_to_float32_and_texts_are_equal(family, tmp_path):
    if family == "open_clip":
        base = load_open_clip(FIXTURE, name=family, device=CPU)
    else:
        FAMILIES[family](tmp_path)
        base = load_transformers(tmp_path, name=family, device=CPU)
    pixels, deep = pixels_of(base), bool(base.deep_parts)
    expected = base.encode_images(pixels, deep=deep)
    errors = {}
    for name in HALVES:
        half = with_engine(base, name)
        features = half.encode_images(pixels, deep=deep)
        for part, reference in (
            (features.globals, expected.globals),
            (features.patches, expected.patches),
        ):
            assert part.dtype == torch.float32
            assert cosine_similarity(part, reference, dim=-1).min() > 0.999
            torch.testing.assert_close(part.norm(dim=-1), torch.ones(part.shape[:-1]))
        if deep:
            assert features.deep.dtype == torch.float32
            torch.testing.assert_close(features.deep, expected.deep, rtol=0, atol=0.05)
        errors[name] = float((features.globals - expected.globals).abs().max())
        assert torch.equal(half.encode_texts(TEXTS), base.encode_texts(TEXTS))
    assert 0 < errors["fp16"] < errors["bf16"]
    assert torch.equal(base.encode_images(pixels).globals, expected.globals)  # the base is the same


@pytest.mark.usefixtures("_safe")
def test_each_engine_has_its_own_digest_and_store_and_replaces_the_one_before(tiny):
    made = {name: with_engine(tiny, name) for name in ENGINES}
    assert made["torch"] is tiny
    assert len({FeatureStore(backbone).folder for backbone in made.values()}) == len(ENGINES)
    for name, backbone in made.items():
        assert (backbone.engine, backbone.digest) == (name, digest_with(tiny.digest, name))
        assert without_engine(backbone) is tiny
        assert with_engine(backbone, "fp16").digest == made["fp16"].digest


@pytest.mark.usefixtures("_safe")
def test_an_engine_keeps_the_domain_of_its_backbone():
    builtin = load_builtin(device=CPU)
    pixels = pixels_of(builtin)
    half = with_engine(builtin, "bf16")
    outside = half.out_of_domain(half.encode_images(pixels).globals.numpy())
    assert outside is not None
    assert outside.all()  # noise is not a phantom


class _Plugin(Backbone):
    """Of another package: its computation is its own."""

    name = "plugin"
    encode_images = pieces = pack = embed = encode_text = None


@pytest.mark.parametrize(("engine", "plugin"), [("tensorrt", False), ("bf16", True)])
def test_an_engine_that_does_not_apply_is_refused(engine, plugin, tiny):
    with pytest.raises(ConfigError) as caught:
        with_engine(_Plugin() if plugin else tiny, engine)
    assert caught.value.argument == "engine"


@pytest.mark.parametrize("engine", HALVES)
def test_a_device_that_fails_the_trial_is_refused(engine, monkeypatch):
    half_problem.cache_clear()
    monkeypatch.setattr(engines, "_PROBE", "raise SystemExit('no such instruction')")
    with pytest.raises(ConfigError, match="no such instruction") as caught:
        load_backbone(str(FIXTURE), device="cpu", engine=engine)
    assert caught.value.argument == "engine"
    half_problem.cache_clear()


@pytest.mark.parametrize("case", ["class_token_mlp", "mean_linear", "norm_after_mean", "patch_14"])
@pytest.mark.parametrize("patches", [True, False])
def test_a_batch_in_parts_equals_the_batch_at_once(case, patches, monkeypatch):
    backbone = load_open_clip(FIXTURES / case, name=case, device=CPU)
    pixels = pixels_of(backbone, 5)
    whole = backbone.encode_images(pixels)
    spec = backbone.model.image.spec
    of_one_image = 4 * (spec.grid**2 + 1) * spec.inner
    monkeypatch.setattr(_vit, "_CACHE", 2 * of_one_image)
    assert backbone.model.image._at_once() == 2
    parts = backbone.encode_images(pixels, patches=patches)
    torch.testing.assert_close(parts.globals, whole.globals, rtol=0, atol=1e-6)
    if patches:
        torch.testing.assert_close(parts.patches, whole.patches, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("cosine", "speed", "expected"),
    [(0.9999, 1.5, "bf16"), (0.9999, 1.2, "torch"), (0.99, 3.0, "torch")],
)
def test_auto_takes_half_precision_where_it_is_right_and_faster_and_remembers_it(
    cosine, speed, expected, tiny, notes, monkeypatch
):
    monkeypatch.setattr(engines, "half_problem", lambda *_: "")
    monkeypatch.setattr(engines, "_trial", lambda *_: (cosine, speed))
    assert with_engine(tiny, "auto").engine == expected
    assert len(notes) == 2
    assert may_be_faster(tiny) is (expected == "bf16")
    monkeypatch.setattr(engines, "_trial", None)  # not tried again
    assert with_engine(tiny, "auto").engine == expected
    assert len(notes) == 2


def test_auto_is_float32_where_half_precision_fails_or_is_unknown(tiny, monkeypatch):
    monkeypatch.setattr(engines, "half_problem", lambda *_: "killed by signal 4")
    assert with_engine(tiny, "auto") is tiny
    plugin = _Plugin()
    assert with_engine(plugin, "auto") is plugin
    assert not may_be_faster(plugin)


@pytest.mark.usefixtures("_safe")
def test_a_trial_compares_features_and_times(tiny):
    cosine, speed = engines._trial(tiny, with_engine(tiny, "bf16"))
    assert 0.99 < cosine <= 1.001
    assert speed > 0


@pytest.mark.parametrize("faster", [True, False])
def test_a_long_encoding_mentions_the_faster_engine(tiny, notes, monkeypatch, faster):
    monkeypatch.setattr("ogkd.features.store.may_be_faster", lambda _: faster)
    FeatureStore(tiny)._note_duration(119)
    assert not notes
    FeatureStore(tiny)._note_duration(200)
    assert [("3 minutes" in note and "engine 'auto'" in note) for note in notes] == [True] * faster
