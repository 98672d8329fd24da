"""How frequent the classes are: probabilities for another prevalence.

A model gives p(c | x) for the class frequencies that it assumes, q_c. Where class c has the
frequency r_c, and images of a class look the same, p'(c | x) is p(c | x) r_c / q_c, normalised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ogkd.errors import ConfigError, did_you_mean
from ogkd.prompts.bank import fold

Array = NDArray[np.float64]
_TOLERANCE = 0.01  # of the sum: shares may be rounded to percents


def equal(classes: int) -> Array:
    """The frequencies that the few-shot methods assume: all classes are equally frequent."""
    return np.full(classes, 1 / classes)


def class_shares(prior: Mapping[str, float], class_names: tuple[str, ...]) -> Array:
    """The share of each class [C], checked; they are scaled so that they sum to exactly one."""
    known = {fold(name): label for label, name in enumerate(class_names)}
    shares = np.full(len(class_names), np.nan)
    for name, share in prior.items():
        label = known.get(fold(name))
        if label is None:
            raise _wrong(
                f"names the class '{name}', which the model does not know. It knows: "
                f"{', '.join(class_names)}.{did_you_mean(name, class_names)}"
            )
        if not np.isnan(shares[label]):
            raise _wrong(f"names the class '{class_names[label]}' twice.")
        if (
            isinstance(share, bool)
            or not isinstance(share, int | float)
            or not math.isfinite(share)
        ):
            raise _wrong(f"is '{share}' for '{name}', which is not a number.")
        if share <= 0:
            raise _wrong(
                f"is {share:g} for '{name}', but must be above 0: a class that never occurs could "
                "never be predicted. Give a small share, such as 0.001."
            )
        shares[label] = share
    if missing := [name for name, share in zip(class_names, shares, strict=True) if share != share]:
        raise _wrong(f"has no share for: {', '.join(missing)}. Give one for every class.")
    if abs(shares.sum() - 1) > _TOLERANCE + 1e-9:
        raise _wrong(f"sums to {shares.sum():g}, but the shares of all classes must sum to 1.")
    found: Array = shares / shares.sum()
    return found


def reweighted(p: NDArray[np.floating], prior: Array, assumed: Array) -> NDArray[np.float32]:
    """Probabilities [N, C] where classes have the frequencies `prior` instead of the assumed."""
    weighted = np.asarray(p, dtype=np.float64) * (prior / assumed)
    total = weighted.sum(axis=1, keepdims=True)
    return np.asarray(weighted / np.maximum(total, 1e-300), dtype=np.float32)


def shown_shares(shares: Array, class_names: tuple[str, ...]) -> str:
    """The shares in percent, as a list in words."""
    pairs = zip(class_names, shares, strict=True)
    return ", ".join(f"{name} {100 * share:.3g} %" for name, share in pairs)


def _wrong(what: str) -> ConfigError:
    return ConfigError(f"prior {what}", argument="prior")
