"""Which images carry the class of their case, where only cases are labelled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ogkd.methods.carriers import find_carriers
from ogkd.methods.fused_choice import case_weights

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
