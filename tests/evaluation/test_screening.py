from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import recall_score, roc_auc_score

from ogkd.evaluation.metrics import screening_columns

ONE = np.ones((1, 200))


def test_disease_against_normal_is_a_two_class_problem():
    rng = np.random.default_rng(0)
    labels, p = rng.integers(0, 4, 200), rng.dirichlet([1] * 4, 200)
    found = {key: value[0] for key, value in screening_columns(labels, p, (1, 3), ONE).items()}
    ill = np.isin(labels, (0, 2))
    said = np.isin(p.argmax(1), (0, 2))
    assert found["sensitivity"] == pytest.approx(recall_score(ill, said))
    assert found["specificity"] == pytest.approx(recall_score(~ill, ~said))
    assert found["auroc"] == pytest.approx(roc_auc_score(ill, p[:, 0] + p[:, 2]))


def test_a_disease_called_another_disease_counts_as_found():
    p = np.eye(3)[[1, 2, 0]]
    found = screening_columns([2, 1, 0], p, (0,), np.ones((1, 3)))
    assert found["sensitivity"][0] == found["specificity"][0] == 1.0


def test_without_normal_images_nothing_is_said_about_them():
    found = screening_columns([1, 2], np.eye(3)[[1, 0]], (0,), np.ones((1, 2)))
    assert found["sensitivity"][0] == 0.5
    assert np.isnan(found["specificity"][0])
    assert np.isnan(found["auroc"][0])
