from __future__ import annotations

import numpy as np
import pytest

from ogkd.backbones import load_backbone
from ogkd.data.tasks import OneOf
from ogkd.fitting.prepare import text_sides
from ogkd.model.calibration import CalibratedSets
from ogkd.model.familiarity import SupportFeatures
from ogkd.model.scaling import fit_temperature
from ogkd.model.support_sets import SupportSets
from ogkd.serve.studio.fit import Judged, Snapshot, fit_head, fit_labels, hold_out, judge, logits_of


@pytest.fixture(scope="module")
def text():
    [text] = text_sides(load_backbone("builtin"), OneOf(("cyst", "mass", "nothing")), None)
    return text


def toy(text, per_class=6, *, noise=0.3, seed=0):
    """Features of three clusters in the backbone's space, and their labels."""
    rng = np.random.default_rng(seed)
    width = text.backbone.embed_dim
    centres = rng.normal(size=(3, width))
    y = np.repeat(np.arange(3), per_class)
    X = centres[y] + noise * rng.normal(size=(len(y), width))
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), y.astype(np.int64)


def test_until_two_classes_have_an_image_the_texts_answer(text):
    X, y = toy(text)
    expected = (
        text.backbone.logit_scale
        * X
        @ np.stack([bank.mean(0).numpy() / np.linalg.norm(bank.mean(0)) for bank in text.bank]).T
    )
    logits = logits_of(fit_head(X[:0], y[:0], text), X)
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    of_one_class = logits_of(fit_head(X[y < 1], y[y < 1], text), X)
    np.testing.assert_array_equal(of_one_class, logits)


def test_two_classes_with_images_are_told_apart_before_the_third_has_one(text):
    X, y = toy(text)
    logits = logits_of(fit_head(X[y < 2][::2], y[y < 2][::2], text), X)
    assert (logits[y < 2, :2].argmax(axis=1) == y[y < 2]).all()
    assert np.isfinite(logits).all()  # in the third one's place stands what its texts say


def test_unlabelled_images_are_learned_from_and_images_of_another_kind_are_not(text):
    X, y = toy(text, 20, noise=1.2)
    first = np.arange(60) % 20 < 2
    alone = logits_of(fit_head(X[first], y[first], text), X[~first])
    more = logits_of(fit_head(X[first], y[first], text, X[~first]), X[~first])
    assert not np.allclose(alone, more, atol=0.1)
    strange = -X[~first] + 5
    same = logits_of(fit_head(X[first], y[first], text, strange.astype(np.float32)), X[~first])
    np.testing.assert_array_equal(same, alone)


def test_each_image_is_judged_by_a_head_that_has_not_seen_it(text):
    X, y = toy(text, 3)
    held, logits = hold_out(X, y, text)
    assert held.tolist() == list(range(9))
    row = 7
    alone = fit_head(np.delete(X, row, 0), np.delete(y, row), text)
    np.testing.assert_allclose(logits[row], logits_of(alone, X[[row]])[0], rtol=1e-5)


def test_images_of_one_patient_are_held_out_together(text):
    X, y = toy(text)
    groups = [f"p{row // 2}" for row in range(18)]
    _, logits = hold_out(X, y, text, groups)
    kept = np.array([row for row in range(18) if groups[row] != "p3"])
    alone = fit_head(X[kept], y[kept], text)
    np.testing.assert_allclose(logits[6], logits_of(alone, X[[6]])[0], rtol=1e-5)


def test_a_label_held_out_is_one_of_the_unlabelled_images(text):
    X, y = toy(text, 12, noise=0.9)
    first = np.arange(36) % 12 < 3
    _, logits = hold_out(X[first], y[first], text, None, X[~first])
    row = 4
    rest = np.concatenate([X[~first], X[first][[row]]])
    alone = fit_head(np.delete(X[first], row, 0), np.delete(y[first], row), text, rest)
    np.testing.assert_allclose(logits[row], logits_of(alone, X[first][[row]])[0], rtol=1e-4)


def everything(text, X, y, *, labelled, order=None):
    labels = np.where(labelled, y, -1)
    keys, rows = [f"{row:016x}" for row in range(len(X))], range(len(X))
    images = Snapshot(X, np.ones(len(X), bool), labels, order or rows, keys, [None] * len(X))
    fitted = fit_labels(images, text)
    return fitted.trusting(judge(fitted, images, text), X)


def test_accuracy_is_of_the_random_sample_once_it_is_large_enough(text):
    X, y = toy(text, 13)
    wrong = y.copy()
    wrong[:4] = 1  # hard images that the queue asked for
    labelled = np.arange(39) < 38  # the sample ends with the first open image of the order
    for size, expected in ((20, (True, 20, 1.0)), (6, (False, 38, None))):
        order = [*range(38 - size, 39), *range(38 - size)]
        judged = everything(text, X, wrong, labelled=labelled, order=order).judged
        assert (judged.fair, len(judged.counted)) == expected[:2]
        assert judged.accuracy == expected[2] or judged.accuracy < 1
        assert (f"{size} random images" in judged.basis) == judged.fair


def judgement(labels, answers, random=()):
    logits = 4 * np.eye(3, dtype=np.float32)[answers]
    drawn = np.isin(np.arange(len(labels)), random)
    rows = np.arange(len(labels))
    return Judged(rows, np.array(labels), logits, drawn, len(labels), ("cyst", "mass", "stone"))


def test_the_weakest_class_is_that_of_the_smallest_recall_with_five_checked_images():
    labels, answers = [0] * 6 + [1] * 5 + [2] * 4, [0] * 5 + [1] + [1] * 3 + [0] * 2 + [0] * 4
    judged = judgement(labels, answers)
    assert "mass, of which it recognised 60 % of 5" in judged.weakest  # of the third: four images
    assert judged.accuracy == 8 / 15
    random = judgement(labels, answers, range(3, 13))
    assert (random.accuracy, random.weakest) == (5 / 10, judged.weakest)
    assert judgement(labels[:3], answers[:3]).weakest == ""


def test_probabilities_of_few_labels_are_calibrated_by_all_of_them(text):
    X, y = toy(text, 12, noise=1.6)
    y[[0, 13, 26]] = [1, 2, 0]  # the model is sure, and wrong
    fitted = everything(text, X, y, labelled=np.arange(36) % 12 < 6)
    [question] = fitted.judged.calibration.questions
    judged = fitted.judged
    expected = fit_temperature(judged.logits, judged.labels)
    assert question.temperature == pytest.approx(expected, rel=1e-3)
    assert expected > 1.2
    assert len(question.confidences) == len(judged.rows)


def test_sets_are_exact_once_every_class_has_nine_labels(text):
    X, y = toy(text, 14, noise=0.9)
    few = everything(text, X, y, labelled=np.arange(42) % 14 < 8)
    assert isinstance(few.decider.sets, CalibratedSets)
    assert few.sets is not None
    many = everything(text, X, y, labelled=np.arange(42) % 14 < 10)
    assert isinstance(many.decider.sets, SupportSets)
    rest = np.arange(42) % 14 >= 10
    support = SupportFeatures(X[~rest], y[~rest])
    plain = SupportSets.among(many.decider.classifier.head, support, text.class_names)
    np.testing.assert_array_equal(many.sets[rest], plain.members(None, X[rest], 0.9))
