from __future__ import annotations

from functools import partial

import numpy as np
import torch
from feature_toys import NAMES, fit_head, make_support, unit
from scipy.optimize import approx_fprime, minimize

from ogkd.methods.feature_method import rows_of
from ogkd.methods.linear_probe import DEFAULT, GRID, _choose

fit = partial(fit_head, "linear-probe")


def objective(theta, X, y, C, l2):
    """Mean cross-entropy and ridge, written anew."""
    d = X.shape[1]
    W, b = theta[: C * d].reshape(C, d), theta[C * d :]
    total = 0.0
    for x, label in zip(X, y, strict=True):
        z = W @ x + b
        total += np.log(np.exp(z - z.max()).sum()) + z.max() - z[label]
    return total / len(X) + l2 / 2 * (W**2).sum()


def test_the_probe_is_where_the_gradient_is_zero():
    support = make_support((3, 2, 4), d=6)
    head = fit(support, l2=0.01)
    X, y = (x.double().numpy() for x in support.rows())
    theta = np.concatenate([head.W.double().numpy().ravel(), head.b.double().numpy()])
    slope = approx_fprime(theta, objective, 1e-6, X, y.astype(int), 3, 0.01)
    assert np.abs(slope).max() < 1e-5


def test_the_probe_agrees_with_another_solver():
    support = make_support((3, 2, 4), d=6)
    X, y = (x.double().numpy() for x in support.rows())
    start = np.zeros(3 * 7)
    args = (X, y.astype(int), 3, 0.05)
    optimum = minimize(objective, start, args=args, method="SLSQP", options={"ftol": 1e-12}).x
    head, v = fit(support, l2=0.05), unit(10, 6, seed=5)
    W, b = optimum[:18].reshape(3, 6), optimum[18:]
    expected = torch.tensor(v.double().numpy() @ W.T + b).softmax(1).float()
    torch.testing.assert_close(head.logits(v).softmax(1), expected, atol=1e-4, rtol=0)


def test_more_features_than_images_change_nothing():
    # The solution is sought in the span of the rows: with d > N it must still be the optimum.
    support = make_support((2, 2), d=40)
    head = fit(support, l2=0.1)
    F, y = support.rows()
    p = (F @ head.W.T + head.b).softmax(1) - torch.eye(2)[y]
    slope = p.T @ F / len(F) + 0.1 * head.W
    assert slope.abs().max() < 1e-6
    assert p.sum(0).abs().max() < 1e-6


def test_the_strength_is_the_best_on_validation():
    support = make_support((3, 3, 3, 3), spread=2.5, validation=20)
    v, labels = support.validation
    right = {}
    for l2 in GRID:
        z = fit(support, l2=l2).logits(v)
        loss = torch.nn.functional.cross_entropy(z, labels)
        right[l2] = (-float((z.argmax(1) == labels).float().mean()), float(loss))
    best = min(right, key=right.__getitem__)
    chosen = _choose(rows_of(support, NAMES))
    assert right[chosen][0] == right[best][0]
    assert abs(right[chosen][1] - right[best][1]) < 1e-3


def test_one_shot_without_validation_takes_the_default():
    assert _choose(rows_of(make_support((1, 1)), NAMES[:2])) == DEFAULT
