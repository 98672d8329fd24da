"""Which pictures carry the class of their bag, where only bags are labelled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ogkd.methods.carriers import find_carriers, folds
from ogkd.methods.fused_choice import bag_weights

D = 24


def text_side(T: torch.Tensor, normal: tuple[int, ...]) -> Any:
    backbone = SimpleNamespace(embed_dim=D, deep_parts=(), logit_scale=20.0)
    names = tuple(f"class {c}" for c in range(len(T)))
    return SimpleNamespace(
        backbone=backbone, class_names=names, normal=normal, bank=[row.unsqueeze(0) for row in T]
    )


def planted(
    share: float, *, seed: int = 0, bags: int = 8, pictures: int = 20, common: float = 0.5
) -> tuple[torch.Tensor, ...]:
    """Rows, bags, labels of bags and what each picture shows; class 0 is normal."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 1, (3, D))
    count = max(1, round(share * pictures))
    rows, shown, labels = [], [], []
    for number in range(3 * bags):
        label = number % 3
        shows = np.where(np.arange(pictures) < count, label, 0)
        own = rng.normal(0, common, D)  # what the pictures of a bag have in common
        rows.append(means[shows] + own + rng.normal(0, 0.5, (pictures, D)))
        shown += shows.tolist()
        labels.append(label)
    T = normalize(torch.from_numpy(means + rng.normal(0, 1.0, means.shape)).float(), dim=-1)
    bag = torch.arange(3 * bags).repeat_interleave(pictures)
    return (
        torch.tensor(np.concatenate(rows)).float(),
        bag,
        torch.tensor(labels),
        T,
        torch.tensor(shown),
    )


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_planted_pictures_are_found_with_their_bags_labels_alone(share: float) -> None:
    rows, bag, labels, T, truth = planted(share)
    found = find_carriers(rows, bag, labels, text_side(T, (0,)))
    said = found > 0
    assert float((found[said] == truth[said]).double().mean()) > 0.8
    assert float((found[truth > 0] == truth[truth > 0]).double().mean()) > 0.5


def test_rounds_find_more_than_texts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, bag, labels, _, truth = planted(0.1, seed=3)
    T = normalize(torch.randn(3, D, generator=torch.Generator().manual_seed(0)), dim=-1)
    text = text_side(T, (0,))  # texts that say nothing

    def right() -> float:
        found = find_carriers(rows, bag, labels, text)
        return float((found[truth > 0] == truth[truth > 0]).double().mean())

    learned = right()
    monkeypatch.setattr("ogkd.methods.carriers.folds", lambda labels, most: None)
    assert learned > right() + 0.2


def test_pictures_are_found_although_their_bags_differ_more_than_the_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, bag, labels, _, truth = planted(0.2, seed=1, bags=4, pictures=12, common=3.0)
    T = normalize(torch.randn(3, D, generator=torch.Generator().manual_seed(0)), dim=-1)

    def right() -> float:
        found = find_carriers(rows, bag, labels, text_side(T, (0,)))
        return float((found[truth > 0] == truth[truth > 0]).double().mean())

    apart = right()
    monkeypatch.setattr(
        "ogkd.methods.carriers.usual", lambda X, bag: torch.zeros(int(bag.max()) + 1, X.shape[1])
    )
    assert apart > right() + 0.2


def test_every_bag_has_a_carrier_and_normal_bags_show_what_they_are() -> None:
    rows, bag, labels, T, _ = planted(0.1, seed=1)
    found = find_carriers(rows, bag, labels, text_side(T, (0,)))
    for number, label in enumerate(labels.tolist()):
        mine = found[bag == number]
        assert label in mine.tolist()
        assert set(mine.tolist()) <= {-1, 0, label}
        assert label or set(mine.tolist()) == {0}


def test_without_a_normal_class_nothing_else_is_claimed() -> None:
    rows, bag, labels, T, _ = planted(0.5, seed=2)
    found = find_carriers(rows, bag, labels, text_side(T, ()))
    assert set(zip(found.tolist(), labels[bag].tolist(), strict=True)) <= {
        *((c, c) for c in range(3)),
        *((-1, c) for c in range(3)),
    }


def test_one_bag_of_each_class_is_answered_by_texts() -> None:
    rows, bag, labels, T, truth = planted(0.3, bags=1)
    found = find_carriers(rows, bag, labels, text_side(T, (0,)))
    assert len(found) == len(truth)


def test_folds_have_bags_of_every_class() -> None:
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    found = folds(labels, 4)
    assert found is not None
    assert int(found.max()) == 2
    for fold in range(3):
        assert set(labels[found != fold].tolist()) == {0, 1}
    assert folds(torch.tensor([0, 0, 1]), 4) is None


def test_pictures_of_a_bag_that_show_the_same_count_as_one_image() -> None:
    shown, bag = torch.tensor([0, 0, 1, -1, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 1])
    found = bag_weights(shown, bag, 2)
    assert found.sum(0).tolist() == [1.0, 2.0]
    assert found[3].tolist() == [0.0, 0.0]
