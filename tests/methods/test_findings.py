"""Several findings: a head of two classes for each, against the method fitted by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from feature_toys import unit

from ogkd.backbones.base import ImageFeatures
from ogkd.features.views import FixedViews
from ogkd.methods import (
    FindingsHead,
    LinearHead,
    Support,
    TextHead,
    TextSide,
    fit_findings,
    make_method,
    read_findings,
)
from ogkd.methods import base as texts_of

D, DEEP = 6, (5, 7)
NAMES = ("mass", "cyst", "edema")
TEXTS = tuple((f"{name} a", f"{name} b") for name in NAMES)
ABSENT = tuple((f"no {name} a", f"no {name} b") for name in NAMES)
SEEDS = {text: seed for seed, text in enumerate(t for row in (*TEXTS, *ABSENT) for t in row)}


@pytest.fixture(autouse=True)
def encoder(monkeypatch):
    """Every text has a feature of its own."""
    monkeypatch.setattr(
        texts_of,
        "text_features",
        lambda _, texts: torch.cat([unit(1, D, seed=SEEDS[text]) for text in texts]),
    )


def toy(deep=False, views=1, images=40, missing=0.3):
    rng = torch.Generator().manual_seed(0)
    Y = (torch.rand(images, 3, generator=rng) < 0.4).long()
    directions = torch.randn(3, D, generator=rng)
    X = (Y.float() @ directions).unsqueeze(1) + torch.randn(images, views, D, generator=rng)
    more = torch.cat([unit(images, views, width, seed=width) for width in DEEP], -1)
    Y[torch.rand(images, 3, generator=rng) < missing] = -1
    features = ImageFeatures(torch.nn.functional.normalize(X, dim=-1), None, more if deep else None)
    backbone = SimpleNamespace(logit_scale=10.0, deep_parts=DEEP if deep else (), name="toy")
    return Support(FixedViews(features), Y), TextSide(backbone, NAMES, TEXTS, absent=ABSENT)


def by_hand(support, backbone, f):
    """The log-odds of one finding: two classes, on the images where it is known."""
    known = support.labels[:, f] >= 0
    features = support.views.features
    deep = None if features.deep is None else features.deep[known]
    views = FixedViews(ImageFeatures(features.globals[known], None, deep))
    labels = support.labels[known, f]
    pair = TextSide(backbone, ("absent", "present"), (ABSENT[f], TEXTS[f]))
    head = make_method("fused").fit(Support(views, labels), pair, seed=1)
    prior = torch.log((labels.sum() + 1) / ((1 - labels).sum() + 1))
    return head, prior


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("views", [1, 2])
def test_each_finding_is_the_method_with_two_classes(deep, views):
    support, text = toy(deep, views)
    head = fit_findings(make_method("fused"), support, text, seed=1)
    rows, patches = unit(9, D + sum(DEEP) * deep, seed=90), unit(9, D, seed=91)
    assert head.shape == (3, rows.shape[1])
    for f in range(3):
        inner, prior = by_hand(support, text.backbone, f)
        for ours, theirs in (
            (head.logits(rows), inner.logits(rows)),
            (head.of_patches(patches), inner.of_patches(patches)),
        ):
            torch.testing.assert_close(ours[:, f], theirs[:, 1] - theirs[:, 0] + prior)
        torch.testing.assert_close(head.class_texts[f], inner.class_texts[1])
    again = read_findings(make_method("fused"), head.tensors(), text, text.backbone.logit_scale)
    torch.testing.assert_close(again.logits(rows), head.logits(rows))
    torch.testing.assert_close(again.of_patches(patches), head.of_patches(patches))


def test_an_image_about_which_nothing_is_known_changes_nothing():
    support, text = toy()
    method, rows = make_method("fused"), unit(9, D, seed=90)
    expected = fit_findings(method, support, text, seed=1).logits(rows)
    more = torch.cat([support.views.features.globals, unit(1, 1, D, seed=7)])
    labels = torch.cat([support.labels, torch.full((1, 3), -1)])
    larger = Support(FixedViews(ImageFeatures(more, None)), labels)
    torch.testing.assert_close(fit_findings(method, larger, text, seed=1).logits(rows), expected)


def test_findings_of_linear_heads_are_one_linear_head():
    heads = tuple(LinearHead(unit(2, D, seed=f), unit(1, 2, seed=f)[0]) for f in range(3))
    head, rows = FindingsHead(heads, torch.tensor([0.5, -1.0, 2.0])), unit(4, D, seed=9)
    z = torch.stack([inner.logits(rows) for inner in heads])
    torch.testing.assert_close(head.logits(rows), (z[..., 1] - z[..., 0]).mT + head.prior)
    torch.testing.assert_close(head.weights, head.linear.W)


def test_findings_of_other_heads_are_asked_one_by_one():
    heads = tuple(TextHead(unit(2, D, seed=f), 5.0) for f in range(3))
    head, rows = FindingsHead(heads, torch.zeros(3)), unit(4, D, seed=9)
    assert head.linear is None
    torch.testing.assert_close(head.logits(rows), rows @ head.weights.mT)


def test_damaged_tensors_are_refused():
    support, text = toy()
    method, three = make_method("fused"), torch.zeros(3, D)
    tensors = fit_findings(method, support, text, seed=1).tensors()
    for changes, error in (
        ({"prior": None}, KeyError),
        ({"prior": torch.zeros(2)}, ValueError),
        ({"1.b": None}, KeyError),
        ({"1.W": three, "1.b": torch.zeros(3), "1.text.T": three}, ValueError),
    ):
        damaged = {k: v for k, v in {**tensors, **changes}.items() if v is not None}
        with pytest.raises(error):
            read_findings(method, damaged, text, 10.0)
    inner = LinearHead(torch.full((2, D), torch.nan), torch.zeros(2))
    assert FindingsHead((inner,), torch.zeros(1)).not_finite() == ["0.W"]
