"""Ranks in the support: against plain refits, by symmetry, and by counting broken promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ogkd.methods.ranking import Ranked, Ranking
from relative_time import units

D, WIDTHS = 5, (4, 6)


def problem(seed, counts, *, new=20, apart=0.7):
    """Support rows, labels, new rows and their labels, of overlapping classes."""
    rng = torch.Generator().manual_seed(seed)
    C, w = len(counts), D + sum(WIDTHS)
    centres = 1 + apart * torch.randn(C, w, generator=rng)
    labels = torch.arange(C).repeat_interleave(torch.tensor(counts))
    truth = torch.randint(C, (new,), generator=rng)
    draw = centres[torch.cat([labels, truth])]
    rows = (draw + torch.randn(draw.shape, generator=rng)).double()
    T = normalize(torch.randn(C, D, generator=rng), dim=-1)
    fixed = Ranking(T, scale=5.0, nu=16.0, kappa=8.0, ridge=0.3, d=D, widths=WIDTHS)
    return fixed, rows[: len(labels)], labels, rows[len(labels) :], truth


def plain_score(fixed, rows, labels, i):
    """-log p of image i's class by the head of all other images, with an explicit inverse."""
    kept = torch.arange(len(rows)) != i
    y, C, N = labels[kept], int(labels.max()) + 1, len(rows) - 1
    v, parts = fixed.parts(rows)
    n = torch.bincount(y, minlength=C)
    seen = torch.zeros(C, dtype=torch.float64)
    for part in parts:
        X, x = part[kept], part[i]
        means = torch.stack([X[y == c].mean(0) for c in range(C)])
        within = X - means[y]
        S = (within.mT @ within + fixed.ridge * torch.eye(X.shape[1])) / N
        delta = means - means.mean(0)
        W = delta @ torch.linalg.inv(S)
        seen += (W @ (x - means.mean(0)) - (W * delta).sum(1) / 2) / len(parts)
    share = n / (n + fixed.kappa)
    T = fixed.scale * (fixed.T - fixed.T.mean(0)).double()
    m = torch.stack([v[kept][y == c].mean(0) for c in range(C)]).mean(0)
    text = T @ (v[i] - N / (N + fixed.nu) * m)
    return -(share * seen + (1 - share) * text).log_softmax(-1)[labels[i]]


@pytest.mark.parametrize("change", [{}, {"widths": ()}])
def test_ranks_are_those_of_plain_refits(change):
    fixed, rows, labels, new, _ = problem(1, (5, 7, 3))
    fixed = replace(fixed, **change)
    if not fixed.widths:
        rows, new = rows[:, :D], new[:, :D]
    p_values = Ranked(fixed, rows, labels, 3).p_values(new)
    assert len(p_values.unique()) > 5
    for x, shares in zip(new, p_values, strict=True):
        for y in range(3):
            both = torch.cat([rows, x.unsqueeze(0)])
            both_labels = torch.cat([labels, torch.tensor([y])])
            of_class = [i for i in range(len(both)) if both_labels[i] == y]
            scores = torch.stack([plain_score(fixed, both, both_labels, i) for i in of_class])
            assert shares[y] == (scores >= scores[-1] - 1e-9).float().mean()


def test_new_image_and_support_image_change_places():
    """Symmetric: which of the images of a class is the new one does not change their ranks."""
    fixed, rows, labels, new, _ = problem(3, (6, 8))
    pool = torch.cat([rows[labels == 0], new[:1]])
    shares = []
    for i in range(len(pool)):
        others = torch.cat([pool[torch.arange(len(pool)) != i], rows[labels == 1]])
        shares.append(Ranked(fixed, others, labels, 2).p_values(pool[i : i + 1])[0, 0])
    # Seven different images have the seven ranks.
    torch.testing.assert_close(torch.stack(shares).sort().values, torch.arange(1.0, 8) / 7)


@pytest.mark.parametrize(("n", "coverage"), [(9, 0.9), (12, 0.8), (4, 0.8)])
@pytest.mark.parametrize("apart", [0.1, 1.0])
def test_promises_are_kept_within_every_class(n, coverage, apart):
    """Many small problems, each with its own support; other classes have other numbers."""
    held, seen = np.zeros(3), np.zeros(3)
    for seed in range(400):
        fixed, rows, labels, new, truth = problem(1000 + seed, (n, n, 2), new=6, apart=apart)
        inside = Ranked(fixed, rows, labels, 3).p_values(new) > 1 - coverage + 1e-9
        for y in range(3):
            of_class = truth == y
            # Images that share a support are not independent: one of each class counts.
            if of_class.any():
                held[y] += bool(inside[of_class][0, y])
                seen[y] += 1
    error = (coverage * (1 - coverage) / seen) ** 0.5
    assert np.all(held / seen >= coverage - 3 * error)
    assert held[2] == seen[2]  # too few images to ever be left out
    exact = np.floor(coverage * (n + 1) + 1e-9) / (n + 1)
    if exact == coverage:  # then it is not larger than need be, either
        assert np.all(held[:2] / seen[:2] <= coverage + 3 * error[:2])


def test_sixteen_images_of_eight_classes_take_milliseconds():
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(8).repeat_interleave(16)
    rows = torch.randn(128 + 32, 512 + 7 * 384, generator=rng)
    fixed = Ranking(rows[:8, :512], 30.0, 16.0, 8.0, 0.03, 512, (384,) * 7)
    ranked = Ranked(fixed, rows[:128], labels, 8)
    assert units(lambda: ranked.p_values(rows[128:])) < 20  # for 32 images; 0.7 measured
