from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from feature_toys import fit_head, make_support, make_text, unit

from ogkd.methods.feature_method import rows_of
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


def test_a_very_sharp_cache_is_the_nearest_neighbour():
    support, v = make_support(spread=1.5), unit(60, 12, seed=4).double()
    head = fit_head("tip-adapter", support, text=make_text(scale=0.0), alpha=1.0, beta=600.0)
    # Float64, since such small numbers are all zero in float32.
    exact = replace(head, T=head.T.double(), K=head.K.double(), A=head.A.double())
    K, y = support.rows()
    near = torch.cdist(v, K.double()).argmin(dim=1)
    z = exact.logits(v)
    known = z.max(dim=1).values > 0
    assert known.sum() > 20
    assert torch.equal(z.argmax(1)[known], y[near][known])


def test_without_weight_the_cache_leaves_zero_shot():
    text, v = make_text(), unit(6, 12, seed=3)
    head = fit_head("tip-adapter", make_support(), alpha=0.0, beta=1.0)
    torch.testing.assert_close(head.logits(v), 30.0 * v @ text.single.T)


def test_an_image_has_one_vote_however_many_views():
    support = make_support(views=3)
    head = fit_head("tip-adapter", support, alpha=1.0, beta=5.5)
    torch.testing.assert_close(head.A.sum(0), torch.full((4,), 4.0))


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


def test_one_shot_without_validation_takes_the_papers_values():
    head = fit_head("tip-adapter", make_support((1, 1, 1, 1)))
    assert (head.beta, float(head.A.max())) == (5.5, 1.0)


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


def test_trained_keys_fit_the_support_better():
    support, text = make_support(spread=2.0), make_text()
    rows = rows_of(support, text.class_names)
    settings = {"alpha": 1.0, "beta": 5.5}
    loss = [
        torch.nn.functional.cross_entropy(
            fit_head(name, support, **settings).logits(rows.features), rows.labels
        )
        for name in ("tip-adapter", "tip-adapter-f")
    ]
    assert loss[1] < loss[0]
