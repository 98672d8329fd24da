"""transformers' own models are the oracle; and what a backbone of any family keeps to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.backbones.base import TextDropout, Tokens
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.backbones.transformers_format import load_transformers
from ogkd.errors import BackboneError
from tiny_backbones import CONTEXT, SIZE, TEXTS, make_clip, make_siglip

CPU = torch.device("cpu")
FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"
Maker = Callable[[Path], Any]
FAMILIES: dict[str, Maker] = {
    "clip": make_clip,
    "clip-legacy": lambda folder: make_clip(folder, legacy=True),
    "siglip": make_siglip,
}


def load(folder: Path) -> Any:
    return load_transformers(folder, name="tiny", device=CPU)


@pytest.fixture(params=FAMILIES, scope="module")
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Any]:
    """Our backbone and transformers' model of one family."""
    folder = tmp_path_factory.mktemp("model")
    model = FAMILIES[request.param](folder)
    return load(folder), model


@pytest.fixture(params=[*FAMILIES, "open_clip"], scope="module")
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "open_clip":
        return load_open_clip(FIXTURE, name="tiny", device=CPU)
    folder = tmp_path_factory.mktemp("model")
    FAMILIES[request.param](folder)
    return load(folder)


def pixels_of(backbone: Any, count: int = 2) -> Tensor:
    size = backbone.preprocessing.size
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def padded(tokens: Tokens, pad_id: int) -> Tokens:
    """The same texts padded to the full context."""
    rest = CONTEXT - tokens.ids.shape[1]
    return Tokens(
        torch.nn.functional.pad(tokens.ids, (0, rest), value=pad_id),
        torch.nn.functional.pad(tokens.mask, (0, rest), value=False),
    )


def reference_texts(backbone: Any, model: Any) -> Tensor:
    tokens = padded(backbone.tokenize(TEXTS), backbone._tokenizer.pad_id)
    with torch.no_grad():
        output = model.get_text_features(input_ids=tokens.ids)
    return normalize(output.pooler_output, dim=-1)


def test_text_features_equal_transformers_on_padded_ids(pair: tuple[Any, Any]) -> None:
    backbone, model = pair
    ours = backbone.encode_texts(TEXTS)
    torch.testing.assert_close(ours, reference_texts(backbone, model), atol=1e-5, rtol=0)
    assert (ours[0] - ours[1]).abs().max() > 0.05  # the oracle can tell texts apart


def test_global_features_equal_transformers(pair: tuple[Any, Any]) -> None:
    backbone, model = pair
    pixels = torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        reference = model.get_image_features(pixel_values=pixels).pooler_output
    ours = backbone.encode_images(pixels)
    torch.testing.assert_close(ours.globals, normalize(reference, dim=-1), atol=1e-5, rtol=0)
    assert ours.patches.shape == (3, 16, backbone.embed_dim)
    assert backbone.patch_grid == (4, 4)
    assert backbone.encode_images(pixels, patches=False).patches is None


def test_clip_patches_are_the_projected_tokens(tmp_path: Path) -> None:
    model = make_clip(tmp_path)
    pixels = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = model.vision_model(pixel_values=pixels).last_hidden_state
        expected = model.visual_projection(model.vision_model.post_layernorm(hidden[:, 1:]))
    ours = load(tmp_path).encode_images(pixels).patches
    torch.testing.assert_close(ours, normalize(expected, dim=-1), atol=1e-5, rtol=0)


def test_features_have_unit_length_and_can_be_used_in_training(backbone: Any) -> None:
    both = backbone.encode_images(pixels_of(backbone))
    for values in (both.globals, both.patches, backbone.encode_texts(TEXTS)):
        torch.testing.assert_close(values.norm(dim=-1), torch.ones(values.shape[:-1]))
        assert not values.requires_grad
    alone = backbone.encode_images(pixels_of(backbone), patches=False)
    assert alone.patches is None
    torch.testing.assert_close(alone.globals, both.globals, rtol=0, atol=1e-6)
    weight = torch.zeros(backbone.embed_dim, requires_grad=True)
    (both.globals @ weight).sum().backward()
    assert weight.grad is not None


def test_gradient_reaches_the_embeddings_and_nothing_else(backbone: Any) -> None:
    tokens = backbone.tokenize(TEXTS)
    embeddings = backbone.embed(tokens).clone().requires_grad_(True)
    backbone.encode_text(embeddings, tokens)[:, 0].sum().backward()
    assert embeddings.grad is not None
    used = embeddings.grad.abs().sum(dim=-1) > 0
    assert bool(used[tokens.mask].all())
    for parameter in backbone.model.parameters():
        assert not parameter.requires_grad
        assert parameter.grad is None
        assert parameter.dtype == torch.float32
    assert not any(module.training for module in backbone.model.modules())


@pytest.mark.parametrize("family", ["clip", "clip-legacy"])
def test_trimmed_texts_equal_padded_ones(tmp_path: Path, family: str) -> None:
    FAMILIES[family](tmp_path)
    backbone = load(tmp_path)
    short = backbone.tokenize(TEXTS)
    longest = max(len(backbone.pieces(text)) for text in TEXTS)
    assert short.ids.shape[1] == longest + 2 < CONTEXT
    full = padded(short, backbone._tokenizer.pad_id)
    torch.testing.assert_close(
        backbone.encode_text(backbone.embed(short), short),
        backbone.encode_text(backbone.embed(full), full),
        atol=1e-5,
        rtol=0,
    )


def test_siglip_pads_to_the_full_context_and_refuses_less(tmp_path: Path) -> None:
    make_siglip(tmp_path)
    backbone = load(tmp_path)
    tokens = backbone.tokenize(["normal lung"])
    assert tokens.ids.shape == (1, CONTEXT)
    assert int(tokens.mask.sum()) == 3  # two words and the end
    assert set(tokens.ids[0, 2:].tolist()) == {1}  # it pads with its end token
    assert (backbone.leading_tokens, backbone.trailing_tokens) == (0, 1)
    cut = Tokens(tokens.ids[:, :3], tokens.mask[:, :3])
    with pytest.raises(BackboneError):
        backbone.encode_text(backbone.embed(cut), cut)


def test_siglip_sees_neither_case_nor_punctuation(tmp_path: Path) -> None:
    make_siglip(tmp_path)
    backbone = load(tmp_path)
    assert backbone.pieces("  A  Photo, of (the) LUNG!") == backbone.pieces("a photo of the lung")


def test_a_long_text_is_cut_but_keeps_its_end(backbone: Any) -> None:
    tokens = backbone.tokenize(["lung " * 1000])
    assert tokens.ids.shape == (1, backbone.context_length)
    assert tokens.ids[0, -1] == backbone.tokenize(["lung"]).ids[0][-1]
    assert torch.isfinite(backbone.encode_texts(["lung " * 1000])).all()


@pytest.mark.parametrize("family", ["clip", "open_clip"])
def test_dropout_draws_for_each_stream_what_it_would_draw_alone(
    tmp_path: Path, family: str
) -> None:
    make_clip(tmp_path, dropout=0.3)
    backbone: Any = load(tmp_path)
    if family == "open_clip":
        backbone = load_open_clip(FIXTURE, name="tiny", device=CPU)
    tokens = backbone.tokenize(TEXTS)
    plain = backbone.encode_text(backbone.embed(tokens), tokens)

    def dropped(*seeds: int) -> Tensor:
        copies = Tokens(tokens.ids.repeat(len(seeds), 1), tokens.mask.repeat(len(seeds), 1))
        streams = TextDropout(seeds)
        return backbone.encode_text(backbone.embed(copies), copies, dropout=streams)

    assert (dropped(1) - plain).abs().max() > 0.01
    alone = torch.cat([dropped(1), dropped(2)])
    torch.testing.assert_close(dropped(1, 2), alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 3, 16, 16), (1, 1, SIZE, SIZE), (3, SIZE, SIZE)])
def test_pixels_of_a_wrong_shape_are_refused(backbone: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(BackboneError):
        backbone.encode_images(torch.zeros(shape))


def test_embeddings_that_do_not_fit_are_refused(backbone: Any) -> None:
    tokens = backbone.tokenize(TEXTS)
    long = backbone.pack([[5] * backbone.context_length])
    for wrong in (tokens, long):
        width = 4 if wrong is tokens else None
        with pytest.raises(BackboneError):
            backbone.encode_text(backbone.embed(wrong)[:, :, :width], wrong)
