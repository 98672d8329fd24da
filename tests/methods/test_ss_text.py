from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from feature_toys import NAMES, fit_head, make_support, make_text, unit
from scipy.optimize import minimize

from ogkd.backbones.base import ImageFeatures
from ogkd.core.geometry import prototypes
from ogkd.features.views import FixedViews
from ogkd.methods import Support
from ogkd.methods.feature_method import rows_of
from ogkd.methods.ss_text import blend

fit = partial(fit_head, "ss-text+")


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


def test_a_class_with_fewer_images_leans_more_on_its_text():
    support, T = make_support((8, 1), d=12), prototypes(make_text(2).bank)
    w = blend(rows_of(support, NAMES[:2]), T, 30.0, balanced=False)
    pulls = (w - T).norm(dim=1)
    assert pulls[0] > 8 * pulls[1]


def test_repulsion_is_one_step_of_length_one_away_from_the_mean():
    support, v = make_support((2, 3, 1)), unit(6, 12, seed=3)
    T = prototypes(make_text(3).bank)
    w = blend(rows_of(support, NAMES[:3]), T, 30.0, balanced=False).numpy()
    moved = np.stack([w_c - (g := 2 * w_c - w.mean(0)) / np.linalg.norm(g) for w_c in w])
    expected = 30.0 * v.numpy() @ (moved / np.linalg.norm(moved, axis=1, keepdims=True)).T
    np.testing.assert_allclose(fit(support).logits(v), expected, rtol=1e-4, atol=1e-4)


def test_views_share_the_weight_of_their_image():
    support = make_support((2, 2), views=1)
    thrice = support.views.features.globals.repeat(1, 3, 1)
    other = Support(FixedViews(ImageFeatures(thrice, None)), support.labels)
    torch.testing.assert_close(fit(support).W, fit(other).W, atol=1e-5, rtol=1e-5)
