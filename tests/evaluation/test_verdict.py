from __future__ import annotations

import json

import numpy as np
import pytest

from ogkd.data.tasks import OneOf
from ogkd.evaluation import evaluate_predictions
from ogkd.evaluation.verdict import _more, class_verdict
from world import predictions


def judge(counts, groups=None, names=("cyst", "mass", "normal")):
    """The verdict on predictions with this confusion matrix."""
    counts = np.asarray(counts)
    pairs = [divmod(n, len(counts)) for n, c in enumerate(counts.ravel()) for _ in range(c)]
    labels, answers = np.array(pairs).T
    logits = 5.0 * np.eye(len(counts))[answers]
    task = OneOf(tuple(names[: len(counts)]))
    judged = predictions(labels, logits, task=task, groups=groups)
    result = evaluate_predictions(judged, resamples=0)
    json.dumps(result, allow_nan=False)
    return result["verdict"]


def test_a_good_model_is_called_clearly_better_with_its_weakest_class():
    found = judge([[46, 4, 0], [15, 35, 0], [0, 2, 48]])
    assert found["better_than_guessing"] is True
    assert found["text"] == (
        "Clearly better than guessing. It classified 129 of 150 images correctly (86 %, 95 % "
        "interval 79 to 91 %); always answering 'cyst' would be correct for 33 %. Weakest class: "
        "it recognises 35 of 50 images of 'mass', and mostly takes the others for 'cyst'. Check "
        "that 'mass' and 'cyst' are labelled correctly and can be told apart in these images, or "
        "try another backbone."
    )


def test_a_model_at_chance_is_not_to_be_used():
    found = judge([[17, 17, 16], [16, 17, 17], [17, 17, 16]])
    assert found["better_than_guessing"] is False
    assert found["text"].startswith("Not better than guessing: do not use it. It classified 50")
    assert "Weakest" not in found["text"]
    assert "It learned from no images" in found["advice"]


def test_few_images_are_not_a_verdict_but_a_number_of_images():
    found = judge([[7, 5], [3, 9]])
    assert found["better_than_guessing"] is None
    assert found["headline"] == "24 images cannot show whether it is better than guessing"
    more = found["more_test_images"]
    assert f"About {more} more test images would be needed." in found["text"]
    assert more % 5 == 0
    # With as many more of the same kind it usually is one.
    scale = round((24 + more) / 24)
    assert judge(np.array([[7, 5], [3, 9]]) * scale)["better_than_guessing"] is True


@pytest.mark.parametrize(("share", "images"), [(0.6, 60), (0.65, 40), (0.8, 10)])
def test_the_number_of_images_asked_for_shows_the_gain_in_most_tests(share, images):
    from scipy.stats import beta, binom

    def limits(hits, whole):
        low = beta.ppf(0.025, hits, whole - hits + 1)
        return low, beta.ppf(0.975, hits + 1, whole - hits)

    total = images + _more(images, share - 0.5, limits(round(share * images), images))
    hits = np.arange(total)
    power = binom.pmf(hits, total, share)[limits(hits, total)[0] > 0.5].sum()
    assert 0.7 <= power <= 0.97


def test_unequal_classes_are_judged_by_each_class_and_accuracy_is_told_beside_it():
    finds_the_rare = judge([[150, 30], [2, 18]])
    assert finds_the_rare["basis"] == "balanced_accuracy"
    assert finds_the_rare["better_than_guessing"] is True
    assert "On average it recognises 87 % of each class" in finds_the_rare["text"]
    assert "would be correct for 90 %, as the classes are very unequal" in finds_the_rare["text"]
    always = judge([[180, 0], [20, 0]])
    assert always["accuracy"] == 0.9
    assert always["better_than_guessing"] is False


@pytest.mark.parametrize("seed", range(3))
def test_chance_is_rarely_called_better(seed):
    rng = np.random.default_rng(seed)
    called = 0
    for _ in range(60):
        labels, said = rng.choice(3, 90, p=[0.7, 0.2, 0.1]), rng.choice(3, 90, p=[0.5, 0.3, 0.2])
        counts = np.bincount(3 * labels + said, minlength=9).reshape(3, 3)
        called += judge(counts)["better_than_guessing"] is True
    assert called <= 5  # 2.5 % on average


def test_many_images_of_few_patients_are_few():
    counts = [[40, 10], [10, 40]]
    assert judge(counts)["better_than_guessing"] is True
    patients = [f"p{row // 25}" for row in range(100)]
    found = judge(counts, patients)
    assert found["better_than_guessing"] is None
    assert "more test images, from other patients, would" in found["advice"]


@pytest.mark.parametrize("counts", [[[1, 0], [0, 0]], [[0, 1], [0, 0]], [[3, 1], [0, 0]]])
def test_images_of_one_class_give_no_verdict(counts):
    found = judge(counts)
    assert found["better_than_guessing"] is None
    assert found["headline"] == "No verdict: all images show the same class"
    assert "add test images of the other classes" in found["text"]
    assert "1 images" not in found["text"]


def test_a_perfect_result_is_not_called_certain_and_absent_classes_do_not_count():
    found = judge([[10, 0, 0], [0, 10, 0], [0, 0, 0]])
    assert found["better_than_guessing"] is True
    assert found["weakest"] is None
    assert "made no errors here, but up to 17 % errors on new images" in found["text"]
    assert found["guessing"] == 0.5


def test_nothing_is_promised_of_images_that_the_model_learned_from():
    labels = np.repeat([0, 1], 10)
    perfect = evaluate_predictions(predictions(labels, 5.0 * np.eye(2)[labels]), resamples=0)
    sure = {"accuracy": [0.8, 1.0], "balanced_accuracy": [0.8, 1.0]}
    assert "cannot be ruled out" in class_verdict(perfect, sure)["text"]
    found = class_verdict({**perfect, "learned_from": 20}, sure)
    assert found["interval"] is found["better_than_guessing"] is None
    assert "cannot be ruled out" not in found["text"]
    assert "interval" not in found["text"]
