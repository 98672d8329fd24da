"""The fused head against a plain loop, its limits, and what cross-fitting makes of good text."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize
from toys import NAMES, fit_head, make_support, make_text, unit

from ogkd.backbones.base import ImageFeatures
from ogkd.core.geometry import mean_texts, prototypes
from ogkd.errors import ConfigError, DataError
from ogkd.features.views import FixedViews
from ogkd.methods import Support, make_method
from ogkd.methods.experts import Experts, Space, Texts, experts, with_unlabelled
from ogkd.methods.feature_method import rows_of
from ogkd.methods.fused_choice import HEATS, FusedConfig, choose, weights
from ogkd.methods.ranking import Ranked

fit = partial(fit_head, "fused")


def plain(X, y, T, v, scale, kappa, rho, nu):
    """docs/concepts/fused.md for one image v, with loops and an explicit inverse."""
    C, N, d = len(T), len(X), X.shape[1]
    n = [int((y == c).sum()) for c in range(C)]
    seen = [X[y == c].mean(0) for c in range(C) if n[c]]
    m = sum(seen) / len(seen)
    mean = [X[y == c].mean(0) if n[c] else m for c in range(C)]
    S = np.zeros((d, d))
    for x, c in zip(X, y, strict=True):
        S += np.outer(x - mean[c], x - mean[c])
    for c in range(C):
        S += n[c] / (n[c] + 1) * np.outer(mean[c] - m, mean[c] - m)
    S /= N
    P = np.linalg.inv(S + rho * np.trace(S) / N * np.eye(d))
    out = []
    for c in range(C):
        delta = mean[c] - m
        visual = delta @ P @ (v - m) - delta @ P @ delta / 2
        text = scale * (T[c] - T.mean(0)) @ (v - N / (N + nu) * m)
        out.append((kappa * text + n[c] * visual) / (kappa + n[c]))
    return np.array(out)


def fitted(X, y, T, *, rho, nu):
    """The experts of rows on global features."""
    space = Space.of(X, X.shape[1])
    Z = torch.nn.functional.one_hot(y, len(T)).double()
    return space, experts(space, Z, Texts(T, 30.0, nu), rho=rho)


def chosen(support, T, **settings):
    rows, config = rows_of(support, NAMES[: len(T)]), FusedConfig(**settings)
    return choose(rows, Space.of(rows.features, T.shape[1]), Texts(T, 30.0, config.nu), config)


@pytest.mark.parametrize("counts", [(4, 4, 4, 4), (1, 1, 1), (6, 1, 3), (3, 0, 2, 0)])
@pytest.mark.parametrize("kappa", [0.5, 8.0])
def test_logits_equal_a_plain_reading_of_the_equations(counts, kappa):
    X, y = make_support(counts).rows()
    T = unit(len(counts), 12, seed=9)
    space, both = fitted(X, y, T, rho=0.7, nu=3.0)
    W, b = both.joined(space, kappa, deep=False)
    for v in unit(5, 12, seed=4).double():
        arrays = (x.double().numpy() for x in (X, y, T, v))
        X64, y64, T64, v64 = arrays
        expected = plain(X64, y64.astype(int), T64, v64, 30.0, kappa, 0.7, 3.0)
        np.testing.assert_allclose(W @ v + b, expected, rtol=1e-6, atol=1e-6)


def test_a_class_without_images_is_refused_unless_the_support_says_so():
    whole, text, v = make_support((4, 4, 4)), make_text(3), unit(5, 12, seed=3)
    kept = whole.labels != 1
    views = FixedViews(ImageFeatures(whole.views.features.rows[kept]))
    part = Support(views, whole.labels[kept])
    with pytest.raises(DataError, match=NAMES[1]):
        fit(part, text)
    head = fit(replace(part, allow_missing_classes=True), text)
    assert head.logits(v).isfinite().all()
    pool = replace(
        part, allow_missing_classes=True, unlabelled=whole.views.features.rows[~kept][:, 0]
    )
    assert fit(pool, text).logits(v).isfinite().all()


def test_one_shot_takes_the_prior_and_never_holds_out():
    choice = chosen(make_support((1, 1, 1)), unit(3, 12), kappa0=3.0)
    assert (choice.kappa, choice.heat) == (3.0, math.exp(0.5))


def test_useful_text_gets_more_weight_than_misleading_text():
    support = make_support((6, 6, 6, 6), spread=3.0)
    centres = unit(4, 12, seed=100)
    good, bad = chosen(support, centres).kappa, chosen(support, centres.roll(1, 0)).kappa
    assert good >= 4 * bad


def test_logits_of_hard_images_are_cooled_and_of_easy_ones_not():
    T = unit(4, 12, seed=100)
    heats = [chosen(make_support((8,) * 4, spread=spread), T).heat for spread in (0.5, 6.0)]
    usual = math.exp(0.5 - 0.25 * math.log2(8))
    assert heats[0] >= usual > heats[1]


def test_the_same_image_twice_as_views_is_that_image_once():
    once = make_support((3, 4, 5))
    twice = type(once)(
        type(once.views)(type(once.views.features)(once.views.features.globals.repeat(1, 2, 1))),
        once.labels,
    )
    a, b = fit(once), fit(twice)
    torch.testing.assert_close(a.W, b.W, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(a.b, b.b, atol=1e-4, rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.integers(0, 99))
def test_any_counts_give_finite_probabilities_whatever_the_order(counts, seed):
    support = make_support(tuple(counts), seed=seed)
    text, v = make_text(len(counts)), unit(6, 12, seed=3)
    p = fit(support, text).logits(v).softmax(-1)
    assert p.isfinite().all()
    order = torch.arange(len(counts)).roll(1)
    turned = type(support)(support.views, order.argsort()[support.labels])
    text.bank = [text.bank[c] for c in order]
    text.class_names = tuple(text.class_names[c] for c in order)
    torch.testing.assert_close(fit(turned, text).logits(v).softmax(-1), p[:, order])


def deep_support(counts, *, pool=0, classes=None, seed=0, d=12, widths=(9, 20)):
    """Rows with two deeper parts; `pool` unlabelled images of each of `classes`."""
    centres = [unit(len(counts), width, seed=50 + width) for width in (d, *widths)]

    def rows(labels, stream):
        noise = [unit(len(labels), w, seed=1000 * seed + stream + w) for w in (d, *widths)]
        parts = [
            normalize(c[labels] + 0.8 * n, dim=-1) for c, n in zip(centres, noise, strict=True)
        ]
        return parts[0], torch.cat(parts[1:], dim=1)

    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    v, deep = rows(labels, 1)
    unlabelled = None
    if pool:
        truth = torch.tensor(range(len(counts)) if classes is None else classes)
        unlabelled = ImageFeatures(*_spread(rows(truth.repeat_interleave(pool), 500))).rows
    views = FixedViews(ImageFeatures(v[:, None], None, deep[:, None]))
    return Support(views, labels, None, unlabelled), rows


def _spread(pair):
    return pair[0], None, pair[1]


def deep_text(classes, widths=(9, 20)):
    text = make_text(classes)
    text.backbone.deep_parts, text.backbone.name, text.findings = widths, "toy", False
    return text


def test_a_deep_head_is_the_mean_of_gaussian_heads_and_text():
    support, rows = deep_support((3, 4, 5))
    text, kappa = deep_text(3), 2.0
    head = fit(support, text, kappa=kappa, rho=0.5)
    v, deep = rows(torch.arange(3).repeat(4), 900)
    features = support.views.features
    parts = [features.deep[:, 0, :9], features.deep[:, 0, 9:]]
    prompts = [normalize(rows.double(), dim=-1).mean(0).numpy() for rows in text.bank]
    T = np.array([mean / np.linalg.norm(mean) ** 0.5 for mean in prompts])
    y = support.labels.numpy()
    expected = []
    for i in range(len(v)):
        visual = 0
        for part, new in zip(parts, (deep[i, :9], deep[i, 9:]), strict=True):
            x = part.double().numpy()
            sd = (x.var(0) + 0.1 * x.var(0).mean()) ** 0.5
            none = np.zeros((3, x.shape[1]))  # text without a say
            new = new.double().numpy() / sd
            visual = visual + plain(x / sd, y, none, new, 30.0, 1e-12, 0.5, 16.0) / 2
        V = features.globals[:, 0].double().numpy()
        m = np.mean([V[y == c].mean(0) for c in range(3)], axis=0)
        text_logits = 30.0 * (T - T.mean(0)) @ (v[i].double().numpy() - 12 / (12 + 16) * m)
        n = np.array([3, 4, 5])
        expected.append((kappa * text_logits + n * visual) / (kappa + n))
    got = head.logits(ImageFeatures(v, None, deep).rows).double().numpy()
    ratio = got / np.array(expected)  # the factor on logits is the only difference
    np.testing.assert_allclose(ratio, ratio.flat[0], rtol=2e-3)
    assert head.shape == (3, 12 + 29)


@pytest.mark.parametrize("even", [False, True])
def test_few_rows_in_their_span_give_the_head_of_the_whole_space(even):
    support, _ = deep_support((2, 3, 2), widths=(40, 60))
    rows = rows_of(support, NAMES[:3])
    T, Z = Texts(unit(3, 12, seed=9), 30.0, 16.0), weights(rows)
    spanned = Space.of(rows.features, 12, (40, 60), even=even)
    assert spanned.compared[0].shape == (7, 7)
    parts = [normalize(X, dim=-1) for X in rows.features[:, 12:].double().split((40, 60), dim=1)]
    spreads = [(X.var(0, correction=0) + 0.1 * X.var(0, correction=0).mean()).sqrt() for X in parts]
    scales = [s if even else torch.ones_like(s) for s in spreads]
    whole = Space(
        spanned.v,
        tuple(X / s for X, s in zip(parts, scales, strict=True)),
        tuple((1 / s).diag() for s in scales),
    )
    heads = [experts(s, Z, T, rho=0.3).joined(s, 8.0, deep=True) for s in (spanned, whole)]
    torch.testing.assert_close(heads[0][0], heads[1][0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(heads[0][1], heads[1][1], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_expectation_maximisation_equals_a_plain_loop(balance):
    support, _ = deep_support((2, 2, 3), pool=5)
    rows = rows_of(support, NAMES[:3])
    space = Space.of(torch.cat([rows.features, support.unlabelled]), 12, (9, 20))
    T, Z = Texts(unit(3, 12, seed=9), 30.0, 16.0), weights(rows)
    options = {"rho": 0.3, "kappa": 4.0, "heat": 1.5, "beta": 0.3}
    fitted_experts = with_unlabelled(space, Z, T, **options, rounds=3, balance=balance)
    known = torch.arange(len(space.v)) < len(Z)

    def shared(both):
        p = (1.5 * both.logits(space.rows(~known), 4.0)).softmax(-1)
        means = [float(sum(row[c] for row in p)) / len(p) for c in range(3)]
        odds = [[float(row[c]) / means[c] ** balance for c in range(3)] for row in p]
        return torch.tensor([[o / sum(row) for o in row] for row in odds], dtype=torch.float64)

    z = shared(experts(space.rows(known), Z, T, rho=0.3))
    for _ in range(3):
        both = torch.cat([Z, 0.3 * z])
        n = both.sum(0)
        seen = []
        for X in space.compared:
            means = both.mT @ X / n[:, None]
            m = means.mean(0)
            S = torch.zeros(X.shape[1], X.shape[1], dtype=torch.float64)
            for c in range(3):
                for row in range(len(X)):
                    S += both[row, c] * torch.outer(X[row] - means[c], X[row] - means[c])
                S += n[c] / (1 + n[c]) * torch.outer(means[c] - m, means[c] - m)
            S /= n.sum()
            ridge = 0.3 * S.trace() / n.sum()
            P = torch.linalg.inv(S + ridge * torch.eye(len(S), dtype=torch.float64))
            W = (means - m) @ P
            seen.append((W, -(W * (means - m)).sum(1) / 2 - W @ m))
        v = (both.mT @ space.v / n[:, None]).mean(0)
        plain = Experts(tuple(seen), T.expert(v, n.sum()), n)
        z = shared(plain)
    torch.testing.assert_close(fitted_experts.logits(space, 4.0), plain.logits(space, 4.0))


def test_unlabelled_images_help_where_there_is_one_label_per_class():
    better = []
    for seed in range(8):
        support, rows = deep_support((1, 1, 1), pool=40, seed=seed)
        truth = torch.arange(3).repeat_interleave(60)
        v, deep = rows(truth, 9000)
        new = ImageFeatures(v, None, deep).rows
        alone = replace(support, unlabelled=None)
        hits = [
            float((fit(s, deep_text(3)).logits(new).argmax(1) == truth).float().mean())
            for s in (alone, support)
        ]
        better.append(hits[1] - hits[0])
    assert np.mean(better) > 0.02


def test_a_large_pool_counts_no_more_than_sixteen_images_per_class():
    support, _ = deep_support((1, 1, 1), pool=80)  # 0.2 * 240 is 16 per class
    twice = replace(support, unlabelled=support.unlabelled.repeat(2, 1))
    new = unit(9, 41, seed=3)
    once, doubled = (fit(s, deep_text(3)).logits(new) for s in (support, twice))
    # Only the scale of deeper features takes every row as one.
    torch.testing.assert_close(doubled, once, atol=5e-3, rtol=0)
    other = fit(replace(support, unlabelled=support.unlabelled[::2]), deep_text(3)).logits(new)
    assert float((other - once).abs().max()) > 0.1


def test_a_pool_is_used_with_held_out_images_only_if_they_become_more_likely():
    notes = []
    for seed in range(9, 20):
        support, _ = deep_support((3, 3, 3), pool=20, seed=seed)
        rows, text = rows_of(support, NAMES[:3]), deep_text(3)
        head = fit(support, text)
        everything = torch.cat([rows.features, support.unlabelled])
        space = Space.of(everything, 12, (9, 20), even=True)
        T = Texts(mean_texts(text.bank), text.backbone.logit_scale, 16.0)
        config = FusedConfig(rho=0.3)
        small = Space.of(rows.features, 12, (9, 20), even=True)
        before = choose(rows, small, T, config, folds=4)
        with_them, without = [], []
        for fold in range(3):  # one image of each class at a time, fitted from the beginning
            out = torch.arange(9) % 3 == fold
            kept = torch.cat([~out, torch.ones(60, dtype=torch.bool)])
            options = {"rho": 0.3, "kappa": before.kappa, "heat": before.heat, "balance": 0.5}
            them = with_unlabelled(
                space.rows(kept), weights(rows)[~out], T, **options, beta=0.2, rounds=1
            )
            held = space.rows(torch.arange(69) < 9).rows(out)
            alone = experts(small.rows(~out), weights(rows)[~out], T, rho=0.3)
            with_them.append(them.logits(held, before.kappa))
            without.append(alone.logits(small.rows(out), before.kappa))

        def likelihood(heat, logits):
            return float(sum((heat * z).log_softmax(-1).diagonal().sum() for z in logits))

        usual = 0.5 - 0.25 * math.log2(3)

        def posterior(heat, logits=with_them, usual=usual):  # the factor on logits is chosen again
            return likelihood(heat, logits) - ((math.log(heat) - usual) / 0.3) ** 2 / 2

        gain = likelihood(max(HEATS, key=posterior), with_them) - likelihood(before.heat, without)
        assert bool(head.notes) == (gain < 0)
        notes.append(head.notes)
    assert any(notes)
    assert not all(notes)


def test_the_smallest_ridge_still_ranks_and_a_smaller_one_is_refused():
    support, _ = deep_support((2, 2, 2))
    features, labels = support.rows()
    head = fit(support, deep_text(3), rho=1e-6)
    ranked = Ranked(head.ranking, normalize(features, dim=-1), labels, 3)
    assert ranked.p_values(unit(5, 41, seed=3)).isfinite().all()
    with pytest.raises(ConfigError, match="rho"):
        make_method("fused", settings={"rho": 1e-308})


@pytest.mark.parametrize("texts", ["bank", "single"])
def test_classes_without_images_are_answered_by_their_texts(texts):
    text, other, v = make_text(), make_text(3), unit(5, 12, seed=3)
    head = make_method("fused", settings={"text": texts}).head_for(fit(make_support(), text), other)
    T = other.single if texts == "single" else prototypes(other.bank)
    torch.testing.assert_close(head.logits(v), 30.0 * v @ T.T)


def test_validation_images_are_not_looked_at():
    support = make_support((4, 4, 4))
    with_more = replace(support, validation=(unit(30, 12, seed=5), torch.arange(30) % 3))
    assert torch.equal(fit(support).W, fit(with_more).W)
