from __future__ import annotations

from functools import partial

import numpy as np
import torch
from feature_toys import NAMES, fit_head, make_support, make_text, unit

from ogkd.methods.feature_method import rows_of
from ogkd.methods.proker import _corrections, ridge

fit = partial(fit_head, "proker")


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
        fit(support, beta=beta, lam=lam).logits(v), expected, rtol=1e-4, atol=1e-3
    )


def test_a_large_lambda_is_zero_shot_and_a_small_one_interpolates():
    support, text, v = make_support(), make_text(), unit(6, 12, seed=3)
    far = fit(support, beta=1.0, lam=1e9).logits(v)
    torch.testing.assert_close(far, 30.0 * v @ text.single.T, atol=1e-4, rtol=1e-4)
    F, y = support.rows()
    near = fit(support, beta=5.0, lam=1e-6).logits(F) / 30.0
    torch.testing.assert_close(near, torch.eye(4)[y], atol=1e-3, rtol=0)


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
