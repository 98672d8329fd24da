from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    cohen_kappa_score,
    f1_score,
    precision_recall_fscore_support,
    recall_score,
    roc_auc_score,
)
from sklearn.metrics import confusion_matrix as sklearn_confusion_matrix

from ogkd.evaluation import summary_metrics
from ogkd.evaluation.metrics import (
    auroc,
    class_columns,
    confusion_matrix,
    screening_columns,
    summary_columns,
)

NAMES = ["a", "b", "c", "d"]


def one_hot(said):
    return np.eye(len(NAMES))[said]


answers = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


@settings(deadline=None)
@given(answers)
def test_classes_that_never_occur_or_are_never_predicted_are_those_of_scikit_learn(pairs):
    truth, predicted = map(np.array, zip(*pairs, strict=True))
    table = confusion_matrix(truth, predicted, len(NAMES))
    numbers = range(len(NAMES))
    assert (table == sklearn_confusion_matrix(truth, predicted, labels=numbers)).all()
    expected = precision_recall_fscore_support(truth, predicted, labels=numbers, zero_division=0)
    columns = class_columns(table)
    for key, values in zip(("precision", "recall", "f1"), expected, strict=False):
        assert np.nan_to_num(columns[key]) == pytest.approx(values)
    assert np.isnan(columns["recall"]).tolist() == [c not in truth for c in numbers]
    summary = summary_metrics(truth, one_hot(predicted))
    assert summary["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert {type(value) for value in summary.values()} == {float}


def draw(count, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, classes, count), rng.dirichlet([0.7] * classes, count).round(2)


@pytest.mark.parametrize("seed", range(5))
def test_the_summary_is_that_of_scikit_learn(seed):
    labels, p = draw(120, seed=seed)
    p /= p.sum(axis=1, keepdims=True)
    said = p.argmax(axis=1)
    found = summary_metrics(labels, p, graded=range(4))
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, said))
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, said))
    assert found["macro_f1"] == pytest.approx(f1_score(labels, said, average="macro"))
    assert found["auroc"] == pytest.approx(roc_auc_score(labels, p, multi_class="ovr"))
    kappa = cohen_kappa_score(labels, said, weights="quadratic")
    assert found["kappa"] == pytest.approx(kappa)
    assert "kappa" not in summary_metrics(labels, p)
    assert "kappa" not in summary_columns(confusion_matrix(labels, said, 4))


def test_grades_in_another_order_change_kappa_alone():
    grades, p = draw(200, classes=5, seed=3)
    p[np.arange(200), grades] += 0.3
    p /= p.sum(axis=1, keepdims=True)
    order = (1, 0, 4, 2, 3)  # the label of each grade: no inverse of itself
    label_of = np.array(order)
    columns = np.empty_like(p)
    columns[:, label_of] = p
    found = summary_metrics(label_of[grades], columns, graded=order)
    kappa = cohen_kappa_score(grades, p.argmax(axis=1), weights="quadratic")
    assert found["kappa"] == pytest.approx(kappa)
    plain, as_given = (summary_metrics(label_of[grades], columns, graded=g) for g in ((), range(5)))
    assert as_given["kappa"] != pytest.approx(kappa, abs=0.01)
    assert {key: value for key, value in found.items() if key != "kappa"} == plain


def test_auroc_is_the_mean_over_the_classes_that_occur():
    labels, p = draw(60, classes=3)
    labels = labels % 2
    areas = [roc_auc_score(labels == c, p[:, c]) for c in (0, 1)]
    assert summary_metrics(labels, p)["auroc"] == pytest.approx(np.mean(areas))
    assert np.isnan(summary_metrics(np.zeros(60, int), p)["auroc"])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3)), min_size=1))
def test_weighted_auroc_is_that_of_repeated_images(rows):
    marks, scores, times = (np.array(column) for column in zip(*rows, strict=True))
    found = auroc(marks, scores, np.stack([times, times]).astype(float))
    marks, scores = marks.repeat(times), scores.repeat(times)
    if len(set(marks.tolist())) < 2:
        assert np.isnan(found).all()
        return
    assert found.tolist() == pytest.approx([roc_auc_score(marks, scores)] * 2)


def test_specificity_is_the_share_of_other_images_that_are_not_called_so():
    labels, p = draw(150, seed=8)
    said = p.argmax(axis=1)
    found = class_columns(confusion_matrix(labels, said, 4))["specificity"]
    for c in range(4):
        assert found[c] == pytest.approx(recall_score(labels != c, said != c))


ONE = np.ones((1, 200))


def test_disease_against_normal_is_a_two_class_problem():
    rng = np.random.default_rng(0)
    labels, p = rng.integers(0, 4, 200), rng.dirichlet([1] * 4, 200)
    columns = {key: value[0] for key, value in screening_columns(labels, p, (1, 3), ONE).items()}
    ill = np.isin(labels, (0, 2))
    flagged = np.isin(p.argmax(1), (0, 2))
    assert columns["sensitivity"] == pytest.approx(recall_score(ill, flagged))
    assert columns["specificity"] == pytest.approx(recall_score(~ill, ~flagged))
    assert columns["auroc"] == pytest.approx(roc_auc_score(ill, p[:, 0] + p[:, 2]))
