from __future__ import annotations

import numpy as np
import pytest
import torch
from feature_toys import fit_head, make_support, unit
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC


@pytest.mark.parametrize("counts", [(5, 3), (4, 2, 5)])
def test_logistic_gives_scikit_learns_probabilities(counts):
    support, v = make_support(counts, spread=1.5), unit(12, 12, seed=3)
    X, y = (x.numpy() for x in support.rows())
    model = LogisticRegression(C=100.0, tol=1e-8, max_iter=5000).fit(X.astype(float), y)
    p = fit_head("logistic", support).logits(v).softmax(1)
    np.testing.assert_allclose(p, model.predict_proba(v.double().numpy()), atol=5e-4)


def test_logistic_is_the_linear_probe_of_the_same_strength():
    support, v = make_support((4, 2, 5), spread=1.5), unit(12, 12, seed=3)
    p = fit_head("logistic", support, C=2.0).logits(v).softmax(1)
    other = fit_head("linear-probe", support, l2=1 / (2.0 * 11)).logits(v).softmax(1)
    torch.testing.assert_close(p, other, atol=1e-4, rtol=0)


@pytest.mark.parametrize("counts", [(5, 3), (4, 2, 5)])
def test_svm_decides_as_scikit_learns_dual_solver(counts):
    support, v = make_support(counts, spread=1.5), unit(60, 12, seed=3)
    X, y = (x.numpy() for x in support.rows())
    model = LinearSVC(C=1.0, dual=True, tol=1e-8, max_iter=200000, random_state=0)
    expected = model.fit(X.astype(float), y).predict(v.double().numpy())
    assert np.array_equal(fit_head("svm", support).logits(v).argmax(1), expected)


def test_svm_minimises_the_squared_hinge():
    support = make_support((4, 4), d=5, spread=1.5)
    X, y = (x.double().numpy() for x in support.rows())
    sign = np.where(y == 1, 1.0, -1.0)

    def loss(theta):  # liblinear counts the bias among the weights
        margin = np.maximum(0, 1 - sign * (X @ theta[:-1] + theta[-1]))
        return theta @ theta / 2 + (margin**2).sum()

    best = minimize(loss, np.zeros(6), method="BFGS", options={"gtol": 1e-8}).x
    head = fit_head("svm", support, sharpness=1.0)
    theta = torch.cat([head.W[1] - head.W[0], (head.b[1] - head.b[0]).view(1)])
    np.testing.assert_allclose(theta, best, atol=1e-4)


def test_balanced_weights_change_unequal_classes():
    support, v = make_support((9, 2), spread=2.5), unit(200, 12, seed=3)
    for name in ("logistic", "svm"):
        plain = (fit_head(name, support).logits(v).argmax(1) == 1).sum()
        balanced = (fit_head(name, support, class_weight="balanced").logits(v).argmax(1) == 1).sum()
        assert balanced > plain
