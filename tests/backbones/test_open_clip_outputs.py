"""What an open_clip backbone gives: texts, images, its digest, its dropout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertModel

from ogkd.backbones._bert import bert_hidden
from ogkd.backbones._folder import backbone_digest
from ogkd.backbones._tokenizer import clean_text
from ogkd.backbones.base import TextDropout, Tokens
from ogkd.backbones.open_clip_format import OpenClipBackbone, load_open_clip
from ogkd.errors import BackboneError

FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"


def load(folder: Path) -> OpenClipBackbone:
    return load_open_clip(folder, name="some-clip", device=torch.device("cpu"))


@pytest.fixture(scope="module")
def backbone() -> OpenClipBackbone:
    return load(FIXTURES / "class_token_mlp")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound folder of one's own, to be changed."""
    return Path(shutil.copytree(FIXTURES / "mean_linear", tmp_path / "model"))


def edit_json(path: Path, *keys: str, value: Any) -> None:
    content = json.loads(path.read_text())
    part = content
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path.write_text(json.dumps(content))


# Texts


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("  two\t words\n", "two words"),
        ("Barrett\u2019s \u201coesophagus\u201d", 'Barrett\'s "oesophagus"'),
        ("p &amp;lt; 0.05", "p < 0.05"),
        ("\ufb01brosis", "fibrosis"),
        ("cafe\u0301", "caf\u00e9"),
        ("\uff21\uff22 50\uff05", "AB 50%"),
    ],
)
def test_texts_are_cleaned_as_open_clip_cleans_them(text: str, plain: str) -> None:
    assert clean_text(text) == plain


def test_a_text_longer_than_the_context_is_cut_with_its_end_kept(
    backbone: OpenClipBackbone,
) -> None:
    tokens = backbone.tokenize(["scan " * 1000])
    assert tokens.ids.shape == (1, backbone.context_length)
    begin, end = backbone.tokenize([""]).ids[0].tolist()
    assert tokens.ids[0, 0] == begin
    assert tokens.ids[0, -1] == end
    assert len(backbone.pieces("scan " * 1000)) == 1000


def test_tokens_are_trimmed_to_the_longest_text(backbone: OpenClipBackbone) -> None:
    tokens = backbone.tokenize(["a scan", "a", ""])
    assert tokens.mask.sum(dim=1).tolist() == [4, 3, 2]
    assert tokens.ids.shape == (3, 4)


def test_more_tokens_than_the_context_are_refused(backbone: OpenClipBackbone) -> None:
    ids = torch.full((1, 257), 5)
    tokens = Tokens(ids=ids, mask=ids > 0)
    with pytest.raises(BackboneError, match="at most 256 tokens"):
        backbone.encode_text(backbone.embed(tokens), tokens)


@pytest.mark.parametrize("lower", [True, False])
def test_letter_case_follows_the_tokenizers_configuration(folder: Path, lower: bool) -> None:
    edit_json(folder / "tokenizer_config.json", "do_lower_case", value=lower)
    backbone = load(folder)
    assert (backbone.pieces("SCAN") == backbone.pieces("scan")) is lower


# Images


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (1, 1, 48, 48), (3, 48, 48), (1, 3, 48, 40)])
def test_images_of_another_size_are_refused_with_the_right_one(
    backbone: OpenClipBackbone, shape: tuple[int, ...]
) -> None:
    with pytest.raises(BackboneError, match=r"\[B, 3, 48, 48\]"):
        backbone.encode_images(torch.zeros(shape))


def test_features_have_unit_length_and_patches_are_left_out_on_request(
    backbone: OpenClipBackbone,
) -> None:
    pixels = torch.randn(3, 3, 48, 48)
    both = backbone.encode_images(pixels)
    assert both.patches is not None
    torch.testing.assert_close(both.globals.norm(dim=-1), torch.ones(3))
    torch.testing.assert_close(both.patches.norm(dim=-1), torch.ones(3, 9))
    alone = backbone.encode_images(pixels, patches=False)
    assert alone.patches is None
    torch.testing.assert_close(alone.globals, both.globals, rtol=0, atol=1e-6)


def test_image_features_can_stand_in_a_loss(backbone: OpenClipBackbone) -> None:
    features = backbone.encode_images(torch.randn(2, 3, 48, 48)).globals
    prototypes = torch.randn(4, backbone.embed_dim, requires_grad=True)
    (features @ prototypes.T).square().sum().backward()
    assert prototypes.grad is not None


# Frozen, and known by its digest


def test_everything_is_frozen_and_in_evaluation_mode(backbone: OpenClipBackbone) -> None:
    assert not any(module.training for module in backbone.model.modules())
    assert not any(value.requires_grad for value in backbone.model.parameters())
    assert all(value.dtype == torch.float32 for value in backbone.model.parameters())


def test_the_digest_does_not_depend_on_the_order_of_its_parts(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    assert backbone_digest(file, {"a": "1", "b": "2"}) == backbone_digest(
        file, {"b": "2", "a": "1"}
    )
    assert backbone_digest(file, {"a": "1", "b": "2"}) != backbone_digest(
        file, {"a": "12", "b": ""}
    )
    with pytest.raises(BackboneError, match="Cannot read"):
        backbone_digest(tmp_path / "absent", {})


# Dropout


class Recorder(TextDropout):
    """Counts the values that a rate was asked for, and drops nothing."""

    def __init__(self) -> None:
        super().__init__([])
        self.calls: list[tuple[float, tuple[int, ...]]] = []

    def __call__(self, values: Tensor, rate: float) -> Tensor:
        self.calls.append((rate, tuple(values.shape)))
        return values


def streams(*seeds: int) -> TextDropout:
    return TextDropout(seeds)


TEXTS = ["a photo of a benign tumor.", "chest scan"]


def test_dropout_that_drops_nothing_equals_evaluation(backbone: OpenClipBackbone) -> None:
    tokens = backbone.tokenize(TEXTS)
    words = backbone.embed(tokens)
    plain = backbone.encode_text(words, tokens)
    dropped = backbone.encode_text(words, tokens, dropout=Recorder())
    torch.testing.assert_close(dropped, plain, rtol=0, atol=1e-6)


def test_dropout_stands_where_bert_has_it_with_berts_rates(folder: Path) -> None:
    edit_json(folder / "config.json", "hidden_dropout_prob", value=0.25)
    edit_json(folder / "config.json", "attention_probs_dropout_prob", value=0.5)
    pooler = ("model_cfg", "text_cfg", "hf_pooler_type")
    edit_json(folder / "open_clip_config.json", *pooler, value="cls_last_hidden_state_pooler")
    backbone = load(folder)
    tokens = backbone.tokenize(TEXTS)
    recorder = Recorder()
    backbone.encode_text(backbone.embed(tokens), tokens, dropout=recorder)
    length, rows = tokens.ids.shape[1], int(tokens.mask.sum())  # padding is not computed
    hidden, attention = (0.25, (rows, 24)), (0.5, (2, 3, length, length))
    # Of the last block only the first token is computed: the pooler looks at nothing else.
    first, asked = (0.25, (2, 24)), (0.5, (2, 3, 1, length))
    assert recorder.calls == [hidden, attention, hidden, hidden, asked, first, first]


def test_dropout_keeps_the_expected_share_of_values(folder: Path) -> None:
    edit_json(folder / "config.json", "hidden_dropout_prob", value=0.3)
    model = load(folder).model.text.bert
    kept = streams(0)(torch.ones(64, 64, 24), model.config.hidden_dropout_prob)
    assert (kept > 0).float().mean().item() == pytest.approx(0.7, abs=0.01)
    assert kept.mean().item() == pytest.approx(1.0, abs=0.01)


def test_streams_in_one_batch_equal_each_stream_alone(backbone: OpenClipBackbone) -> None:
    tokens = backbone.tokenize(TEXTS)
    twice = Tokens(ids=tokens.ids.repeat(2, 1), mask=tokens.mask.repeat(2, 1))
    together = backbone.encode_text(backbone.embed(twice), twice, dropout=streams(1, 2))
    words = backbone.embed(tokens)
    alone = [backbone.encode_text(words, tokens, dropout=streams(seed)) for seed in (1, 2)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-6)
    assert (alone[0] - alone[1]).abs().max() > 1e-3


def test_the_explicit_forward_equals_transformers_own(backbone: OpenClipBackbone) -> None:
    model = backbone.model.text.bert
    known = BertModel.config_class(**model.config.model_dump(exclude={"model_type"}))
    theirs = BertModel(known, add_pooling_layer=hasattr(model, "pooler")).eval()
    theirs.load_state_dict(model.state_dict())
    tokens = backbone.tokenize(TEXTS)
    own = theirs(input_ids=tokens.ids, attention_mask=tokens.mask.long()).last_hidden_state
    ours = bert_hidden(model, backbone.embed(tokens), tokens.mask)
    torch.testing.assert_close(ours[tokens.mask], own[tokens.mask], rtol=0, atol=1e-5)
    first = bert_hidden(model, backbone.embed(tokens), tokens.mask, first_only=True)
    torch.testing.assert_close(first, own[:, :1], rtol=0, atol=1e-5)


def test_max_pooling_looks_at_tokens_and_never_at_padding(folder: Path) -> None:
    edit_json(
        folder / "open_clip_config.json",
        "model_cfg",
        "text_cfg",
        "hf_pooler_type",
        value="max_pooler",
    )
    backbone = load(folder)
    alone = backbone.encode_texts(["chest scan"])
    beside = backbone.tokenize(["chest scan", TEXTS[0]])
    padded = backbone.encode_text(backbone.embed(beside), beside)[:1]
    torch.testing.assert_close(alone, padded, rtol=0, atol=1e-5)
