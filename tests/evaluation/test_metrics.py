from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogkd.evaluation import classification_metrics

NAMES = ["a", "b", "c", "d"]


def one_hot(said):
    return np.eye(len(NAMES))[said]


def share(part, whole):
    return part / whole if whole else 0.0


answers = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


@settings(deadline=None)
@given(answers)
def test_metrics_agree_with_counting_by_hand(pairs):
    truth, said = map(np.array, zip(*pairs, strict=True))
    found = classification_metrics(truth, one_hot(said), NAMES)
    f1 = {}
    for label, name in enumerate(NAMES):
        hits = int(((truth == label) & (said == label)).sum())
        precision = share(hits, int((said == label).sum()))
        recall = share(hits, int((truth == label).sum()))
        f1[label] = share(2 * precision * recall, precision + recall)
        row = found["per_class"][name]
        assert row["precision"] == pytest.approx(precision)
        assert row["recall"] == pytest.approx(recall)
        assert row["f1"] == pytest.approx(f1[label])
        assert row["images"] == int((truth == label).sum())
    occurring = sorted({*truth.tolist(), *said.tolist()})
    assert found["macro_f1"] == pytest.approx(np.mean([f1[label] for label in occurring]))
    assert found["accuracy"] == pytest.approx((truth == said).mean())
    assert found["images"] == len(pairs)


def test_the_most_probable_class_is_what_is_said():
    found = classification_metrics([1, 2], [[0.1, 0.6, 0.2, 0.1], [0.3, 0.1, 0.2, 0.4]], NAMES)
    assert found["accuracy"] == 0.5
    assert found["per_class"]["d"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "images": 0}


def test_everything_is_plain_numbers_for_json():
    found = classification_metrics(np.array([0, 1]), one_hot([0, 1]), NAMES)
    values = [found["accuracy"], found["macro_f1"], *found["per_class"]["a"].values()]
    assert {type(value) for value in values} == {float, int}
