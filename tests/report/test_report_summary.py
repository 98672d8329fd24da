from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ogkd.report.html import join_words, percent
from ogkd.report.summary import (
    Outcome,
    frequent_confusions,
    screening_counts,
    sentences,
    warnings,
)

NAMES = ("cyst", "mass", "normal")


def outcome(counts, **changes):
    options = {
        "names": NAMES[: len(counts)],
        "counts": np.array(counts),
        "mean_confidence": 0.8,
        "kept": 0.8,
        "risk": 0.1,
    }
    return Outcome(**(options | changes))


def said(found):
    return " ".join(sentences(found)).replace("\u00a0", " ")


def test_the_summary_speaks_of_counts_that_a_reader_can_check():
    text = said(outcome([[40, 10, 0], [5, 45, 0], [5, 5, 40]], normal=(2,)))
    assert "cyst mistaken for mass (10 of 50), mass mistaken for cyst (5 of 50)" in text
    assert "detects 100 of 100 images with a finding and raises a false alarm on 10 of 50" in text
    assert "Flagging as many images at random would detect 73.3 %" in text
    assert "falls from 16.7 % to 10 %" in text


@pytest.mark.parametrize(
    ("sure", "words"),
    [(0.95, "it is overconfident"), (0.85, "about right"), (0.6, "it is underconfident")],
)
def test_certainty_is_compared_with_being_right(sure, words):
    found = outcome([[40, 10], [5, 45]], mean_confidence=sure)
    assert words in said(found)
    assert "ogkd calibrate" in said(found)
    assert "ogkd calibrate" not in said(outcome([[1, 0], [0, 1]], calibrated=True))


@pytest.mark.parametrize(("risk", "words"), [(0.3, "rises"), (0.15, "stays"), (0.0, "to 0 %")])
def test_referral_is_not_praised_where_it_does_not_help(risk, words):
    assert words in said(outcome([[40, 10], [5, 45]], risk=risk))


def test_a_perfect_model_has_no_mistakes_to_name():
    found = outcome([[5, 0], [0, 5]], risk=0.0)
    assert frequent_confusions(found) == ""
    assert "errors:" not in said(found)


def test_few_absent_and_learned_images_are_warned_of():
    text = " ".join(warnings(outcome([[3, 0, 0], [0, 40, 0], [0, 0, 0]], learned=2)))
    assert "learned from or was calibrated on 2 of the 43 evaluated images" in text
    assert "Few images of cyst (3)" in text
    assert "No images of normal" in text
    assert warnings(outcome([[30, 0], [0, 40]])) == []


@given(arrays(np.int64, (4, 4), elements=st.integers(0, 9)), st.sets(st.integers(0, 3)))
def test_screening_counts_lose_no_image(counts, normal):
    ill, healthy = screening_counts(counts, sorted(normal))
    rows = counts.sum(axis=1)
    if not normal:
        assert sum(ill) == sum(healthy) == 0
    else:
        assert sum(healthy) == sum(rows[label] for label in normal)
        assert sum(ill) + sum(healthy) == counts.sum()
        assert healthy[1] == sum(counts[a, b] for a in normal for b in normal)


@pytest.mark.parametrize(
    ("words", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
)
def test_words_are_joined_as_people_do(words, text):
    assert join_words(words) == text


def test_percentages_never_break_before_their_sign():
    assert percent(0.2) == "20\u00a0%"
    assert percent(0.8333) == "83.3\u00a0%"
