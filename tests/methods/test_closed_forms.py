"""GDA, SS-Text+ and ProKeR against plain readings of their papers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from toys import NAMES, fit_head, make_support, make_text, unit

from ogkd.backbones.base import ImageFeatures
from ogkd.core.geometry import prototypes
from ogkd.features.views import FixedViews
from ogkd.methods import Support
from ogkd.methods.feature_method import rows_of
from ogkd.methods.gda import DEFAULT, gaussian
from ogkd.methods.ss_text import blend


@pytest.mark.parametrize("d", [6, 40])
def test_weights_agree_with_the_papers_pseudo_inverse(d):
    support = make_support((3, 4, 5), d=d, spread=1.5)
    X, y = (x.double().numpy() for x in support.rows())
    mu = np.array([X[y == c].mean(0) for c in range(3)])
    centred = np.concatenate([X[y == c] - mu[c] for c in range(3)])
    S = np.cov(centred.T)
    P = d * np.linalg.pinv((len(X) - 1) * S + np.trace(S) * np.eye(d))
    W, b = gaussian(rows_of(support, NAMES[:3]))
    np.testing.assert_allclose(W, mu @ P, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(b, -np.einsum("kd,de,ke->k", mu, P, mu) / 2, rtol=1e-6, atol=1e-5)


def test_one_image_of_each_class_gives_nearest_means_and_the_default_weight():
    support, text, v = make_support((1, 1, 1)), make_text(3), unit(50, 12, seed=3)
    F, _ = support.rows()
    W, b = gaussian(rows_of(support, NAMES[:3]))
    z = v.double() @ W.T + b
    assert torch.equal(z.argmax(1), torch.cdist(v, F).argmin(1))
    expected = 30.0 * v.double() @ text.single.double().T + DEFAULT * z
    torch.testing.assert_close(
        fit_head("gda", support).logits(v).double(), expected, atol=1e-3, rtol=0
    )


def test_the_closed_form_minimises_the_objective():
    support = make_support((5, 2, 1), d=5)
    F, y = (x.double().numpy() for x in support.rows())
    y = y.astype(int)
    T = unit(3, 5, seed=8)
    N, tau = len(F), 1 / 30.0
    weights = 1 / np.array([5.0, 2.0, 1.0])

    def objective(flat):
        w = flat.reshape(3, 5)
        fit = sum(F[i] @ w[y[i]] for i in range(N)) / (N * tau)
        return -fit + sum(weights[c] / 2 * ((w[c] - T[c].numpy()) ** 2).sum() for c in range(3))

    best = minimize(objective, np.zeros(15), method="BFGS", options={"gtol": 1e-7}).x
    w = blend(rows_of(support, NAMES[:3]), T, 30.0)
    np.testing.assert_allclose(w.flatten(), best, rtol=1e-3, atol=1e-3)


def test_repulsion_is_one_step_of_length_one_away_from_the_mean():
    support, v = make_support((2, 3, 1)), unit(6, 12, seed=3)
    T = prototypes(make_text(3).bank)
    w = blend(rows_of(support, NAMES[:3]), T, 30.0).numpy()
    moved = np.stack([w_c - (g := 2 * w_c - w.mean(0)) / np.linalg.norm(g) for w_c in w])
    expected = 30.0 * v.numpy() @ (moved / np.linalg.norm(moved, axis=1, keepdims=True)).T
    np.testing.assert_allclose(
        fit_head("ss-text+", support).logits(v), expected, rtol=1e-4, atol=1e-4
    )


def test_views_share_the_weight_of_their_image():
    support = make_support((2, 2), views=1)
    thrice = support.views.features.globals.repeat(1, 3, 1)
    other = Support(FixedViews(ImageFeatures(thrice, None)), support.labels)
    torch.testing.assert_close(
        fit_head("ss-text+", support).W, fit_head("ss-text+", other).W, atol=1e-5, rtol=1e-5
    )


def test_predictions_agree_with_a_direct_linear_solve():
    support, text, v = make_support((3, 2, 4)), make_text(3), unit(7, 12, seed=3)
    S, y = (x.double().numpy() for x in support.rows())
    T, Y = text.single.double().numpy(), np.eye(3)[y.astype(int)]
    beta, lam = 2.0, 0.3

    def kernel(a, b):
        gaps = ((a[:, None] - b[None]) ** 2).sum(-1)
        return np.exp(-beta * gaps / 2)  # |a - b|^2 = 2 (1 - a'b) on the sphere

    A = np.linalg.solve(kernel(S, S) + lam * np.eye(len(S)), Y - S @ T.T)
    x = v.double().numpy()
    expected = 30.0 * (x @ T.T + kernel(x, S) @ A)
    np.testing.assert_allclose(
        fit_head("proker", support, beta=beta, lam=lam).logits(v), expected, rtol=1e-4, atol=1e-3
    )
