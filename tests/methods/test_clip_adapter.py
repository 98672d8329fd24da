from __future__ import annotations

from functools import partial

import torch
from feature_toys import fit_head, make_support, make_text, unit
from torch import nn
from torch.nn.functional import cross_entropy, normalize

fit = partial(fit_head, "clip-adapter")


def test_ratio_zero_is_zero_shot():
    v, text = unit(6, 12, seed=3), make_text()
    torch.testing.assert_close(fit(make_support(), ratio=0.0).logits(v), 30.0 * v @ text.single.T)


def test_the_bank_can_be_the_prior():
    v, text = unit(6, 12, seed=3), make_text()
    head = fit(make_support(), ratio=0.0, prior="bank")
    T = normalize(torch.stack([rows.mean(0) for rows in text.bank]), dim=-1)
    torch.testing.assert_close(head.logits(v), 30.0 * v @ T.T)


def test_the_head_is_the_usual_two_layer_network():
    head, v = fit(make_support()), unit(5, 12, seed=3)
    layers = nn.Sequential(
        nn.Linear(12, 3, bias=False), nn.ReLU(), nn.Linear(3, 12, bias=False), nn.ReLU()
    )
    layers[0].weight.data, layers[2].weight.data = head.W1, head.W2
    mixed = 0.5 * layers(v) + 0.5 * v
    expected = 30.0 * mixed / mixed.norm(dim=1, keepdim=True) @ head.T.T
    torch.testing.assert_close(head.logits(v), expected.detach())


def test_full_batch_training_agrees_with_plain_gradient_descent():
    support = make_support()
    start, end = fit(support, epochs=0), fit(support, epochs=3)
    F, y = support.rows()
    W1, W2 = (W.clone().double().requires_grad_() for W in (start.W1, start.W2))
    for rate in (0.01, 0.0075, 0.0025):  # the half cosine of three epochs
        x = F.double()
        mixed = 0.5 * ((x @ W1.T).relu() @ W2.T).relu() + 0.5 * x
        z = 30.0 * normalize(mixed, dim=1) @ start.T.double().T
        slopes = torch.autograd.grad(cross_entropy(z, y), (W1, W2))
        with torch.no_grad():
            W1 -= rate * slopes[0]
            W2 -= rate * slopes[1]
    torch.testing.assert_close(end.W1.double(), W1.detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(end.W2.double(), W2.detach(), atol=1e-5, rtol=1e-4)
