"""The fused head against a plain loop, its limits, and what cross-fitting makes of good text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from feature_toys import NAMES, make_support, make_text, unit
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from ogkd.core.geometry import prototypes
from ogkd.errors import ConfigError
from ogkd.methods import TextHead, TextSide, make_method
from ogkd.methods.feature_method import rows_of
from ogkd.methods.fused import FusedConfig, choose, experts, fuse


def fit(support, text=None, **options):
    method = make_method("fused", settings={"text": "bank", **options})
    text = make_text(int(support.labels.max()) + 1) if text is None else text
    return method.fit([support], text, seeds=[1])[0]


def plain(X, y, T, v, scale, kappa, rho, nu):
    """docs/concepts/fused.md for one image v, with loops and an explicit inverse."""
    C, N, d = len(T), len(X), X.shape[1]
    n = [int((y == c).sum()) for c in range(C)]
    mean = [X[y == c].mean(0) for c in range(C)]
    m = sum(mean) / C
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


@pytest.mark.parametrize("counts", [(4, 4, 4, 4), (1, 1, 1), (6, 1, 3)])
@pytest.mark.parametrize("kappa", [0.5, 8.0])
def test_logits_equal_a_plain_reading_of_the_equations(counts, kappa):
    X, y = make_support(counts).rows()
    T = unit(len(counts), 12, seed=9)
    both = experts(X, y, T, scale=30.0, views=1, rho=0.7, nu=3.0)
    W, b = fuse(both, kappa)
    for v in unit(5, 12, seed=4).double():
        arrays = (x.double().numpy() for x in (X, y, T, v))
        X64, y64, T64, v64 = arrays
        expected = plain(X64, y64.astype(int), T64, v64, 30.0, kappa, 0.7, 3.0)
        np.testing.assert_allclose(W @ v + b, expected, rtol=1e-6, atol=1e-6)


def test_much_text_and_no_centring_is_the_zero_shot_head():
    support, text, v = make_support(), make_text(), unit(40, 12, seed=3)
    head = fit(support, text, kappa=1e9, nu=1e9)
    expected = 30.0 * v @ prototypes(text.bank).T
    assert torch.equal(head.logits(v).argmax(1), expected.argmax(1))


def test_hardly_any_text_is_the_gaussian_head_alone():
    X, y = make_support().rows()
    both = experts(X, y, unit(4, 12, seed=9), scale=30.0, views=1, rho=1.0, nu=4.0)
    W, b = fuse(both, 1e-9)
    torch.testing.assert_close(W, both.W_visual, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(b, both.b_visual, atol=1e-6, rtol=1e-6)


def test_text_fades_as_images_come_in():
    T = unit(4, 12, seed=9)

    def share(shots):
        X, y = make_support((shots,) * 4).rows()
        both = experts(X, y, T, scale=30.0, views=1, rho=1.0, nu=4.0)
        far = both.W_text + 100.0  # how much of a change in the text arrives
        moved = type(both)(both.W_visual, both.b_visual, far, both.b_text, both.n)
        return float((fuse(moved, 2.0)[0] - fuse(both, 2.0)[0]).mean()) / 100

    assert [share(n) for n in (1, 2, 16)] == pytest.approx([2 / 3, 1 / 2, 1 / 9])


def test_one_shot_takes_the_prior_and_never_holds_out():
    rows = rows_of(make_support((1, 1, 1)), NAMES[:3])
    assert choose(rows, unit(3, 12), 30.0, FusedConfig(kappa0=3.0)) == (3.0, 1.0)


def test_useful_text_gets_more_weight_than_misleading_text():
    support = make_support((6, 6, 6, 6), spread=3.0)
    rows, centres = rows_of(support, NAMES), unit(4, 12, seed=100)
    good, _ = choose(rows, centres, 30.0, FusedConfig())
    bad, _ = choose(rows, centres.roll(1, 0), 30.0, FusedConfig())
    assert good >= 8 * bad


def test_logits_of_hard_images_are_cooled_and_of_easy_ones_not():
    T = unit(4, 12, seed=100)
    heats = [
        choose(rows_of(make_support((8,) * 4, spread=spread), NAMES), T, 30.0, FusedConfig())[1]
        for spread in (0.5, 6.0)
    ]
    assert heats[0] >= 1 > heats[1]


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


def test_equal_images_of_all_classes_leave_the_decision_to_text():
    support = make_support((2, 2))
    same = unit(1, 1, 12).expand(4, 1, 12)
    support = type(support)(type(support.views)(type(support.views.features)(same)), support.labels)
    text, v = make_text(2), unit(6, 12, seed=3)
    got = fit(support, text, nu=4.0).logits(v)
    T = prototypes(text.bank)
    # The only image there is says nothing but where the middle lies.
    expected = (T - T.mean(0)) @ (v - 4 / 8 * same[0, 0]).T
    assert torch.equal(got.argmax(1), expected.argmax(0))


PROMPTS = tuple(tuple(f"{word} {name}" for word in ("a", "the")) for name in NAMES[:3])


def ogkd_head(backbone, **options):
    settings = {"train.epochs": 2, "text_settings.lambda_lgd": 0.0, **options}
    method = make_method("fused", preset="ogkd", settings=settings)
    text = TextSide(backbone, NAMES[:3], PROMPTS)
    support = make_support((3, 3, 3), d=backbone.embed_dim)
    return method, text, method.fit([support], text, seeds=[1])[0]


def test_ogkd_as_text_side_serves_other_classes(bert_backbone):
    method, _, head = ogkd_head(bert_backbone)
    assert method.text_method.name == "ogkd"
    assert method.text_method.config.train.epochs == 2
    assert head.text.extra["context"].shape == (4, bert_backbone.text_width)
    other = method.head_for(head, TextSide(bert_backbone, ("a", NAMES[0]), (("a",), ("b",))))
    assert isinstance(other, TextHead)
    torch.testing.assert_close(other.T[1], head.text.T[0], atol=1e-5, rtol=0)


def test_blend_zero_is_the_bank_with_the_banks_weight(bert_backbone):
    _, text, head = ogkd_head(bert_backbone, blend=0.0)
    support = make_support((3, 3, 3), d=bert_backbone.embed_dim)
    torch.testing.assert_close(head.W, fit(support, text).W)
    _, _, learned = ogkd_head(bert_backbone, blend=1.0)
    assert not torch.allclose(head.W, learned.W, atol=1e-3)


def test_both_sides_come_back_from_their_tensors(bert_backbone):
    method, text, head = ogkd_head(bert_backbone)
    again = method.read_head(head.tensors(), text, bert_backbone.logit_scale)
    v = unit(5, bert_backbone.embed_dim, seed=2)
    torch.testing.assert_close(again.logits(v), head.logits(v))
    torch.testing.assert_close(again.text.logits(v), head.text.logits(v))
    alone = method.read_head(head.text.tensors(), text, bert_backbone.logit_scale)
    torch.testing.assert_close(alone.logits(v), head.text.logits(v))


def test_patches_are_asked_for_only_if_the_text_side_looks_at_them():
    assert make_method("fused", preset="ogkd").uses_patches
    assert not make_method("fused").uses_patches
    assert not make_method("fused", preset="auto").uses_patches


def test_the_mean_of_learned_and_bank_texts_is_taken(bert_backbone):
    _, text, head = ogkd_head(bert_backbone, kappa=1e9)
    bank = prototypes(text.bank)
    T = normalize(head.text.T + bank, dim=-1)
    directions = (T - T.mean(0)) / (T - T.mean(0)).norm()
    torch.testing.assert_close(head.W / head.W.norm(), directions, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text": "fused"}, "its own text side"),
        ({"text": "ogdk"}, "Did you mean 'ogkd'"),
        ({"text": "gda"}, "'gda' does not learn"),
        ({"text": "cocoop"}, "'cocoop' does not learn"),
        ({"text": "ogkd", "train.epochs": 0}, r"train\.epochs"),
    ],
)
def test_a_text_side_that_cannot_be_is_refused_before_anything_is_trained(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_method("fused", settings=settings)


def test_validation_images_are_not_looked_at():
    support = make_support((4, 4, 4))
    with_more = replace(support, validation=(unit(30, 12, seed=5), torch.arange(30) % 3))
    assert torch.equal(fit(support).W, fit(with_more).W)
