"""A calibration whose sets a test knows beforehand."""

from __future__ import annotations

import hashlib

import numpy as np

from ogkd.data.tasks import OneOf
from ogkd.model.calibration import Calibration


def by_hand(limit: float = 0.55) -> Calibration:
    """Its sets hold every class with a probability of at least 1 - limit."""
    labels = np.arange(200) % 4
    logits = 30.0 * np.eye(4)[labels]
    logits[::5] = 10.0 * np.eye(4)[(labels[::5] + 1) % 4]  # one in five is wrong, and less sure
    keys = [hashlib.sha256(bytes([number])).hexdigest()[:16] for number in range(200)]
    fitted = Calibration.fit(OneOf(("a", "b", "c", "d")), logits, labels, keys)
    [question] = fitted.questions
    scores = tuple((1 - limit,) * len(row) for row in question.scores)
    question = question.model_copy(update={"scale": 0.1, "scores": scores})
    return fitted.model_copy(update={"questions": (question,)})
