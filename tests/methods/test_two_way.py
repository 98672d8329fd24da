"""Several findings in closed form, against plain loops and against `fused` with two classes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from feature_toys import unit

from ogkd.backbones.base import ImageFeatures
from ogkd.core.geometry import prototypes
from ogkd.features.views import FixedViews
from ogkd.methods import Support, make_method
from ogkd.methods.experts import Space, Texts, experts
from ogkd.methods.fused_choice import FusedConfig, ridge
from ogkd.methods.two_way import Pairs, choose, deal, prior_odds, two_way

D = 6


def toy(rows: int = 40, findings: int = 3, missing: float = 0.3, seed: int = 0) -> tuple:
    rng = torch.Generator().manual_seed(seed)
    Y = (torch.rand(rows, findings, generator=rng) < 0.4).long()
    directions = torch.randn(findings, D, generator=rng)
    X = Y.float() @ directions + torch.randn(rows, D, generator=rng)
    Y[torch.rand(rows, findings, generator=rng) < missing] = -1
    for f in range(findings):
        Y[2 * f, f], Y[2 * f + 1, f] = 1, 0
    texts = Pairs(
        torch.nn.functional.normalize(torch.randn(findings, D, generator=rng), dim=-1),
        torch.nn.functional.normalize(torch.randn(findings, D, generator=rng), dim=-1),
        scale=10.0,
        nu=16.0,
    )
    return torch.nn.functional.normalize(X, dim=-1), Y, texts


def plain(X: np.ndarray, Y: np.ndarray, texts: Pairs, new: np.ndarray, kappa: float, rho: float):
    """The docstring of two_way.py, one finding and one row at a time."""
    z = np.zeros((len(new), Y.shape[1]))
    for f in range(Y.shape[1]):
        n1, n0 = (Y[:, f] == 1).sum(), (Y[:, f] == 0).sum()
        means = [X[Y[:, f] == said].mean(0) for said in (0, 1)]
        centre, S = (means[0] + means[1]) / 2, np.zeros((D, D))
        for said, n in ((0, n0), (1, n1)):
            for x in X[Y[:, f] == said]:
                S += np.outer(x - means[said], x - means[said])
            S += n / (1 + n) * np.outer(means[said] - centre, means[said] - centre)
        S /= n1 + n0
        S += rho * np.trace(S) / (n1 + n0) * np.eye(D)
        share = 1 / (kappa * (1 / n1 + 1 / n0) / 2 + 1)
        for row, x in enumerate(new):
            seen = (x - centre) @ np.linalg.solve(S, means[1] - means[0])
            t = texts.scale * (texts.present[f] - texts.absent[f]).double().numpy()
            read = t @ x - (n1 + n0) / (n1 + n0 + texts.nu) * (t @ centre)
            z[row, f] = share * seen + (1 - share) * read
    return z


def test_the_closed_form_equals_a_plain_loop_with_answers_missing() -> None:
    X, Y, texts = toy()
    new = torch.nn.functional.normalize(torch.randn(5, D), dim=-1)
    space = Space.of(X, D)
    found = two_way(space, Y, texts, rho=0.7)
    expected = plain(X.double().numpy(), Y.numpy(), texts, new.double().numpy(), 3.0, 0.7)
    W, b = found.joined(space, 3.0, deep=False)
    # Rows are of unit length in float32.
    assert np.allclose((new.double() @ W.mT + b).numpy(), expected, atol=2e-6)


def test_one_balanced_finding_equals_fused_with_two_classes() -> None:
    X, _, texts = toy(20, 1, missing=0.0)
    Y = torch.arange(20).remainder(2).unsqueeze(1)
    space = Space.of(X, D)
    ours = two_way(space, Y, texts, rho=1.0).logits(space, 8.0)[:, 0]
    Z = torch.nn.functional.one_hot(Y[:, 0]).double()
    T = torch.cat([texts.absent, texts.present])
    theirs = experts(space, Z, Texts(T, texts.scale, texts.nu), rho=1.0).logits(space, 8.0)
    assert torch.allclose(ours, theirs[:, 1] - theirs[:, 0], atol=1e-10)


def test_several_views_of_each_image_count_as_one_image() -> None:
    X, Y, texts = toy()
    space, twice = Space.of(X, D), Space.of(X.repeat_interleave(2, 0), D)
    one = two_way(space, Y, texts, rho=1.0).logits(space, 4.0)
    two = two_way(twice, Y.repeat_interleave(2, 0), texts, rho=1.0, weight=0.5)
    assert torch.allclose(two.logits(space, 4.0), one, atol=1e-9)
    assert torch.allclose(prior_odds(Y), prior_odds(Y.repeat_interleave(2, 0), 0.5))


def test_an_image_about_which_nothing_is_known_changes_nothing() -> None:
    X, Y, texts = toy()
    more = torch.cat([X, torch.nn.functional.normalize(torch.ones(1, D), dim=-1)])
    labels = torch.cat([Y, torch.full((1, Y.shape[1]), -1)])
    space = Space.of(X, D)
    one = two_way(space, Y, texts, rho=1.0).logits(space, 4.0)
    assert torch.allclose(
        two_way(Space.of(more, D), labels, texts, rho=1.0).logits(space, 4.0), one
    )


def test_images_with_a_finding_are_dealt_evenly() -> None:
    _, Y, _ = toy(80, 4, missing=0.5)
    folds = deal(Y, 4)
    assert (folds >= 0).eq((Y >= 0).any(1)).all()
    rarest = int((Y == 1).sum(0).argmin())
    counts = torch.bincount(folds[Y[:, rarest] == 1], minlength=4)
    assert int(counts.max() - counts.min()) <= 1


def test_texts_that_know_the_answer_get_more_weight_than_texts_that_do_not() -> None:
    X, Y, texts = toy(60, 2, missing=0.2, seed=3)
    space, images = Space.of(X, D), torch.arange(len(X))
    fitted = two_way(space, Y, texts, rho=1.0)
    true = torch.nn.functional.normalize(fitted.visual[0][0], dim=-1).float()
    good = Pairs(true, -true, 10.0, 16.0)
    bad = Pairs(-true, true, 10.0, 16.0)
    chosen = [choose(space, Y, images, t, FusedConfig(), weight=1.0) for t in (good, bad)]
    assert chosen[0].kappa > chosen[1].kappa


def test_one_image_of_each_answer_leaves_the_numbers_at_their_prior() -> None:
    X, _, texts = toy(2, 1, missing=0.0)
    found = choose(
        Space.of(X, D), torch.tensor([[1], [0]]), torch.arange(2), texts, FusedConfig(), weight=1.0
    )
    assert (found.kappa, found.heat) == (8.0, 1.0)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("source", ["bank", "single"])
def test_fused_joins_them_by_what_the_support_chooses(deep, views, source) -> None:
    X, Y, _ = toy(30, 3, seed=5)
    bank, absent = ([unit(2, D, seed=10 * side + f) for f in range(Y.shape[1])] for side in (1, 2))
    more = torch.cat([unit(30 * views, w, seed=w) for w in (5, 7)], 1).unflatten(0, (30, views))
    noise = 0.2 * unit(30, views, D, seed=8)
    features = ImageFeatures(X[:, None] + noise, None, more if deep else None)
    widths = (5, 7) if deep else ()
    backbone = SimpleNamespace(logit_scale=10.0, deep_parts=widths, name="toy")
    text = SimpleNamespace(bank=bank, absent_bank=absent, backbone=backbone, findings=True)
    method = make_method("fused", settings={"text": source})
    (head,) = method.fit([Support(FixedViews(features), Y)], text, seeds=[1])

    rows = torch.nn.functional.normalize(features.rows.flatten(0, 1), dim=-1)
    said, images = Y.repeat_interleave(views, 0), torch.arange(30).repeat_interleave(views)
    some = 1 if source == "single" else 2
    texts = Pairs(
        *(prototypes([one[:some] for one in side]) for side in (bank, absent)), 10.0, 16.0
    )
    config = FusedConfig(rho=0.3 if deep else 1.0)
    space = Space.of(rows, D, widths)
    found = choose(space, said, images, texts, config, weight=1 / views)
    prior = prior_odds(Y)

    def expected(space: Space, rho: float, deep: bool, new: torch.Tensor) -> torch.Tensor:
        fitted = two_way(space, said, texts, rho=rho, weight=1 / views)
        W, b = fitted.joined(space, found.kappa, deep=deep)
        return found.heat * (new.double() @ W.mT + b) + prior

    new = unit(6, D + sum(widths), seed=3)
    close = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(
        head.logits(new).double(), expected(space, ridge(config), deep, new), **close
    )
    patches = unit(6, D, seed=4)
    flat = expected(Space.of(rows[:, :D], D), 1.0, False, patches)
    torch.testing.assert_close(head.of_patches(patches).double(), flat, **close)
    torch.testing.assert_close(head.class_texts, texts.present)
