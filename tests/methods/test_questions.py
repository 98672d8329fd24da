"""Each question of a task is the method fitted by itself; findings join them as log-odds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toys import unit

from ogkd.backbones.base import ImageFeatures
from ogkd.data.case import Case
from ogkd.data.tasks import Findings
from ogkd.features.views import FixedViews
from ogkd.fitting.cases import CaseSupport, learn
from ogkd.images import ImageRef
from ogkd.methods import (
    METHODS,
    FindingsHead,
    LinearHead,
    Support,
    TextHead,
    TextSide,
    base,
    join_heads,
    make_method,
    read_head,
)

D, DEEP = 6, (5, 7)
TASK = Findings(("mass", "cyst", "edema"))


@pytest.fixture(autouse=True)
def encoder(monkeypatch):
    """Every text has a feature of its own."""
    monkeypatch.setattr(
        base,
        "text_features",
        lambda _, texts: torch.cat([unit(1, D, seed=sum(map(ord, text))) for text in texts]),
    )


def toy(deep=False, views=1, images=40, missing=0.3):
    """A support with findings that are partly unknown, and the texts of each question."""
    rng = torch.Generator().manual_seed(0)
    Y = (torch.rand(images, 3, generator=rng) < 0.4).long()
    directions = torch.randn(3, D, generator=rng)
    X = (Y.float() @ directions).unsqueeze(1) + torch.randn(images, views, D, generator=rng)
    more = torch.cat([unit(images, views, width, seed=width) for width in DEEP], -1)
    Y[torch.rand(images, 3, generator=rng) < missing] = -1
    features = ImageFeatures(torch.nn.functional.normalize(X, dim=-1), None, more if deep else None)
    backbone = SimpleNamespace(logit_scale=10.0, deep_parts=DEEP if deep else (), name="toy")
    texts = [
        TextSide(backbone, names, tuple((f"{name} a", f"{name} b") for name in names), (0,))
        for names in TASK.question_names()
    ]
    return Support(FixedViews(features), Y), texts


def fitted(name, support, texts):
    cases = [
        Case.single(ImageRef.of(f"{n}.png"), tuple(row))
        for n, row in enumerate(support.labels.tolist())
    ]
    given = CaseSupport.of(TASK, cases, support, torch.empty(len(cases), 0))
    head, poolings = learn(make_method(name), given, TASK, texts, seed=1)
    assert poolings == ()
    return head


def by_hand(name, support, text, f):
    """One finding: two classes, on the images where it is known."""
    known = support.labels[:, f] >= 0
    features = support.views.features
    deep = None if features.deep is None else features.deep[known]
    views = FixedViews(ImageFeatures(features.globals[known], None, deep))
    labels = support.labels[known, f]
    head = make_method(name).fit(Support(views, labels), text, seed=1)
    return head, torch.log((labels.sum() + 1) / ((1 - labels).sum() + 1))


@pytest.mark.parametrize("name", sorted(n for n, m in METHODS.items() if "findings" in m.supports))
@pytest.mark.parametrize(("deep", "views"), [(False, 1), (False, 2), (True, 1)])
def test_each_finding_is_the_method_with_two_classes(name, deep, views):
    support, texts = toy(deep, views)
    head = fitted(name, support, texts)
    rows = unit(9, D + sum(DEEP) * deep, seed=90)
    assert head.shape == (3, rows.shape[1])
    for f, text in enumerate(texts):
        inner, prior = by_hand(name, support, text, f)
        joined, alone = head.logits(rows), inner.logits(rows)
        torch.testing.assert_close(joined[:, f], alone[:, 1] - alone[:, 0] + prior)
        torch.testing.assert_close(head.class_texts[f], inner.class_texts[1])
    again = read_head(make_method(name), head.tensors(), TASK, texts[0].backbone, 10.0)
    torch.testing.assert_close(again.logits(rows), head.logits(rows))


@pytest.mark.parametrize("linear", [True, False])
def test_joined_heads_give_log_odds_and_the_frequency_of_each_finding(linear):
    heads = [
        LinearHead(unit(2, D, seed=f), unit(1, 2, seed=f)[0])
        if linear
        else TextHead(unit(2, D, seed=f), 5.0)
        for f in range(3)
    ]
    head, rows = join_heads(TASK, heads, [(9, 0), (1, 3), (4, 4)]), unit(4, D, seed=9)
    assert (head.linear is not None) == linear
    z = torch.stack([inner.logits(rows) for inner in heads])
    prior = torch.tensor(np.log([1 / 10, 4 / 2, 1.0])).float()
    torch.testing.assert_close(head.logits(rows), (z[..., 1] - z[..., 0]).mT + prior)
    slope = head.logits(rows) - head.logits(torch.zeros(1, D))
    torch.testing.assert_close(slope, rows @ head.weights.mT, atol=1e-5, rtol=1e-5)


def test_damaged_tensors_are_refused():
    support, texts = toy()
    method, three = make_method("fused"), torch.zeros(3, D)
    tensors = fitted("fused", support, texts).tensors()
    for changes, error in (
        ({"prior": None}, KeyError),
        ({"prior": torch.zeros(2)}, ValueError),
        ({"1.b": None}, KeyError),
        ({"1.W": three, "1.b": torch.zeros(3), "1.text.T": three}, ValueError),
    ):
        damaged = {k: v for k, v in {**tensors, **changes}.items() if v is not None}
        with pytest.raises(error):
            read_head(method, damaged, TASK, texts[0].backbone, 10.0)
    inner = LinearHead(torch.full((2, D), torch.nan), torch.zeros(2))
    assert FindingsHead((inner,), torch.zeros(1)).not_finite() == ["0.W"]
