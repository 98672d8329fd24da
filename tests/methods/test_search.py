from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import NAMES, make_support

from ogkd.methods.feature_method import rows_of
from ogkd.methods.grid_search import _accuracy, deal, search, trials
from relative_time import units


def test_folds_hold_out_one_image_of_each_class_and_keep_views_together():
    rows = rows_of(make_support((4, 4, 4), views=3), NAMES[:3])
    folds = deal(rows, 16)
    assert sorted(folds.unique().tolist()) == [0, 1, 2, 3]
    for image in rows.case.unique():
        assert len(folds[rows.case == image].unique()) == 1
    for fold in range(4):
        assert torch.bincount(rows.labels[folds == fold]).tolist() == [3, 3, 3]


def test_one_bag_of_each_class_leaves_nothing_to_judge_by_however_many_its_pictures():
    support = make_support((3, 3))
    assert (
        deal(rows_of(replace(support, case=torch.tensor([0, 0, 0, 1, 1, 1])), NAMES[:2]), 8) is None
    )
    folds = deal(rows_of(replace(support, case=torch.tensor([0, 0, 1, 2, 2, 2])), NAMES[:2]), 8)
    assert folds.tolist() == [0, 0, 1, -1, -1, -1]


def test_validation_images_win_over_folds():
    support = make_support((3, 3), validation=5)
    (trial,) = trials(rows_of(support, NAMES[:2]))
    assert torch.equal(trial.labels, support.validation[1])
    assert len(trial.rows.labels) == 6


def test_no_row_is_learned_from_and_judged_by_at_once():
    rows = rows_of(make_support((5, 3, 2), views=2), NAMES[:3])
    held_out = trials(rows, most=4)
    assert sum(len(t.labels) for t in held_out) == len(rows.labels)
    for trial in held_out:
        apart = (trial.features[:, None] == trial.rows.features[None]).all(-1)
        assert not apart.any()


def test_search_agrees_with_a_plain_loop():
    rng = np.random.default_rng(0)
    text, extra = rng.normal(size=(9, 3)), rng.normal(size=(6, 9, 3))
    labels, weights = rng.integers(0, 3, 9), (0.1, 0.7, 2.0, 9.0)
    best = None
    for g in range(6):
        for a, weight in enumerate(weights):
            z = text + weight * extra[g]
            right = np.mean(z.argmax(1) == labels)
            log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
            key = (-right, -log_p[np.arange(9), labels].mean())
            if best is None or key < best[0]:
                best = (key, (g, a))
    chosen = search(torch.tensor(text), torch.tensor(extra), weights, torch.tensor(labels))
    assert chosen == best[1]


def test_a_grid_of_forty_thousand_takes_seconds_at_most():
    text, extra = torch.randn(128, 8), torch.randn(200, 128, 8)
    labels = torch.arange(128) % 8
    assert units(lambda: search(text, extra, tuple(range(200)), labels)) < 50  # 0.5 measured


def test_accuracies_agree_with_counting_even_where_classes_do_not_differ():
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(11, 4, generator=generator)
    extra = torch.randn(5, 11, 4, generator=generator)
    extra[0] = 0.0  # the weight changes nothing
    extra[1, :, 1:] = extra[1, :, :1]
    labels, weights = torch.arange(11) % 4, (3.0, 0.0, 0.5, 20.0)
    accuracies = _accuracy(text, extra, weights, labels)
    for g in range(5):
        for a, weight in enumerate(weights):
            right = (text + weight * extra[g]).argmax(1) == labels
            assert accuracies[g, a] == pytest.approx(float(right.double().mean()))
