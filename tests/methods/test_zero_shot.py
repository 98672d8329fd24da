from __future__ import annotations

import torch
from torch.nn.functional import normalize

from ogkd.methods import TextSide, Workplace, make_method

NAMES = ("cyst", "stone")
PROMPTS = (("a dark cyst", "round cyst"), ("a bright stone", "stone", "small stone"))


def heads(backbone, method, **settings):
    text = TextSide(backbone, NAMES, PROMPTS)
    chosen = make_method(method, settings=settings)
    return chosen, text, chosen.fit([], text, seeds=[1, 2], workplace=Workplace())


def test_one_template_scores_by_cosine(bert_backbone):
    _, _, (head, other) = heads(bert_backbone, "zero-shot", template="an image of {}")
    T = bert_backbone.encode_texts([f"an image of {name}" for name in NAMES])
    v = normalize(torch.randn(3, bert_backbone.embed_dim), dim=-1)
    torch.testing.assert_close(head.logits(v), bert_backbone.logit_scale * v @ T.T)
    assert torch.equal(head.T, other.T)


def test_the_ensemble_is_the_normalised_mean_of_unequal_banks(bert_backbone):
    _, _, (head, _) = heads(bert_backbone, "zero-shot-ensemble")
    for row, prompts in zip(head.T, PROMPTS, strict=True):
        mean = bert_backbone.encode_texts(prompts).mean(0)
        torch.testing.assert_close(row, mean / mean.norm(), atol=1e-6, rtol=0)


def test_zero_shot_knows_any_class(bert_backbone):
    method, _, (head, _) = heads(bert_backbone, "zero-shot")
    other = method.head_for(head, TextSide(bert_backbone, ("tumor", "stone"), PROMPTS))
    torch.testing.assert_close(other.T[1], head.T[1], atol=1e-6, rtol=0)
    assert not torch.allclose(other.T[0], head.T[0], atol=1e-3)
