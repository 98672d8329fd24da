from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import NAMES, batch_of, fit, quick, two_views, unit

from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.methods.cocoop import ImagePromptLearner
from ogkd.methods.coop import CrossEntropy


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def learner(bert_backbone):
    return ImagePromptLearner(bert_backbone, NAMES[:3], ContextConfig())


def test_the_meta_net_has_the_papers_shape_and_torchs_first_values(learner, bert_backbone):
    parts = learner.split(learner.initial_context(generator()))
    d, w = bert_backbone.embed_dim, bert_backbone.text_width
    narrow = max(1, d // 16)
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    assert shapes == {
        "context": (4, w),
        "W1": (narrow, d),
        "b1": (narrow,),
        "W2": (w, narrow),
        "b2": (w,),
    }
    layer = torch.nn.Linear(d, narrow)
    bound = layer.weight.abs().max().item()
    assert 0.5 * bound < parts["W1"].abs().max().item() <= d**-0.5
    plain = PromptLearner(bert_backbone, NAMES[:3], ContextConfig())
    assert torch.equal(parts["context"], plain.initial_context(generator()))


def awake(learner, generator):
    """First values with every hidden unit on: this small model has just one."""
    parts = learner.split(learner.initial_context(generator))
    return learner.join({**parts, "b1": torch.ones_like(parts["b1"])})


def test_each_image_has_the_prompts_of_its_own_shifted_context(learner, bert_backbone):
    """The meta-net in numpy, then CoOp's prompts with that context, image by image."""
    rows = torch.stack([awake(learner, generator(seed)) for seed in (1, 2)])
    images = unit(2, 5, bert_backbone.embed_dim, seed=3)
    T_hat = learner.text_features(rows, images=images)
    assert T_hat.shape == (2, 5, 3, bert_backbone.embed_dim)
    plain = PromptLearner(bert_backbone, NAMES[:3], ContextConfig())
    for run in range(2):
        p = {name: part.double().numpy() for name, part in learner.split(rows[run]).items()}
        for b in range(5):
            hidden = np.maximum(p["W1"] @ images[run, b].double().numpy() + p["b1"], 0)
            shift = p["W2"] @ hidden + p["b2"]
            context = torch.from_numpy(p["context"] + shift).float()
            expected = plain.text_features(context.unsqueeze(0))[0]
            torch.testing.assert_close(T_hat[run, b], expected, atol=1e-5, rtol=1e-4)
    assert (T_hat[0, 0] - T_hat[0, 1]).abs().max() > 1e-4  # images do matter


def silenced(learner, row):
    parts = learner.split(row)
    zeros = {name: torch.zeros_like(parts[name]) for name in ("W1", "b1", "W2", "b2")}
    return learner.join({**parts, **zeros})


def test_with_a_zeroed_meta_net_it_is_coop(learner, bert_backbone):
    plain = PromptLearner(bert_backbone, NAMES[:3], ContextConfig())
    batch, objective = batch_of(1, d=bert_backbone.embed_dim), CrossEntropy(20.0)
    row = silenced(learner, learner.initial_context(generator())).unsqueeze(0).requires_grad_()
    context = plain.initial_context(generator()).unsqueeze(0).requires_grad_()
    conditional = objective(learner.text_features(row, images=batch.globals), batch)["ce"]
    shared = objective(plain.text_features(context), batch)["ce"]
    torch.testing.assert_close(conditional, shared, atol=1e-5, rtol=1e-5)
    conditional.sum().backward()
    shared.sum().backward()
    gradient = learner.split(row.grad[0])["context"]
    torch.testing.assert_close(gradient, context.grad[0], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("tokens", [1, 60, 10**9])
def test_prediction_in_parts_equals_prediction_at_once(bert_backbone, monkeypatch, tokens):
    (head,) = fit(quick("cocoop"), bert_backbone, two_views(bert_backbone))
    v = unit(7, bert_backbone.embed_dim, seed=8)
    expected = head.logits(v)
    monkeypatch.setattr("ogkd.methods.cocoop._TOKENS_AT_ONCE", tokens)
    torch.testing.assert_close(head.logits(v), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(head.logits(3 * v), expected, atol=1e-4, rtol=1e-4)
    assert head.logits(v[:0]).shape == (0, 3)
    assert not head.logits(v).requires_grad
