"""Comparing two models: the p of McNemar counted out, the interval of an independent bootstrap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import ogkd
from ogkd.data.read import read_dataset
from ogkd.data.tasks import Findings
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation.compare import compare
from ogkd.evaluation.evaluate import bootstrapped
from world import fit, predictions


def two(count=200, *, groups=None):
    """Predictions of a good and of a worse model about the same cases."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, count)
    shared = 3 * np.eye(3)[labels] + rng.normal(0, 1.5, (count, 3))  # what is hard for both
    logits = [shared + rng.normal(0, spread, (count, 3)) for spread in (0.2, 1.5)]
    return [predictions(labels, each, groups=groups) for each in logits]


def metrics_of(both, resamples=2000):
    return [bootstrapped(judged, None, resamples=resamples)[0] for judged in both]


def right(judged):
    return judged.logits.argmax(axis=1) == judged.labels


def test_the_differences_are_those_of_scikit_learn():
    both = two()
    first, second = metrics_of(both, 10)
    y = both[0].labels
    p = [judged.probabilities() for judged in both]
    expected = {
        "accuracy": right(both[0]).mean() - right(both[1]).mean(),
        "balanced_accuracy": np.subtract(
            *(balanced_accuracy_score(y, each.argmax(axis=1)) for each in p)
        ),
        "auroc": np.subtract(*(roc_auc_score(y, each, multi_class="ovr") for each in p)),
    }
    for name, value in expected.items():
        assert first.difference(second, name)["difference"] == pytest.approx(value, abs=1e-6)


def test_the_interval_is_that_of_paired_cases_and_narrower_than_of_unpaired_ones():
    both = two()
    first, second = metrics_of(both)
    low, high = first.difference(second, "accuracy")["interval"]
    gains = right(both[0]).astype(float) - right(both[1])
    error = gains.std(ddof=1) / math.sqrt(len(gains))  # by the normal distribution
    assert [low, high] == pytest.approx(
        [gains.mean() - 1.96 * error, gains.mean() + 1.96 * error], abs=0.01
    )
    apart = math.hypot(*(right(each).std(ddof=1) / math.sqrt(len(gains)) for each in both))
    assert high - low < 2 * 1.96 * apart


def test_patients_are_resampled_whole_and_count_once():
    both = two(40)
    first, second = metrics_of(both)
    tripled = [
        predictions(
            judged.labels.repeat(3),
            judged.logits.repeat(3, axis=0),
            groups=[f"p{row // 3}" for row in range(120)],
        )
        for judged in both
    ]
    again = metrics_of(tripled)
    one, three = first.difference(second, "accuracy"), again[0].difference(again[1], "accuracy")
    assert three["interval"] == pytest.approx(one["interval"])
    assert again[0].mcnemar(again[1]) == first.mcnemar(second)


@pytest.mark.parametrize(("alone", "others"), [(0, 0), (1, 0), (5, 1), (12, 3), (2, 9)])
def test_mcnemars_p_is_counted_out(alone, others):
    labels = np.zeros(40, np.int64)
    answers = np.zeros((2, 40), np.int64)
    answers[1, :alone] = 1  # the second is wrong
    answers[0, alone : alone + others] = 1
    first, second = metrics_of([predictions(labels, np.eye(2)[each]) for each in answers], 0)
    n = alone + others
    tail = sum(math.comb(n, k) for k in range(min(alone, others) + 1)) / 2**n
    expected = min(1.0, 2 * tail)
    result = first.mcnemar(second)
    assert (result["first"], result["second"]) == (alone, others)
    assert result["p"] == pytest.approx(expected)


def test_few_cases_and_equal_models_have_no_interval():
    few = [judged.without(np.arange(200) > 8) for judged in two()]
    first, second = metrics_of(few, 50)
    assert first.difference(second, "accuracy")["interval"] is None
    first, _ = metrics_of(two(), 50)
    assert first.difference(first, "accuracy")["interval"] is None


def test_models_of_findings_are_compared_by_their_mean_auroc():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (80, 2))
    both = [
        predictions(labels, labels + rng.normal(0, s, (80, 2)), task=Findings(("cyst", "stone")))
        for s in (0.5, 3)
    ]
    first, second = metrics_of(both, 300)
    row = first.difference(second, "macro/auroc")
    areas = [roc_auc_score(labels, judged.logits) for judged in both]
    assert row["difference"] == pytest.approx(areas[0] - areas[1], abs=1e-6)
    assert row["interval"][0] > 0


@pytest.fixture(scope="module")
def models(bert_backbone, pictures, module_cache):
    return [fit(pictures, bert_backbone, method=name, shots=3) for name in ("gda", "fused")]


def test_two_models_on_a_folder(models, pictures):
    a, b = models
    result = compare(a, b, pictures, resamples=50)
    cases = read_dataset(pictures).part("test")
    shares = []
    for model in models:
        answers = model.predict([case.image for case in cases])
        texts = [model.task.text(case.target) for case in cases]
        shares.append(np.mean([x == y for x, y in zip(answers, texts, strict=True)]))
    assert (result["images"], result["left_out"]) == (12, 0)
    assert result["accuracy"]["difference"] == pytest.approx(shares[0] - shares[1])
    assert "McNemar" in repr(result)
    swapped = compare(b, a, pictures, resamples=50)
    assert swapped["accuracy"]["difference"] == -result["accuracy"]["difference"]
    assert swapped["mcnemar"]["p"] == result["mcnemar"]["p"]


def test_images_that_a_model_learned_from_are_refused_or_left_out(models, pictures):
    a, b = models
    with pytest.raises(DataError) as error:
        compare(a, b, pictures, split="train")
    assert error.value.argument == "leave_out_used"
    result = compare(a, b, pictures, split="train", resamples=20, leave_out_used=True)
    assert result["images"] + result["left_out"] == 18
    dataset = read_dataset(pictures)
    seen = [c for c in dataset.part("train") if c.image.fingerprint in a.card.support_images]
    with pytest.raises(DataError) as error:
        compare(a, b, dataset.with_cases(seen), split="train", leave_out_used=True)
    assert error.value.argument == "split"


def test_models_of_other_classes_are_refused(models, bert_backbone, pictures, tmp_path):
    other = ogkd.zero_shot(["dark field", "bright spot"], backbone=bert_backbone)
    dataset = read_dataset(pictures)
    two_classes = dataset.restrict([0, 1])
    with pytest.raises(ConfigError) as error:
        compare(models[0], other, two_classes)
    assert error.value.argument == "b"
