"""Which images carry the class of their case, where only cases are labelled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ogkd.methods.carriers import _CrossFit, find_carriers
from ogkd.methods.experts import Space, Texts, experts
from ogkd.methods.fused_choice import case_weights
from relative_time import units

D = 24


def text_side(T: torch.Tensor, normal: tuple[int, ...]) -> Any:
    backbone = SimpleNamespace(embed_dim=D, deep_parts=(), logit_scale=20.0)
    names = tuple(f"class {c}" for c in range(len(T)))
    return SimpleNamespace(
        backbone=backbone, class_names=names, normal=normal, bank=[row.unsqueeze(0) for row in T]
    )


def planted(
    share: float, *, seed: int = 0, cases: int = 8, images: int = 20, common: float = 0.5
) -> tuple[torch.Tensor, ...]:
    """Rows, cases, labels of cases and what each image shows; class 0 is normal."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 1, (3, D))
    count = max(1, round(share * images))
    rows, shown, labels = [], [], []
    for number in range(3 * cases):
        label = number % 3
        shows = np.where(np.arange(images) < count, label, 0)
        anatomy = rng.normal(0, common, D)  # what the images of a case have in common
        rows.append(means[shows] + anatomy + rng.normal(0, 0.5, (images, D)))
        shown += shows.tolist()
        labels.append(label)
    T = normalize(torch.from_numpy(means + rng.normal(0, 1.0, means.shape)).float(), dim=-1)
    case = torch.arange(3 * cases).repeat_interleave(images)
    return (
        torch.tensor(np.concatenate(rows)).float(),
        case,
        torch.tensor(labels),
        T,
        torch.tensor(shown),
    )


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_planted_images_are_found_with_their_cases_labels_alone(share: float) -> None:
    rows, case, labels, T, truth = planted(share)
    shown_by = find_carriers(rows, case, labels, text_side(T, (0,)))
    claimed = shown_by > 0
    assert float((shown_by[claimed] == truth[claimed]).double().mean()) > 0.8
    assert float((shown_by[truth > 0] == truth[truth > 0]).double().mean()) > 0.5


def test_every_case_has_a_carrier_and_normal_cases_show_what_they_are() -> None:
    rows, case, labels, T, _ = planted(0.1, seed=1)
    shown_by = find_carriers(rows, case, labels, text_side(T, (0,)))
    for number, label in enumerate(labels.tolist()):
        labels_of_case = set(shown_by[case == number].tolist())
        assert label in labels_of_case
        assert labels_of_case <= {-1, 0, label}
        assert label or labels_of_case == {0}


def test_without_a_normal_class_nothing_else_is_claimed() -> None:
    rows, case, labels, T, _ = planted(0.5, seed=2)
    shown_by = find_carriers(rows, case, labels, text_side(T, ()))
    assert set(zip(shown_by.tolist(), labels[case].tolist(), strict=True)) <= {
        *((c, c) for c in range(3)),
        *((-1, c) for c in range(3)),
    }


def test_images_of_a_case_that_show_the_same_count_as_one_image() -> None:
    shown, case = torch.tensor([0, 0, 1, -1, 1, 1]), torch.tensor([0, 0, 0, 0, 1, 1])
    shown_by = case_weights(shown, case, 2)
    assert shown_by.sum(0).tolist() == [1.0, 2.0]
    assert shown_by[3].tolist() == [0.0, 0.0]


def test_experts_are_asked_about_rows_that_they_have_not_learned_from() -> None:
    rows, case, labels, T, _ = planted(0.2)
    space = Space.of(torch.cat([rows, rows.roll(1, 1)], 1), D, (D,), even=True)
    texts, fold = Texts(T, 20.0, 16.0), torch.arange(len(labels))[case] % 4
    cross = _CrossFit(space, texts, 0.3, fold)
    rng = np.random.default_rng(0)
    for _ in range(3):  # what is kept from one round to the next changes nothing
        shown = torch.from_numpy(rng.integers(-1, 3, len(case)))
        Z = case_weights(shown, case, 3)
        expected = torch.empty_like(Z)
        for out in (fold == number for number in range(4)):
            fitted = experts(space.rows(~out), Z[~out], texts, rho=0.3)
            expected[out] = fitted.logits(space.rows(out), 8.0)
        torch.testing.assert_close(cross.logits(Z, 8.0), expected, rtol=1e-9, atol=1e-9)


def test_a_round_costs_less_than_fitting_its_experts_afresh() -> None:
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(900, 160 + 4 * 192))).float()
    case, fold = torch.arange(300).repeat_interleave(3), torch.arange(900) // 3 % 4
    T = torch.from_numpy(rng.normal(size=(4, 160))).float()
    space, texts = Space.of(rows, 160, (192,) * 4), Texts(T, 20.0, 16.0)
    cross = _CrossFit(space, texts, 0.3, fold)
    Z = case_weights(torch.arange(300)[case] % 4, case, 4)

    def afresh() -> None:
        for out in (fold == number for number in range(4)):
            experts(space.rows(~out), Z[~out], texts, rho=0.3).logits(space.rows(out), 8.0)

    cross.logits(Z, 8.0)
    assert units(lambda: cross.logits(Z, 8.0)) < 0.7 * units(afresh)
