from __future__ import annotations

import numpy as np
import pytest
import torch
from export_world import run, session_of, with_backbone

from ogkd.export.graph import build
from ogkd.methods import METHODS
from ogkd.methods.heads import Head
from ogkd.model.classifier import Classifier
from tiny_backbones import make_siglip

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


class Together(Head):
    """All heads in one, so that one export tells about every method."""

    def __init__(self, heads):
        self.heads = heads

    @property
    def shape(self):
        return sum(head.shape[0] for head in self.heads), self.heads[0].shape[1]

    def logits(self, features):
        return torch.cat([head.logits(features) for head in self.heads], dim=-1)

    def tensors(self):
        return {}


def test_heads_of_all_methods_but_cocoop_are_exported(heads, bert_backbone, model):
    assert [name for name, head in heads.items() if head.export_error] == ["cocoop"]
    usable = [head for head in heads.values() if head.export_error is None]
    assert len(usable) == len(METHODS) - 1
    together = Together(usable)
    graph = build(Classifier(bert_backbone, together, model.card))
    size = bert_backbone.preprocessing.size
    pixels = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))
    features = bert_backbone.encode_images(pixels).globals
    logits = run(session_of(graph), pixels)["logits"]
    expected = together.logits(features).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4 * max(1.0, np.abs(expected).max()))


def test_a_siglip_is_exported(model, tmp_path):
    classifier = with_backbone(make_siglip, tmp_path / "siglip", model)
    pixels = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    probabilities = run(session_of(build(classifier)), pixels)["probabilities"]
    expected = classifier.probabilities(classifier.backbone.encode_images(pixels).globals)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
