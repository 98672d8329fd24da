"""AUROC, average precision and verdict of several findings, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from ogkd.data.tasks import Findings
from ogkd.evaluation import LabelledPredictions, evaluate_predictions
from ogkd.evaluation.findings import areas
from ogkd.evaluation.metrics import average_precision
from ogkd.model.calibration import Calibration
from world import predictions


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_equals_scikit_learn_with_weights_and_ties(ties: bool) -> None:
    rng = np.random.default_rng(0)
    y, p = rng.random(60) < 0.3, rng.random(60)
    p = p.round(1) if ties else p
    weights = rng.integers(0, 3, (5, 60)).astype(float)
    assert average_precision(y, p) == pytest.approx(average_precision_score(y, p))
    expected = [average_precision_score(y, p, sample_weight=row) for row in weights]
    assert average_precision(y, p, weights) == pytest.approx(expected)


def test_average_precision_without_a_positive_is_undefined() -> None:
    assert np.isnan(average_precision([False, False], [0.1, 0.2]))
    assert np.isnan(average_precision([], []))
    assert average_precision([True, True], [0.1, 0.2]) == 1.0


def test_unknown_answers_are_not_counted_and_averages_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    y = (rng.random((80, 3)) < (0.3, 0.5, 0.2)).astype(np.int64)
    p = (0.4 * y + rng.random(y.shape)).astype(np.float32)
    y[rng.random(y.shape) < 0.3] = -1
    y[:, 2][y[:, 2] == 1] = 0  # a finding that is never there has no area
    values = areas(y, p, np.ones((1, 80)))
    known = [y[:, f] >= 0 for f in range(3)]
    for f in (0, 1):
        rows = known[f]
        assert values["auroc"][0, f] == pytest.approx(roc_auc_score(y[rows, f], p[rows, f]))
        expected = average_precision_score(y[rows, f], p[rows, f])
        assert values["average_precision"][0, f] == pytest.approx(expected)
    assert np.isnan(values["auroc"][0, 2])
    assert np.isnan(values["average_precision"][0, 2])
    assert values["macro/auroc"][0] == pytest.approx(values["auroc"][0, :2].mean())
    every = y >= 0
    assert values["micro/auroc"][0] == pytest.approx(roc_auc_score(y[every], p[every]))
    expected = average_precision_score(y[every], p[every])
    assert values["micro/average_precision"][0] == pytest.approx(expected)


TASK = Findings(("edema", "noise"))


def judged(images: int = 150, strength: float = 3.0, seed: int = 0) -> LabelledPredictions:
    rng = np.random.default_rng(seed)
    y = (rng.random((images, 2)) < (0.3, 0.4)).astype(np.int64)
    z = np.stack([strength * (y[:, 0] - 0.5), np.zeros(images)], axis=1) + rng.normal(size=y.shape)
    y[::7, 0] = -1
    return predictions(y, z, task=TASK, groups=[f"patient {n // 2}" for n in range(images)])


def test_the_verdict_says_which_findings_are_recognised() -> None:
    result = evaluate_predictions(judged(), resamples=200)
    assert result["verdict"]["better"] == ["edema"]
    assert result["verdict"]["better_than_guessing"] is None
    row = result["per_finding"]["edema"]
    assert row["present"] + row["absent"] + row["unknown"] == 150
    assert row["intervals"]["auroc"][0] < row["auroc"] < row["intervals"]["auroc"][1]
    assert result["bootstrap"]["by"] == "group"
    assert "edema" in repr(result)


def test_answers_are_counted_by_the_limits_of_the_calibration() -> None:
    test, held_out = judged(seed=1), judged(400, seed=2)
    calibration = Calibration.fit(
        TASK, held_out.logits, held_out.labels, held_out.keys, sensitivity=0.9
    )
    result = evaluate_predictions(test, calibration=calibration, resamples=0)
    p = test.probabilities(calibration)
    limits = calibration.limits()
    assert all((limit > 0).all() for limit in limits)
    for f, name in enumerate(TASK.names):
        row = result["per_finding"][name]
        shares = p[test.labels[:, f] == 1, f].astype(np.float64)
        absent, present = limits[f]
        able = [(1 - share >= absent, share >= present) for share in shares]
        words = {(1, 1): "unsure", (0, 1): "yes", (1, 0): "no"}
        answers = [
            words.get((int(a), int(b)), "yes" if share >= 0.5 else "no")
            for (a, b), share in zip(able, shares, strict=True)
        ]
        assert [row[f"present_{a}"] for a in ("yes", "no", "unsure")] == [
            answers.count(a) for a in ("yes", "no", "unsure")
        ]
        assert row["intervals"]["auroc"] is None
