"""Text features in the cache: found again, never wrong, never in the way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import ogkd
from ogkd.backbones.base import Backbone
from ogkd.features.store import text_features
from tiny_data import write_dataset

TEXTS = ["a scan of a cyst.", "normal tissue", "a small bright lesion with a dark margin"]


@pytest.fixture
def encoded(bert_backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the tower has really encoded so far."""
    seen: list[str] = []
    tower = type(bert_backbone).encode_texts

    def count(self: Backbone, texts: Sequence[str], **options: int) -> torch.Tensor:
        seen.extend(texts)
        return tower(self, texts, **options)

    monkeypatch.setattr(type(bert_backbone), "encode_texts", count)
    return seen


def test_the_second_time_nothing_is_encoded_and_the_bits_are_the_same(bert_backbone, encoded):
    first = text_features(bert_backbone, TEXTS)
    assert encoded == TEXTS
    assert torch.equal(text_features(bert_backbone, TEXTS), first)
    assert encoded == TEXTS
    assert torch.equal(first, bert_backbone.encode_texts(TEXTS))


@pytest.mark.parametrize("changed", ["texts", "order", "backbone"])
def test_what_differs_is_encoded_again(changed, bert_backbone, encoded, monkeypatch):
    text_features(bert_backbone, TEXTS)
    texts = {"texts": [*TEXTS[:2], "another"], "order": TEXTS[::-1]}.get(changed, TEXTS)
    if changed == "backbone":
        monkeypatch.setattr(bert_backbone, "digest", "another")
    encoded.clear()
    found = text_features(bert_backbone, texts)
    assert encoded == texts
    torch.testing.assert_close(found, bert_backbone.encode_texts(texts))


@pytest.mark.parametrize("damage", ["flipped", "short", "empty"])
def test_a_damaged_file_is_encoded_again_and_replaced(damage, bert_backbone, encoded, tmp_path):
    first = text_features(bert_backbone, TEXTS, root=tmp_path)
    (file,) = tmp_path.rglob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-3] ^= 64
    file.write_bytes({"flipped": content, "short": content[:-7], "empty": b""}[damage])
    encoded.clear()
    assert torch.equal(text_features(bert_backbone, TEXTS, root=tmp_path), first)
    assert encoded == TEXTS
    text_features(bert_backbone, TEXTS, root=tmp_path)
    assert encoded == TEXTS


def test_a_cache_that_cannot_be_written_changes_nothing(bert_backbone, encoded, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    found = text_features(bert_backbone, TEXTS, root=in_the_way)
    assert torch.equal(found, bert_backbone.encode_texts(TEXTS))


def test_a_second_fit_encodes_no_text(bert_backbone, encoded, tmp_path):
    data = write_dataset(tmp_path / "data", splits={"train": 2})
    for shots in (1, 2):
        encoded.clear()
        ogkd.fit(data, backbone=bert_backbone, method="fused", shots=shots)
        assert bool(encoded) == (shots == 1)
