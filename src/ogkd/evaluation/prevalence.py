"""What measured shares become where the classes are more or less frequent than in the images.

The share of each class that is recognised does not depend on how frequent the class is; how often
an answer is right does. So shares are measured class by class and weighted by the frequencies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.evaluation.metrics import Array, Counts, increasing_interval, plain, share

PREVALENCES = (0.01, 0.05, 0.2, 0.5)  # of findings, that results are given for
VALUES = ("ppv", "npv", "accuracy")


def screening_at(
    prior: Sequence[float] | Array,
    finding: Sequence[bool] | NDArray[np.bool_],
    counts: Sequence[Counts],
    *,
    intervals: bool = True,
) -> dict[str, Any]:
    """Predictive values of "finding" and "no finding", and the share of right ones of both.

    `prior` are the frequencies of groups of images, `finding` says which have one, and `counts`
    are (recognised as such, images) of each. All values increase with every share, which is what
    their intervals rest on. None stands for what is undefined.
    """
    weights, ill = np.asarray(prior, dtype=np.float64), np.asarray(finding, dtype=bool)

    def values(shares: Array) -> dict[str, Array]:  # shares [G, ...]
        side = weights.reshape(-1, *(1,) * (shares.ndim - 1))
        found, cleared = (side * shares)[ill].sum(0), (side * shares)[~ill].sum(0)
        alarms = weights[~ill].sum() - cleared
        missed = weights[ill].sum() - found
        return {
            "ppv": share(found, found + np.maximum(alarms, 0)),
            "npv": share(cleared, cleared + np.maximum(missed, 0)),
            "accuracy": found + cleared,
        }

    return _measured(values, VALUES, counts, intervals=intervals)


def accuracy_at(
    prior: Array, counts: Sequence[Counts], *, intervals: bool = True
) -> dict[str, Any]:
    """The share of images that are classified correctly where classes have these frequencies."""

    def values(shares: Array) -> dict[str, Array]:
        return {"accuracy": np.tensordot(prior, shares, axes=1)}

    return _measured(values, ("accuracy",), counts, intervals=intervals)


def _measured(
    values: Callable[[Array], dict[str, Array]],
    keys: Sequence[str],
    counts: Sequence[Counts],
    *,
    intervals: bool,
) -> dict[str, Any]:
    parts, wholes = np.asarray(counts, dtype=np.float64).T
    here = values(share(parts, wholes))
    found: dict[str, Any] = {key: plain(float(here[key])) for key in keys}
    known = {key: found[key] is not None and intervals for key in keys}
    return found | {
        "intervals": {
            key: increasing_interval(counts, lambda s, key=key: values(s)[key])  # type: ignore[misc]
            if known[key]
            else None
            for key in keys
        }
    }
