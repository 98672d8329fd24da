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
from ogkd.backbones._tokenizer import clean_text
from ogkd.backbones._towers import TowersBackbone
from ogkd.backbones.base import TextDropout
from ogkd.backbones.open_clip_format import load_open_clip

FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"


def load(folder: Path) -> TowersBackbone:
    return load_open_clip(folder, name="some-clip", device=torch.device("cpu"))


@pytest.fixture(scope="module")
def backbone() -> TowersBackbone:
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


@pytest.mark.parametrize("lower", [True, False])
def test_letter_case_follows_the_tokenizers_configuration(folder: Path, lower: bool) -> None:
    edit_json(folder / "tokenizer_config.json", "do_lower_case", value=lower)
    backbone = load(folder)
    assert (backbone.pieces("SCAN") == backbone.pieces("scan")) is lower


# Dropout


class Recorder(TextDropout):
    """Counts the values that a rate was asked for, and drops nothing."""

    def __init__(self) -> None:
        super().__init__([])
        self.calls: list[tuple[float, tuple[int, ...]]] = []

    def __call__(self, values: Tensor, rate: float) -> Tensor:
        self.calls.append((rate, tuple(values.shape)))
        return values


TEXTS = ["a photo of a benign tumor.", "chest scan"]


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


def test_the_explicit_forward_equals_transformers_own(backbone: TowersBackbone) -> None:
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
