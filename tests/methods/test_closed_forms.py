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
from ogkd.methods import Support, make_method
from ogkd.methods.feature_method import rows_of
from ogkd.methods.gda import DEFAULT, gaussian
from ogkd.methods.proker import _corrections, ridge
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


def test_useless_text_gets_outweighed_and_useless_images_do_not():
    # Images that say everything: the choice gives them weight. Images of noise: text decides.
    clear, noise = make_support((6,) * 4, spread=0.3), make_support((6,) * 4, spread=50.0)
    bad_text = make_text()
    bad_text.single = bad_text.single.flip(0)
    method = make_method("gda")
    held = make_support((10,) * 4, spread=0.3, seed=9)
    F, y = held.rows()
    head = method.fit(clear, bad_text, seed=1)
    assert (head.logits(F).argmax(1) == y).float().mean() > 0.9
    head = method.fit(noise, make_text(), seed=1)
    zero_shot = (F @ make_text().single.T).argmax(1) == y
    assert (head.logits(F).argmax(1) == y).sum() >= 0.8 * zero_shot.sum()


@pytest.mark.parametrize("balanced", [False, True])
def test_the_closed_form_minimises_the_objective(balanced):
    support = make_support((5, 2, 1), d=5)
    F, y = (x.double().numpy() for x in support.rows())
    y = y.astype(int)
    T = unit(3, 5, seed=8)
    N, tau = len(F), 1 / 30.0
    weights = np.full(3, 1 / N) if balanced else 1 / np.array([5.0, 2.0, 1.0])

    def objective(flat):
        w = flat.reshape(3, 5)
        fit = sum(F[i] @ w[y[i]] for i in range(N)) / (N * tau)
        return -fit + sum(weights[c] / 2 * ((w[c] - T[c].numpy()) ** 2).sum() for c in range(3))

    best = minimize(objective, np.zeros(15), method="BFGS", options={"gtol": 1e-7}).x
    w = blend(rows_of(support, NAMES[:3]), T, 30.0, balanced=balanced)
    np.testing.assert_allclose(w.flatten(), best, rtol=1e-3, atol=1e-3)


def test_repulsion_is_one_step_of_length_one_away_from_the_mean():
    support, v = make_support((2, 3, 1)), unit(6, 12, seed=3)
    T = prototypes(make_text(3).bank)
    w = blend(rows_of(support, NAMES[:3]), T, 30.0, balanced=False).numpy()
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


def test_the_grid_gives_what_single_solves_give():
    rows, T, v = rows_of(make_support(), NAMES), make_text().single, unit(6, 12, seed=3)
    corrections = _corrections(rows, v, T, (0.5, 3.0), (0.1, 7.0))
    number = 0
    for beta in (0.5, 3.0):
        K = (-beta * (1 - v.double() @ rows.features.double().T)).exp()
        for lam in (0.1, 7.0):
            expected = K @ ridge(rows, T, beta, lam)
            torch.testing.assert_close(corrections[number], expected, atol=1e-6, rtol=1e-6)
            number += 1
