"""Linear heads: the probes, LP++, ZS-LP and CLAP."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import cross_entropy, normalize
from toys import fit_head, make_support, make_text, unit


@pytest.mark.parametrize("counts", [(5, 3, 1), (4, 2, 5)])
def test_the_probe_gives_scikit_learns_probabilities(counts):
    support, v = make_support(counts, spread=1.5), unit(12, 12, seed=3)
    X, y = (x.numpy() for x in support.rows())
    model = LogisticRegression(C=100.0, tol=1e-8, max_iter=5000).fit(X.astype(float), y)
    p = fit_head("linear-probe", support, l2=1 / (100.0 * len(X))).logits(v).softmax(1)
    np.testing.assert_allclose(p, model.predict_proba(v.double().numpy()), atol=5e-4)


def descent(F, y, T, *, epochs, every, momentum):
    """Block coordinate descent with loops over classes, in float64."""
    N, C = len(F), len(T)
    L = np.eye(C)[y]
    w = np.array([F[y == c].sum(0) for c in range(C)])
    alpha = np.full(C, 250 * np.mean([np.mean(F[y == c] @ T[c]) for c in range(C)]))
    step_w = 4 * N / np.linalg.eigvalsh(F.T @ F).max()
    step_alpha = N / (4 * max(np.sum((F @ T[c]) ** 2) for c in range(C)))

    def slopes():
        z = np.array([[f @ (w[c] + alpha[c] * T[c]) for c in range(C)] for f in F])
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        by_w = np.array([(p[:, c] - L[:, c]) @ F / N for c in range(C)])
        by_alpha = np.array([(p[:, c] - L[:, c]) @ (F @ T[c]) / N for c in range(C)])
        return by_w, by_alpha

    speed = np.zeros_like(w)
    for epoch in range(1, epochs + 1):
        speed = momentum * speed + slopes()[0]
        w = w - step_w * speed
        if epoch % every == 0:
            alpha = alpha - step_alpha * slopes()[1]
    return np.array([w[c] + alpha[c] * T[c] for c in range(C)])


def test_block_coordinate_descent_agrees_with_a_plain_loop():
    support, text = make_support((3, 4, 2, 4), spread=1.5), make_text()
    F, y = (x.numpy() for x in support.rows())
    for momentum in (0.0, 0.9):
        settings = {"epochs": 25, "every": 10, "momentum": momentum}
        expected = descent(F.astype(float), y, text.single.double().numpy(), **settings)
        head = fit_head("lp++", support, **settings)
        np.testing.assert_allclose(head.W.numpy(), expected, rtol=1e-3, atol=1e-3)


def test_the_best_epoch_on_validation_is_kept():
    support = make_support((2, 2, 2, 2), spread=2.5, validation=10)
    v, labels = support.validation

    def right(head):
        return float((head.logits(v).argmax(1) == labels).float().mean())

    without = make_support((2, 2, 2, 2), spread=2.5)
    each = [right(fit_head("lp++", without, epochs=n)) for n in range(1, 31)]
    assert right(fit_head("lp++", support, epochs=30)) == max(each)
    assert max(each) > min(each)


def test_no_penalty_is_zs_lp():
    support, v = make_support(), unit(6, 12, seed=3)
    torch.testing.assert_close(
        fit_head("clap", support, penalty=0.0).logits(v), fit_head("zs-lp", support).logits(v)
    )


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
    head = fit_head("zs-lp", support, epochs=epochs)
    torch.testing.assert_close(head.W.double(), expected, atol=1e-3, rtol=1e-4)


def test_clap_ends_where_slope_and_penalty_balance():
    # Long training at a steady small rate: the fixed point is the optimum of the whole loss.
    support, text = make_support(spread=2.0), make_text()
    head = fit_head("clap", support, epochs=4000, lr=0.3, penalty=3.0)
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
