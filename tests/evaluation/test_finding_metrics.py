"""AUROC, average precision and verdict of several findings, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from ogkd.model.findings import FindingsCalibration, Limits
from sklearn.metrics import average_precision_score, roc_auc_score

from ogkd.evaluation.findings import areas, average_precision, evaluate_findings
from ogkd.evaluation.predictions import LabelledPredictions
from ogkd.images import ImageRef


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_equals_scikit_learn_with_weights_and_ties(ties: bool) -> None:
    rng = np.random.default_rng(0)
    y, p = rng.random(60) < 0.3, rng.random(60)
    p = p.round(1) if ties else p
    weights = rng.integers(0, 3, (5, 60)).astype(float)
    assert average_precision(y, p) == pytest.approx(average_precision_score(y, p))
    found = average_precision(y, p, weights)
    expected = [average_precision_score(y, p, sample_weight=row) for row in weights]
    assert found == pytest.approx(expected)


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
    found = areas(y, p, np.ones((1, 80)))
    known = [y[:, f] >= 0 for f in range(3)]
    for f in (0, 1):
        mine = known[f]
        assert found["auroc"][0, f] == pytest.approx(roc_auc_score(y[mine, f], p[mine, f]))
        expected = average_precision_score(y[mine, f], p[mine, f])
        assert found["average_precision"][0, f] == pytest.approx(expected)
    assert np.isnan(found["auroc"][0, 2])
    assert np.isnan(found["average_precision"][0, 2])
    assert found["macro/auroc"][0] == pytest.approx(found["auroc"][0, :2].mean())
    every = y >= 0
    assert found["micro/auroc"][0] == pytest.approx(roc_auc_score(y[every], p[every]))
    expected = average_precision_score(y[every], p[every])
    assert found["micro/average_precision"][0] == pytest.approx(expected)


def predictions(images: int = 150, strength: float = 3.0, seed: int = 0) -> LabelledPredictions:
    rng = np.random.default_rng(seed)
    y = (rng.random((images, 2)) < (0.3, 0.4)).astype(np.int64)
    z = np.stack([strength * (y[:, 0] - 0.5), np.zeros(images)], axis=1) + rng.normal(size=y.shape)
    y[::7, 0] = -1
    return LabelledPredictions(
        labels=y,
        logits=z.astype(np.float32),
        features=np.zeros((images, 2), np.float32),
        images=[ImageRef.of(f"{n}.png") for n in range(images)],
        groups=[f"patient {n // 2}" for n in range(images)],
        keys=[f"{n:04}" for n in range(images)],
        class_names=("edema", "noise"),
        normal=(),
    )


def test_the_verdict_says_which_findings_are_recognised() -> None:
    result = evaluate_findings(predictions(), None, resamples=200)
    assert result["verdict"]["better"] == ["edema"]
    assert "Clearly better than guessing for 1 of 2 findings" in result["verdict"]["text"]
    assert "'noise'" in result["verdict"]["text"]
    row = result["per_finding"]["edema"]
    assert row["present"] + row["absent"] + row["unknown"] == 150
    assert row["intervals"]["auroc"][0] < row["auroc"] < row["intervals"]["auroc"][1]
    assert result["bootstrap"]["by"] == "group"
    assert "edema" in repr(result)
    assert "mean of findings" in repr(result)


def test_answers_are_counted_by_the_limits_of_the_calibration() -> None:
    found, other = predictions(seed=1), predictions(400, seed=2)
    calibration = FindingsCalibration.fit(other.logits, other.labels, other.keys, sensitivity=0.9)
    result = evaluate_findings(found, calibration, resamples=0)
    p = found.probabilities(calibration)
    limits = calibration.limits(sensitivity=0.9)
    for f, name in enumerate(found.class_names):
        row = result["per_finding"][name]
        yes = found.labels[:, f] == 1
        said = [limits[f].answer(float(one)) for one in p[yes, f]]
        assert [row[f"present_{a}"] for a in ("yes", "no", "unsure")] == [
            said.count(a) for a in ("yes", "no", "unsure")
        ]
        assert row["present_wrong"]["share"] == pytest.approx(said.count("no") / len(said))
        assert row["intervals"]["auroc"] is None
    assert limits != [Limits()] * 2


def test_probabilities_after_calibration_are_better_where_findings_are_rarer_than_learned() -> None:
    rng = np.random.default_rng(5)
    y = (rng.random((900, 1)) < 0.1).astype(np.int64)
    z = 2 * y + rng.normal(size=y.shape) - 1  # as if half of the images showed it
    fit, test = slice(0, 600), slice(600, None)
    keys = [f"{n:04}" for n in range(600)]
    found = FindingsCalibration.fit(z[fit], y[fit], keys)
    before = 1 / (1 + np.exp(-z[test]))
    after = found.probabilities(z[test])
    assert ((after - y[test]) ** 2).mean() < ((before - y[test]) ** 2).mean()
    assert abs(after.mean() - 0.1) < 0.04
