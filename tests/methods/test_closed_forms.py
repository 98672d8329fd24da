"""GDA against a plain reading of its paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import NAMES, fit_head, make_support, make_text, unit

from ogkd.methods.feature_method import rows_of
from ogkd.methods.gda import DEFAULT, gaussian


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
