"""Predictive values where findings are more or less frequent than in the images.

Sensitivity and specificity do not depend on how frequent findings are; how often an answer is
right does. So both are measured, and weighted by the prevalence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ogkd.errors import ConfigError
from ogkd.evaluation.metrics import Array, Counts, increasing_interval, plain, share

PREVALENCES = (0.01, 0.05, 0.2, 0.5)  # of findings, that results are given for
VALUES = ("ppv", "npv", "accuracy")


def prevalences(given: float | None) -> tuple[float, ...]:
    """The prevalences that results are given for, with the one that is asked for."""
    if given is None:
        return PREVALENCES
    if not (math.isfinite(given) and 0 < given < 1):
        raise ConfigError(
            f"prevalence must lie between 0 and 1, but is {given:g}.", argument="prevalence"
        )
    return tuple(sorted({*PREVALENCES, given}))


def screening_at(
    prevalence: float, counts: Sequence[Counts], *, intervals: bool = True
) -> dict[str, Any]:
    """Predictive values of "finding" and "no finding", and the share of right ones of both.

    `counts` are (recognised as such, images) of images with a finding and of those without. All
    values increase with both shares, which is what their intervals rest on. None stands for what
    is undefined.
    """

    def values(shares: Array) -> dict[str, Array]:  # shares [2, ...]: sensitivity, specificity
        detected, cleared = prevalence * shares[0], (1 - prevalence) * shares[1]
        missed, alarms = prevalence - detected, (1 - prevalence) - cleared
        return {
            "ppv": share(detected, detected + alarms),
            "npv": share(cleared, cleared + missed),
            "accuracy": detected + cleared,
        }

    def interval(key: str) -> list[float]:
        return increasing_interval(counts, lambda shares: values(shares)[key])

    parts, wholes = np.asarray(counts, dtype=np.float64).T
    here = {key: plain(float(value)) for key, value in values(share(parts, wholes)).items()}
    known = [key for key in VALUES if intervals and here[key] is not None]
    return {**here, "intervals": {key: interval(key) if key in known else None for key in VALUES}}
