from __future__ import annotations

import torch
from torch.nn.functional import normalize

from ogkd.backbones.base import ImageFeatures
from ogkd.features.views import FixedViews
from ogkd.methods import Support, TextSide, make_method

NAMES = ("cyst", "stone")
PROMPTS = (("a dark cyst", "round cyst"), ("a bright stone", "stone", "small stone"))


def heads(backbone, method, **settings):
    text = TextSide(backbone, NAMES, PROMPTS)
    chosen = make_method(method, settings=settings)
    return chosen, text, [chosen.fit(None, text, seed=seed) for seed in (1, 2)]


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


def test_the_selective_ensemble_leaves_out_outliers_on_the_support(bert_backbone):
    """One prompt per class is far from every image, so its score is the outlier."""
    prompts = tuple((f"a {n}", f"one {n}", f"the {n}", f"{n} seen", "zzz q") for n in NAMES)
    text = TextSide(bert_backbone, NAMES, prompts)
    bank = torch.stack(text.bank)
    v = normalize(bank[:, :4].mean(dim=(0, 1), keepdim=True)[0] - bank[:, 4].mean(0), dim=-1)
    support = Support(FixedViews(ImageFeatures(v.expand(4, 1, -1))), torch.tensor([0, 0, 1, 1]))
    method = make_method("zero-shot-selective", settings={"tau": 1.5})
    head = method.fit(support, text, seed=1)
    for row, rows in zip(head.T, bank, strict=True):
        mean = rows[:4].mean(0)
        torch.testing.assert_close(row, mean / mean.norm(), atol=1e-6, rtol=0)


def test_without_images_nothing_is_left_out(bert_backbone):
    method, _, (selective, _) = heads(bert_backbone, "zero-shot-selective", tau=0.01)
    _, _, (ensemble, _) = heads(bert_backbone, "zero-shot-ensemble")
    assert torch.equal(selective.T, ensemble.T)
    other = method.head_for(selective, TextSide(bert_backbone, NAMES[::-1], PROMPTS[::-1]))
    torch.testing.assert_close(other.T, ensemble.T.flip(0), atol=1e-6, rtol=0)
