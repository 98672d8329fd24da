"""Probabilities from logits, and the temperature that rescales them if images show it helps."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ogkd.errors import counted

BOUNDS = (0.05, 20.0)  # of the temperature
_PRIOR = 0.7  # standard deviation of log T before any image is seen
_LEVEL = 0.05  # of the test whether rescaling helps


def softmax(logits: ArrayLike, temperature: float = 1.0) -> NDArray[np.float32]:
    """Probabilities [N, C] of logits [N, C], computed in double precision."""
    z = np.asarray(logits, dtype=np.float64) / temperature
    odds = np.exp(z - z.max(axis=1, keepdims=True))
    p: NDArray[np.float32] = (odds / odds.sum(axis=1, keepdims=True)).astype(np.float32)
    return p


def justified_temperature(
    logits: NDArray[np.float64], labels: NDArray[np.int64], *, units: int
) -> tuple[float, str | None]:
    """The temperature, or 1 and the reason if these images do not show that another is better.

    A likelihood ratio test against 1 (5 %, one degree of freedom), counting patients rather than
    images where there are fewer (`units`). Comparing the losses of left-out images instead finds
    a fourfold overconfidence in 16 images in only one of five draws, this in nine of ten.
    """
    from scipy.stats import chi2

    found = fit_temperature(logits, labels)
    images = f"The {counted(len(labels), 'image')} for fitting the temperature"
    if found == 1.0:
        return 1.0, (
            f"{images} cannot show whether rescaling helps, as the model makes no error there; "
            "probabilities stay as they are."
        )
    gain = len(labels) * (_loss(logits, labels, 1.0) - _loss(logits, labels, found))
    if chi2.sf(2 * gain * units / len(labels), 1) > _LEVEL:
        return 1.0, (f"{images} cannot show that rescaling helps; probabilities stay as they are.")
    return found, None


def fit_temperature(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The temperature of the smallest negative log-likelihood; 1 where all images are right.

    There the likelihood would only grow as the temperature falls to 0: nothing is to be learned.
    A weak prior, log T ~ N(0, 0.7), keeps a handful of images from extreme values.
    """
    from scipy.optimize import minimize_scalar

    if (logits.argmax(axis=1) == labels).all():
        return 1.0

    def loss(log_t: float) -> float:
        prior = (log_t / _PRIOR) ** 2 / 2
        return _loss(logits, labels, math.exp(log_t)) + prior / len(labels)

    bounds = (math.log(BOUNDS[0]), math.log(BOUNDS[1]))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-5})
    return float(math.exp(found.x))


def _loss(logits: NDArray[np.float64], labels: NDArray[np.int64], temperature: float) -> float:
    """The mean negative log-likelihood."""
    from scipy.special import logsumexp

    z = logits / temperature
    return float((logsumexp(z, axis=1) - z[np.arange(len(labels)), labels]).mean())
