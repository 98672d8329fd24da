from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ogkd.data.tasks import OneOf
from ogkd.evaluation.evaluate import evaluate_predictions
from ogkd.evaluation.predictions import LabelledPredictions
from ogkd.report.page import join_words, percent
from ogkd.report.sections import frequent_confusions, screened, sentences, warnings
from tiny_data import case_of

NAMES = ("cyst", "mass", "normal", "stone")


def outcome(counts, normal=(), *, sure=None, risk=None, learned=0, calibrated=False):
    """The evaluation of images that are classified in this way."""
    classes = len(counts)
    cells = [(a, b) for a in range(classes) for b in range(classes) for _ in range(counts[a][b])]
    truth, answers = np.array(cells).T
    p = np.full((len(cells), classes), (1 - 0.8) / (classes - 1))
    p[np.arange(len(cells)), answers] = 0.8
    cases = [case_of(f"{row}.png", int(label)) for row, label in enumerate(truth)]
    predictions = LabelledPredictions(
        OneOf(NAMES[:classes], tuple(normal)),
        cases,
        truth,
        np.log(p).astype(np.float32),
        np.zeros((len(cells), 0), np.float32),
        images=[],
        decisions=[],
    )
    result = evaluate_predictions(predictions, resamples=0)
    result["learned_from"] = learned
    result["calibration"] = {"applied": False} if calibrated else None
    if risk is not None:
        result["selective"]["risk_at_coverage"]["0.8"] = risk
    if sure is not None:
        result["reliability"] = [{"images": len(cells), "confidence": sure}]
    return result


def summary(result):
    return " ".join(sentences(result)).replace("\u00a0", " ")


def test_the_summary_speaks_of_counts_that_a_reader_can_check():
    text = summary(outcome([[40, 10, 0], [5, 45, 0], [5, 5, 40]], normal=(2,), risk=0.1))
    assert "cyst mistaken for mass (10 of 50), mass mistaken for cyst (5 of 50)" in text
    assert "detects 100 of 100 images with a finding and raises a false alarm on 10 of 50" in text
    assert "Flagging as many images at random would detect 73.3 %" in text
    assert "falls from 16.7 % to 10 %" in text


@pytest.mark.parametrize(
    ("sure", "words"),
    [(0.95, "it is overconfident"), (0.85, "about right"), (0.6, "it is underconfident")],
)
def test_certainty_is_compared_with_being_right(sure, words):
    result = outcome([[40, 10], [5, 45]], sure=sure)
    assert words in summary(result)
    assert "ogkd calibrate" in summary(result)
    assert "ogkd calibrate" not in summary(outcome([[1, 0], [0, 1]], calibrated=True))


@pytest.mark.parametrize(("risk", "words"), [(0.3, "rises"), (0.15, "stays"), (0.0, "to 0 %")])
def test_referral_is_not_praised_where_it_does_not_help(risk, words):
    assert words in summary(outcome([[40, 10], [5, 45]], risk=risk))


def test_a_perfect_model_has_no_mistakes_to_name():
    result = outcome([[5, 0], [0, 5]], risk=0.0)
    assert frequent_confusions(result) == ""
    assert "errors:" not in summary(result)


def test_few_absent_and_learned_images_are_warned_of():
    text = " ".join(warnings(outcome([[3, 0, 0], [0, 40, 0], [0, 0, 0]], learned=2)))
    assert "learned from or was calibrated on 2 of the 43 evaluated images" in text
    assert "Few images of cyst (3)" in text
    assert "No images of normal" in text
    assert warnings(outcome([[30, 0], [0, 40]])) == []


@given(arrays(np.int64, (4, 4), elements=st.integers(0, 2)), st.sets(st.integers(0, 3)))
def test_screening_counts_lose_no_image(counts, normal):
    counts[0, 0] += 1  # there is an image
    sides = screened(outcome(counts, sorted(normal)))
    rows = counts.sum(axis=1)
    well = sum(rows[label] for label in normal)
    if not normal or not well or well == counts.sum():
        assert sides is None
        return
    ill, healthy = sides
    assert sum(healthy) == well
    assert sum(ill) + sum(healthy) == counts.sum()
    assert healthy[1] == sum(counts[a, b] for a in normal for b in normal)
    assert ill[1] == sum(counts[a, b] for a in set(range(4)) - normal for b in normal)


@pytest.mark.parametrize(
    ("words", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
)
def test_words_are_joined_as_people_do(words, text):
    assert join_words(words) == text


def test_percentages_never_break_before_their_sign():
    assert percent(0.2) == "20\u00a0%"
    assert percent(0.8333) == "83.3\u00a0%"
