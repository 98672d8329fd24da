from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from feature_toys import NAMES, fit_head, make_support, make_text, unit
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from ogkd.methods import make_method
from ogkd.methods.feature_method import rows_of
from ogkd.methods.gda import DEFAULT, gaussian

fit = partial(fit_head, "gda")


def test_identity_covariance_is_the_nearest_mean_plus_text():
    support, text, v = make_support(spread=2.0), make_text(), unit(50, 12, seed=3)
    F, y = support.rows()
    means = torch.stack([F[y == c].mean(0) for c in range(4)])
    head = fit(support, covariance="identity", alpha=2.0)
    # -|v - mu|^2 / 2 differs from v'mu - |mu|^2 / 2 by a number that is the same for all classes.
    expected = 30.0 * v @ text.single.T - 2.0 * torch.cdist(v, means).square() / 2
    got = head.logits(v)
    torch.testing.assert_close(got - got[:, :1], expected - expected[:, :1], atol=1e-4, rtol=0)
    W, b = gaussian(rows_of(support, NAMES), covariance="identity")
    near = torch.cdist(v.double(), means.double()).argmin(1)
    assert torch.equal((v.double() @ W.T + b).argmax(1), near)


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


def test_with_many_images_it_decides_as_linear_discriminant_analysis():
    support = make_support((400, 400, 400), d=6, spread=2.0)
    X, y = (x.double().numpy() for x in support.rows())
    v = unit(300, 6, seed=3).double()
    lda = LinearDiscriminantAnalysis(solver="lsqr").fit(X, y)
    W, b = gaussian(rows_of(support, NAMES[:3]))
    agree = (v @ W.T + b).argmax(1).numpy() == lda.predict(v.numpy())
    assert agree.mean() > 0.98


def test_one_image_of_each_class_gives_nearest_means_and_the_default_weight():
    support, text, v = make_support((1, 1, 1)), make_text(3), unit(50, 12, seed=3)
    F, _ = support.rows()
    W, b = gaussian(rows_of(support, NAMES[:3]))
    z = v.double() @ W.T + b
    assert torch.equal(z.argmax(1), torch.cdist(v, F).argmin(1))
    expected = 30.0 * v.double() @ text.single.double().T + DEFAULT * z
    torch.testing.assert_close(fit(support).logits(v).double(), expected, atol=1e-3, rtol=0)


def test_identical_images_do_not_break_it():
    support = make_support((2, 2), spread=0.0)
    assert fit(support).logits(unit(3, 12)).isfinite().all()


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
