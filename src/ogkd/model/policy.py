"""What a user requests of predictions: guarantees, and the frequencies of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ogkd.data.names import fold_name
from ogkd.data.task import Array, Probabilities
from ogkd.errors import ConfigError, did_you_mean
from ogkd.model.scaling import CONFIDENCE, check_share

_TOLERANCE = 0.01  # of the sum of a prior: shares may be rounded to percents


@dataclass(frozen=True)
class Policy:
    """Guarantees requested for predictions, and how frequent the classes are.

    Args:
        max_risk: abstain so that at most this share of the other predictions is wrong.
        confidence: with which the guarantee of risk holds.
        coverage: how often the set contains the true class; None: 90 % if there are images enough.
        prior: how frequent each class is where the images come from, as shares that sum to one.
            None: equally frequent.
    """

    max_risk: float | None = None
    confidence: float = CONFIDENCE
    coverage: float | None = None
    prior: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name in ("max_risk", "confidence", "coverage"):
            if (share := getattr(self, name)) is not None:
                check_share(name, share)
        if self.prior is not None and self.max_risk is not None:
            raise ConfigError(
                "max_risk cannot be guaranteed with a prior: the share of errors depends on how "
                "frequent the classes are. Leave one of them out.",
                argument="max_risk",
            )


def class_shares(prior: Mapping[str, float], class_names: Sequence[str]) -> Array:
    """The share of each class [C], checked; they are scaled so that they sum to exactly one."""
    names = {fold_name(name): name for name in class_names}
    given = {fold_name(name): share for name, share in prior.items()}
    problem = ""
    if unknown := [name for name in prior if fold_name(name) not in names]:
        problem = f"names the class '{unknown[0]}', which the model does not know"
        problem += f" ({', '.join(class_names)}).{did_you_mean(unknown[0], class_names)}"
    elif missing := [name for folded, name in names.items() if folded not in given]:
        problem = f"has no share for: {', '.join(missing)}. Give one for every class."
    elif len(given) < len(prior):
        problem = "names a class twice."
    elif not all(share > 0 for share in given.values()):  # also refuses a NaN
        problem = f"has shares that are not above 0: {', '.join(map(str, given.values()))}."
    elif not abs(sum(given.values()) - 1) <= _TOLERANCE + 1e-9:
        problem = f"sums to {sum(given.values()):g}, but the shares of all classes must sum to 1."
    if problem:
        raise ConfigError(f"prior {problem}", argument="prior")
    shares = np.array([given[folded] for folded in names], dtype=np.float64)
    return np.asarray(shares / shares.sum())


def reweighted(p: Probabilities, prior: Array) -> Probabilities:
    """Probabilities [N, C] where classes have the frequencies `prior`, and not equal ones.

    Where images of a class look the same, p'(c | x) is p(c | x) times its frequency, normalised.
    """
    weighted = np.asarray(p, dtype=np.float64) * prior * len(prior)
    total = weighted.sum(axis=1, keepdims=True)
    return np.asarray(weighted / np.maximum(total, 1e-300), dtype=np.float32)
