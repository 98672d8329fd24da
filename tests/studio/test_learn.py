from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from ogkd.backbones import load_backbone
from ogkd.fitting.prepare import text_side
from ogkd.studio.fitted import exact_interval, fit_all
from ogkd.studio.learn import fit_head, hold_out, logits_of


@pytest.fixture(scope="module")
def text():
    return text_side(load_backbone("builtin"), ("cyst", "mass", "nothing"), None, ())


def toy(text, per_class=6, *, noise=0.3, seed=0):
    """Features of three clusters in the backbone's space, and their labels."""
    rng = np.random.default_rng(seed)
    width = text.backbone.embed_dim
    centres = rng.normal(size=(3, width))
    y = np.repeat(np.arange(3), per_class)
    X = centres[y] + noise * rng.normal(size=(len(y), width))
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), y.astype(np.int64)


def test_without_an_image_of_each_class_the_texts_answer(text):
    X, y = toy(text)
    expected = (
        text.backbone.logit_scale
        * X
        @ np.stack([bank.mean(0).numpy() / np.linalg.norm(bank.mean(0)) for bank in text.bank]).T
    )
    found = logits_of(fit_head(X[:0], y[:0], text), X)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    some = logits_of(fit_head(X[y < 2], y[y < 2], text), X)
    np.testing.assert_array_equal(some, found)


def test_each_image_is_judged_by_a_head_that_has_not_seen_it(text):
    X, y = toy(text)
    held = hold_out(X, y, text)
    assert held.rows.tolist() == list(range(18))
    row = 7
    alone = fit_head(np.delete(X, row, 0), np.delete(y, row), text)
    np.testing.assert_allclose(held.logits[row], logits_of(alone, X[[row]])[0], rtol=1e-5)


def test_a_wrong_label_does_not_confirm_itself(text):
    X, y = toy(text)
    y[0] = 2
    assert hold_out(X, y, text).logits[0].argmax() == 0


def test_images_of_one_patient_are_held_out_together(text):
    X, y = toy(text)
    groups = [f"p{row // 2}" for row in range(18)]
    held = hold_out(X, y, text, groups)
    kept = np.array([row for row in range(18) if groups[row] != "p3"])
    alone = fit_head(X[kept], y[kept], text)
    np.testing.assert_allclose(held.logits[6], logits_of(alone, X[[6]])[0], rtol=1e-5)


def test_the_only_image_of_a_class_is_not_judged(text):
    X, y = toy(text)
    rows = np.flatnonzero((y < 2) | (np.arange(18) == 12))
    held = hold_out(X[rows], y[rows], text)
    assert len(held.rows) == 12
    assert 12 not in held.rows


@pytest.mark.parametrize(("right", "count"), [(0, 5), (5, 5), (3, 10), (70, 80)])
def test_the_interval_is_where_the_exact_tails_are_a_fortieth(right, count):
    low, high = exact_interval(right, count)
    assert low <= right / count <= high
    if right:
        assert binom.sf(right - 1, count, low) == pytest.approx(0.025)
    if right < count:
        assert binom.cdf(right, count, high) == pytest.approx(0.025)


def everything(text, X, y, *, labelled, sample=None):
    labels = np.where(labelled, y, -1)
    return fit_all(
        X,
        np.ones(len(X), bool),
        labels,
        text,
        keys=[f"{row:016x}" for row in range(len(X))],
        groups=[None] * len(X),
        sample=np.zeros(len(X), bool) if sample is None else sample,
        engine="torch",
    )


def test_a_planted_wrong_label_is_to_be_looked_at_again(text):
    X, y = toy(text, 8)
    wrong = y.copy()
    wrong[3] = 1
    found = everything(text, X, wrong, labelled=np.ones(24, bool))
    assert [(one.row, one.given, one.likely) for one in found.suspects] == [(3, 1, 0)]
    assert everything(text, X, y, labelled=np.ones(24, bool)).suspects == ()


def test_accuracy_is_of_the_random_sample_once_it_is_large_enough(text):
    X, y = toy(text, 12)
    wrong = y.copy()
    wrong[:4] = 1  # hard images that the queue asked for
    sample = np.arange(36) >= 16
    fair = everything(text, X, wrong, labelled=np.ones(36, bool), sample=sample)
    assert (fair.fair, fair.counted, fair.accuracy) == (True, 20, 1.0)
    few = everything(text, X, wrong, labelled=np.ones(36, bool), sample=np.arange(36) >= 30)
    assert (few.fair, few.counted) == (False, 36)
    assert few.accuracy < 1


def test_the_confusion_counts_every_judged_label_once(text):
    X, y = toy(text, 8, noise=0.9)
    found = everything(text, X, y, labelled=np.arange(24) % 2 == 0)
    assert np.sum(found.confusion) == len(found.held_out.rows) == 12
    assert np.sum(found.confusion, axis=1).tolist() == [4, 4, 4]
    assert found.probabilities.shape == (24, 3)
