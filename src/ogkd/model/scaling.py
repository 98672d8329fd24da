"""How held-out cases rescale logits, and the limits and numbers of cases that guarantees need."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ogkd.data.task import Array, Labels
from ogkd.errors import ConfigError, pluralize

CONFIDENCE = 0.9  # with which a guarantee about risk or sensitivity holds
TEMPERATURES = (0.05, 20.0)  # between which the temperature lies
_PRIOR = 0.7  # standard deviation of the log of the scale before any case is seen
_SHIFT_PRIOR = 2.0  # and of the shift
_LEVEL = 0.05  # of the test whether rescaling helps


def justified_temperature(logits: Array, labels: Labels, *, units: int) -> tuple[float, str | None]:
    """The temperature, or 1 and the reason if these cases do not show that another is better.

    A likelihood ratio test against 1 (5 %, one degree of freedom), counting patients rather than
    cases where there are fewer (`units`). Comparing the losses of left-out cases instead finds
    a fourfold overconfidence in 16 cases in only one of five draws, this in nine of ten.
    """
    from scipy.stats import chi2

    temperature = fit_temperature(logits, labels)
    images = pluralize(len(labels), "image")
    if temperature == 1.0:
        return 1.0, (
            f"{images} without an error cannot tell whether probabilities need correcting; "
            "unchanged."
        )
    gain = len(labels) * (_loss(logits, labels, 1.0) - _loss(logits, labels, temperature))
    if chi2.sf(2 * gain * units / len(labels), 1) > _LEVEL:
        return 1.0, (
            f"{images} are too few to tell whether probabilities need correcting; unchanged."
        )
    return temperature, None


def fit_temperature(logits: Array, labels: Labels) -> float:
    """The temperature of the smallest negative log-likelihood; 1 where all cases are right.

    There the likelihood would only grow as the temperature falls to 0: nothing is to be learned.
    A weak prior, log T ~ N(0, 0.7), keeps a handful of cases from extreme values.
    """
    from scipy.optimize import minimize_scalar

    if (logits.argmax(axis=1) == labels).all():
        return 1.0

    def loss(log_t: float) -> float:
        prior = (log_t / _PRIOR) ** 2 / 2
        return _loss(logits, labels, math.exp(log_t)) + prior / len(labels)

    bounds = (math.log(TEMPERATURES[0]), math.log(TEMPERATURES[1]))
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-5})
    return float(math.exp(best.x))


def _loss(logits: Array, labels: Labels, temperature: float) -> float:
    """The mean negative log-likelihood."""
    from scipy.special import logsumexp

    z = logits / temperature
    return float((logsumexp(z, axis=1) - z[np.arange(len(labels)), labels]).mean())


def fit_odds(z: Array, y: Labels) -> tuple[float, float]:
    """Slope and offset of log-odds by the likelihood of labels y (0 or 1), times a weak prior.

    The prior keeps them near 1 and 0 where there are few cases, or all show the same.
    """
    from scipy.optimize import minimize

    sign = 2.0 * y - 1
    spreads = np.array([_PRIOR, _SHIFT_PRIOR])

    def cost(x: Array) -> float:
        rescaled = math.exp(x[0]) * z + x[1]
        prior = float(((x / spreads) ** 2).sum()) / 2
        return float(np.logaddexp(0.0, -sign * rescaled).sum()) + prior

    best = minimize(cost, np.zeros(2), method="L-BFGS-B", bounds=[(-3.0, 3.0), (-20.0, 20.0)])
    return math.exp(float(best.x[0])), float(best.x[1])


def conformal_limit(scores: Sequence[float], coverage: float) -> float:
    """The score below which at most 1 - `coverage` of new cases lie, on average over all draws.

    `scores`, in order, are of cases that new ones are exchangeable with: the k-th of n, where
    k = floor((1 - coverage) (n + 1)); 0 if there are too few.
    """
    k = math.floor((1 - coverage) * (len(scores) + 1) + 1e-9)
    return scores[k - 1] if k else 0.0


def tolerance_limit(scores: Sequence[float], sensitivity: float, confidence: float) -> float:
    """The score below which at most 1 - `sensitivity` of new cases lie, with that confidence.

    Of n independent cases (`scores`, in order), at most k may lie below it, where k is the largest
    number with P(Binomial(n, 1 - sensitivity) <= k) <= 1 - confidence; 0 if not even k = 0 has.
    """
    from scipy.stats import binom

    check_share("sensitivity", sensitivity)
    check_share("confidence", confidence)
    n = len(scores)
    able = binom.cdf(np.arange(n), n, 1 - sensitivity) <= 1 - confidence + 1e-12
    return scores[int(able.sum()) - 1] if able.any() else 0.0


def split_units(
    keys: Sequence[str], groups: Sequence[str | None] | None = None
) -> NDArray[np.bool_]:
    """Which cases fit the scale: about a third, by content, whole groups together."""
    units: dict[str, list[int]] = {}
    for row, unit in enumerate(unit_names(keys, groups)):
        units.setdefault(unit, []).append(row)
    # Their place in line depends on the images alone, neither on labels nor on their order.
    by_content = sorted(
        (hashlib.sha256(min(keys[row] for row in rows).encode()).hexdigest(), rows)
        for rows in units.values()
    )
    first = np.zeros(len(keys), dtype=bool)
    for _, rows in by_content[:-1]:  # the last unit is never among them
        if first.sum() + len(rows) / 2 > len(keys) / 3:
            break
        first[rows] = True
    if not first.any() and len(by_content) > 1:
        first[by_content[0][1]] = True
    return first


def unit_names(keys: Sequence[str], groups: Sequence[str | None] | None) -> list[str]:
    """For each case its group, or itself if it has none."""
    names = groups or [None] * len(keys)
    pairs = zip(keys, names, strict=True)
    return [f"image {key}" if group is None else f"group {group}" for key, group in pairs]


def more_needed(images: int) -> str:
    """`1 more is needed`, `2 more are needed`."""
    return f"{images} more {'is' if images == 1 else 'are'} needed"


def held_out_for_coverage(coverage: float) -> int:
    """The fewest cases beside those that fit the scale for sets of that coverage."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def held_out_for_risk(max_risk: float, *, confidence: float = CONFIDENCE) -> int:
    """The same for `threshold`, where the model makes no error at all."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - max_risk) - 1e-9)


def held_out_for_sensitivity(sensitivity: float, confidence: float = CONFIDENCE) -> int:
    """The fewest held-out cases with a finding that can guarantee that sensitivity."""
    return math.ceil(math.log(1 - confidence) / math.log(sensitivity) - 1e-9)


def cases_needed_for_coverage(coverage: float) -> int:
    """The fewest calibration cases, all in all and each of another patient, for such sets."""
    return cases_in_all(held_out_for_coverage(coverage))


def cases_in_all(held_out: int) -> int:
    """The fewest cases of which `split_units` leaves so many, where none share a group."""
    cases = held_out + 1
    while cases - math.floor(cases / 3 + 0.5) < held_out:
        cases += 1
    return cases


def check_share(name: str, value: float) -> None:
    if not 0 < value < 1:  # also refuses a NaN
        raise ConfigError(
            f"{name} is a share between 0 and 1, such as 0.9 or 0.05, but is {value}.",
            argument=name,
        )


def binomial_tail(kept: ArrayLike, wrong: ArrayLike, risk: float) -> Array:
    """P(at most `wrong` errors among `kept` cases) at error rate `risk`; 1 where none is kept.

    By the incomplete beta function, which also has a value between whole numbers.
    """
    from scipy.special import betainc

    n, k = np.asarray(kept, dtype=np.float64), np.asarray(wrong, dtype=np.float64)
    tail = betainc(np.maximum(n - k, 1e-12), k + 1, 1 - risk)
    return np.asarray(np.where(k < n, tail, 1.0))
