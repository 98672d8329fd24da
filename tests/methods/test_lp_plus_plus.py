from __future__ import annotations

from functools import partial

import numpy as np
import torch
from feature_toys import fit_head, make_support, make_text

fit = partial(fit_head, "lp++")


def plain(F, y, T, *, epochs, every, momentum):
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
        expected = plain(F.astype(float), y, text.single.double().numpy(), **settings)
        head = fit(support, **settings)
        np.testing.assert_allclose(head.W.numpy(), expected, rtol=1e-3, atol=1e-3)


def test_descent_lowers_the_loss():
    support = make_support(spread=2.0)
    F, y = support.rows()
    losses = [
        float(torch.nn.functional.cross_entropy(fit(support, epochs=n).logits(F), y))
        for n in (0, 10, 300)
    ]
    assert losses[0] > losses[1] > losses[2]


def test_the_best_epoch_on_validation_is_kept():
    support = make_support((2, 2, 2, 2), spread=2.5, validation=10)
    v, labels = support.validation

    def right(head):
        return float((head.logits(v).argmax(1) == labels).float().mean())

    without = make_support((2, 2, 2, 2), spread=2.5)
    each = [right(fit(without, epochs=n)) for n in range(1, 31)]
    assert right(fit(support, epochs=30)) == max(each)
    assert max(each) > min(each)


def test_views_of_an_image_count_as_one_in_the_start():
    support = make_support(views=3)
    F, y = support.rows()
    head = fit(support, epochs=0, alpha_scale=0.0)
    expected = torch.stack([F[y == c].sum(0) / 3 for c in range(4)])
    torch.testing.assert_close(head.W, expected)
