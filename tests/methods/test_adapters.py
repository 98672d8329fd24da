"""Tip-Adapter, Tip-Adapter-F and CLIP-Adapter against plain loops."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from toys import fit_head, make_support, make_text, unit

from ogkd.methods.tip_adapter import GRID


def plain_logits(v, K, y, T, scale, alpha, beta):
    """The paper's formula with loops."""
    z = scale * v @ T.T
    for n in range(len(v)):
        for k in range(len(K)):
            z[n, y[k]] += alpha * np.exp(-beta * (1 - v[n] @ K[k]))
    return z


def test_logits_are_the_papers_formula():
    support, text, v = make_support(), make_text(), unit(5, 12, seed=3)
    head = fit_head("tip-adapter", support, alpha=2.5, beta=4.0)
    K, y = support.rows()
    expected = plain_logits(
        v.double().numpy(), K.numpy(), y.numpy(), text.single.numpy(), 30.0, 2.5, 4.0
    )
    np.testing.assert_allclose(head.logits(v).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_the_search_on_validation_agrees_with_a_plain_loop():
    support, text = make_support((2, 2, 2), validation=4, spread=1.6), make_text(3)
    K, y = (x.numpy() for x in support.rows())
    v, labels = (x.numpy() for x in support.validation)
    beta = 2.0
    best = (-1.0, np.inf, None)
    for alpha in GRID:
        z = plain_logits(v.astype(float), K, y, text.single.numpy(), 30.0, alpha, beta)
        right = np.mean(z.argmax(1) == labels)
        log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
        loss = -log_p[np.arange(len(v)), labels].mean()
        if (right, -loss) > (best[0], -best[1]):
            best = (right, loss, alpha)
    head = fit_head("tip-adapter", support, beta=beta)
    assert float(head.A.max()) == np.float32(best[2])


def test_trained_keys_agree_with_a_plain_loop_of_adamw():
    support, text = make_support((3, 3, 3), spread=1.2), make_text(3)
    head = fit_head("tip-adapter-f", support, alpha=1.0, beta=5.5, epochs=4)
    F, y = support.rows()
    # Every epoch is one full batch; gradient and AdamW by hand, in float64.
    v, T = F.double().numpy(), text.single.double().numpy()
    K, L = v.copy(), np.eye(3)[y.numpy()]
    m = s = np.zeros_like(K)
    for step in range(1, 5):
        E = np.exp(-5.5 * (1 - v @ K.T))  # [R, R]
        z = 30.0 * v @ T.T + E @ L
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        G = (p - L) / len(v)  # dLoss/dz
        grad = (5.5 * E * (G @ L.T)).T @ v
        rate = 1e-3 * (1 + np.cos(np.pi * (step - 1) / 4)) / 2
        m, s = 0.9 * m + 0.1 * grad, 0.999 * s + 0.001 * grad**2
        K = K * (1 - rate * 0.01)
        K = K - rate * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-4)
    np.testing.assert_allclose(head.K.numpy(), K, atol=2e-6)
    assert np.abs(K - v).max() > 1e-4


def test_the_head_is_the_usual_two_layer_network():
    head, v = fit_head("clip-adapter", make_support()), unit(5, 12, seed=3)
    layers = nn.Sequential(
        nn.Linear(12, 3, bias=False), nn.ReLU(), nn.Linear(3, 12, bias=False), nn.ReLU()
    )
    layers[0].weight.data, layers[2].weight.data = head.W1, head.W2
    mixed = 0.5 * layers(v) + 0.5 * v
    expected = 30.0 * mixed / mixed.norm(dim=1, keepdim=True) @ head.T.T
    torch.testing.assert_close(head.logits(v), expected.detach())


def test_full_batch_training_agrees_with_plain_gradient_descent():
    support = make_support()
    start, end = (
        fit_head("clip-adapter", support, epochs=0),
        fit_head("clip-adapter", support, epochs=3),
    )
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
