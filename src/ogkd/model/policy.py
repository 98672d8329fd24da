"""What a user requests of predictions: guarantees, and the frequencies of classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ogkd.data.names import fold_name
from ogkd.data.task import Array, Probabilities
from ogkd.errors import ConfigError, did_you_mean
from ogkd.model.scaling import CONFIDENCE

_TOLERANCE = 0.01  # of the sum of a prior: shares may be rounded to percents


@dataclass(frozen=True)
class Policy:
    """Guarantees requested for predictions, and how frequent the classes are.

    Args:
        max_risk: abstain so that at most this share of the other predictions is wrong.
        confidence: with which guarantees of risk and sensitivity hold.
        coverage: how often the set contains the true class; None: 90 % if there are images enough.
        prior: how frequent each class is where the images come from, as shares that sum to one.
            None: equally frequent.
        sensitivity: of each finding: answer "no" for at most the rest of the cases that show it;
            None: what the model was calibrated for, else `coverage`.
    """

    max_risk: float | None = None
    confidence: float = CONFIDENCE
    coverage: float | None = None
    prior: Mapping[str, float] | None = None
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        if not (self.prior is None or isinstance(self.prior, Mapping)):
            raise ConfigError(
                f"prior must be shares of classes, but is '{self.prior}'.", argument="prior"
            )
        if self.prior is not None and self.max_risk is not None:
            raise ConfigError(
                "max_risk cannot be guaranteed with a prior: the share of errors depends on how "
                "frequent the classes are. Leave one of them out.",
                argument="max_risk",
            )


def class_shares(prior: Mapping[str, float], class_names: Sequence[str]) -> Array:
    """The share of each class [C], checked; they are scaled so that they sum to exactly one."""
    known = {fold_name(name): label for label, name in enumerate(class_names)}
    shares = np.full(len(class_names), np.nan)
    for name, share in prior.items():
        label = known.get(fold_name(name))
        if label is None:
            raise _bad_prior(
                f"names the class '{name}', which the model does not know. It knows: "
                f"{', '.join(class_names)}.{did_you_mean(name, class_names)}"
            )
        if not np.isnan(shares[label]):
            raise _bad_prior(f"names the class '{class_names[label]}' twice.")
        if (
            isinstance(share, bool)
            or not isinstance(share, int | float)
            or not math.isfinite(share)
        ):
            raise _bad_prior(f"is '{share}' for '{name}', which is not a number.")
        if share <= 0:
            raise _bad_prior(f"is {share:g} for '{name}', but must be above 0.")
        shares[label] = share
    if missing := [name for name, share in zip(class_names, shares, strict=True) if share != share]:
        raise _bad_prior(f"has no share for: {', '.join(missing)}. Give one for every class.")
    if abs(shares.sum() - 1) > _TOLERANCE + 1e-9:
        raise _bad_prior(f"sums to {shares.sum():g}, but the shares of all classes must sum to 1.")
    return np.asarray(shares / shares.sum())


def reweighted(p: Probabilities, prior: Array) -> Probabilities:
    """Probabilities [N, C] where classes have the frequencies `prior`, and not equal ones.

    Where images of a class look the same, p'(c | x) is p(c | x) times its frequency, normalised.
    """
    weighted = np.asarray(p, dtype=np.float64) * prior * len(prior)
    total = weighted.sum(axis=1, keepdims=True)
    return np.asarray(weighted / np.maximum(total, 1e-300), dtype=np.float32)


def _bad_prior(what: str) -> ConfigError:
    return ConfigError(f"prior {what}", argument="prior")
