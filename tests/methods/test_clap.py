from __future__ import annotations

import math

import torch
from feature_toys import make_support, make_text, unit
from torch.nn.functional import cross_entropy, normalize

from ogkd.methods import make_method


def fit(support, name="clap", **settings):
    method = make_method(name, settings=settings)
    return method.fit(support, make_text(), seed=1)


def test_a_huge_penalty_is_zero_shot():
    v, text = unit(6, 12, seed=3), make_text()
    head = fit(make_support(), penalty=1e9)
    torch.testing.assert_close(head.logits(v), 30.0 * v @ text.single.T, atol=1e-3, rtol=1e-4)


def test_no_penalty_is_zs_lp():
    support, v = make_support(), unit(6, 12, seed=3)
    torch.testing.assert_close(fit(support, penalty=0.0).logits(v), fit(support, "zs-lp").logits(v))


def test_zs_lp_agrees_with_torchs_sgd():
    support, text = make_support(spread=1.5), make_text()
    F, y = support.rows()
    w = (10 * text.single.double()).requires_grad_()
    optimiser = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    epochs = 6
    for epoch in range(epochs):
        rate = 1e-5 if epoch == 0 else 0.1 * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2
        optimiser.param_groups[0]["lr"] = rate
        loss = cross_entropy(30.0 * F.double() @ normalize(w, dim=1).T, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    expected = 30.0 * normalize(w.detach(), dim=1)
    head = fit(support, "zs-lp", epochs=epochs)
    torch.testing.assert_close(head.W.double(), expected, atol=1e-3, rtol=1e-4)


def test_clap_ends_where_slope_and_penalty_balance():
    # Long training at a steady small rate: the fixed point is the optimum of the whole loss.
    support, text = make_support(spread=2.0), make_text()
    head = fit(support, epochs=4000, lr=0.3, penalty=3.0)
    F, y = support.rows()
    T = text.single.double()
    p = (30.0 * F.double() @ T.T).softmax(1)
    lam = torch.stack([p[y == c, c].mean() for c in range(4)])
    w = (10 * T).requires_grad_()
    solver = torch.optim.LBFGS(
        [w], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def closure():
        solver.zero_grad()
        loss = cross_entropy(30.0 * F.double() @ normalize(w, dim=1).T, y)
        loss = loss + (3.0 * lam * (w - 10 * T).square().sum(1)).mean()
        loss.backward()
        return loss

    solver.step(closure)
    expected = 30.0 * normalize(w.detach(), dim=1)
    torch.testing.assert_close(head.W.double(), expected, atol=0.05, rtol=0)


def test_where_text_is_right_the_probe_moves_less():
    support, text = make_support(spread=2.0), make_text()
    free, held = fit(support, "zs-lp"), fit(support)
    away = [(head.W / 30.0 - text.single).norm() for head in (free, held)]
    assert away[1] < away[0]
