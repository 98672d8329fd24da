"""What a model says about each finding of an image: its probability, and yes, no or unsure.

A calibration has, for each finding by itself, the probabilities of held-out images with it and
without it. "no" is said below a probability that few images with the finding have, "yes" above one
that few images without it have; what is few is promised (docs/concepts/trust.md).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ogkd.model.calibration import split_units
from ogkd.model.calibration_file import CalibrationFile, Share, check_share

Answer = Literal["yes", "no", "unsure"]
COVERAGE = 0.9  # what "yes" and "no" promise if nothing else is asked for
CONFIDENCE = 0.9  # of a promised sensitivity
_SPREADS = (0.7, 2.0)  # prior standard deviations of log slope and offset


def sigmoid(logits: ArrayLike) -> NDArray[np.float32]:
    """Probabilities of log-odds, computed in double precision."""
    from scipy.special import expit

    p: NDArray[np.float32] = expit(np.asarray(logits, dtype=np.float64)).astype(np.float32)
    return p


class FindingScores(BaseModel):
    """One finding: how its log-odds are rescaled, and held-out probabilities, in order."""

    model_config = ConfigDict(frozen=True)

    slope: float = Field(gt=0, allow_inf_nan=False)
    offset: float = Field(allow_inf_nan=False)
    present: tuple[Share, ...]  # of images with the finding, the least probable first
    absent: tuple[Share, ...]  # of images without it

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(list(row) != sorted(row) for row in (self.present, self.absent)):
            raise ValueError("probabilities that are not in order")
        return self


class FindingsCalibration(CalibrationFile):
    """What calibration images say about each finding."""

    scores: tuple[FindingScores, ...] = Field(min_length=1)
    sensitivity: float | None = Field(default=None, gt=0, lt=1)  # to promise, if asked for
    confidence: float = Field(default=CONFIDENCE, gt=0, lt=1)

    @property
    def names(self) -> int:
        return len(self.scores)

    @classmethod
    def fit(
        cls,
        logits: ArrayLike,
        labels: ArrayLike,
        keys: Sequence[str],
        *,
        groups: Sequence[str | None] | None = None,
        pixels: Sequence[str] = (),
        weights_sha256: str = "",
        engine: str | None = None,
        sensitivity: float | None = None,
        confidence: float = CONFIDENCE,
    ) -> Self:
        """Calibrate on log-odds [N, F] of images with labels [N, F] (1, 0, -1: unknown).

        A third of the images, whole groups together, rescales the log-odds; the others give the
        probabilities. The other arguments are those of `Calibration.fit`.
        """
        if sensitivity is not None:
            check_share("sensitivity", sensitivity)
        check_share("confidence", confidence)
        z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.int64)
        first = split_units(keys, groups)
        scores = []
        for f in range(z.shape[1]):
            fits = first & (y[:, f] >= 0)
            slope, offset = fit_odds(z[fits, f], y[fits, f])
            p = sigmoid(slope * z[:, f] + offset)
            present, absent = (
                tuple(np.sort(p[~first & (y[:, f] == said)]).tolist()) for said in (1, 0)
            )
            scores.append(FindingScores(slope=slope, offset=offset, present=present, absent=absent))
        images = sorted(zip(keys, y.tolist(), strict=True))
        return cls(
            weights_sha256=weights_sha256,
            engine=engine,
            images=len(y),
            data_sha256=hashlib.sha256(json.dumps(images).encode()).hexdigest(),
            image_keys=tuple(sorted(set(keys))),
            image_pixels=tuple(sorted(set(pixels))),
            scores=tuple(scores),
            sensitivity=sensitivity,
            confidence=confidence,
        )

    def probabilities(self, logits: ArrayLike) -> NDArray[np.float32]:
        """Probabilities [N, F] of log-odds [N, F]."""
        slopes, offsets = np.array([(one.slope, one.offset) for one in self.scores]).T
        return sigmoid(np.asarray(logits, dtype=np.float64) * slopes + offsets)

    def limits(
        self,
        *,
        coverage: float = COVERAGE,
        sensitivity: float | None = None,
        confidence: float | None = None,
    ) -> list[Limits]:
        """The probabilities of each finding between which nothing can be promised."""
        wanted = self.sensitivity if sensitivity is None else sensitivity
        sure = self.confidence if confidence is None else confidence
        return [
            Limits(
                no_below=tolerance_limit(one.present, wanted, sure)
                if wanted is not None
                else conformal_limit(one.present, coverage),
                yes_above=-conformal_limit([-p for p in reversed(one.absent)], coverage, none=-1.0),
            )
            for one in self.scores
        ]


@dataclass(frozen=True)
class Limits:
    """Of one finding: "no" below the first, "yes" above the second; where both hold, by half."""

    no_below: float = 0.5
    yes_above: float = math.nextafter(0.5, 0)

    def answer(self, p: float) -> Answer:
        no, yes = p < self.no_below, p > self.yes_above
        if no and yes:
            return "yes" if p >= 0.5 else "no"
        return "yes" if yes else "no" if no else "unsure"


def conformal_limit(scores: Sequence[float], coverage: float, *, none: float = 0.0) -> float:
    """The score below which at most 1 - `coverage` of new images lie, on average over all draws.

    `scores`, in order, are of images that new ones are exchangeable with: the k-th of n, where
    k = floor((1 - coverage) (n + 1)); `none` if there are too few.
    """
    check_share("coverage", coverage)
    k = math.floor((1 - coverage) * (len(scores) + 1) + 1e-9)
    return scores[k - 1] if k else none


def tolerance_limit(scores: Sequence[float], sensitivity: float, confidence: float) -> float:
    """The score below which at most 1 - `sensitivity` of new images lie, with that confidence.

    Of n independent images (`scores`, in order), at most k may lie below it, where k is the largest
    number with P(Binomial(n, 1 - sensitivity) <= k) <= 1 - confidence; 0 if not even k = 0 has.
    """
    from scipy.stats import binom

    check_share("sensitivity", sensitivity)
    check_share("confidence", confidence)
    n = len(scores)
    able = binom.cdf(np.arange(n), n, 1 - sensitivity) <= 1 - confidence + 1e-12
    return scores[int(able.sum()) - 1] if able.any() else 0.0


def needed_for_sensitivity(sensitivity: float, confidence: float = CONFIDENCE) -> int:
    """The fewest held-out images with a finding that can promise that sensitivity."""
    return math.ceil(math.log(1 - confidence) / math.log(sensitivity) - 1e-9)


def fit_odds(z: NDArray[np.float64], y: NDArray[np.int64]) -> tuple[float, float]:
    """Slope and offset of log-odds by the likelihood of labels y (0 or 1), times a weak prior.

    The prior keeps them near 1 and 0 where there are few images, or all show the same.
    """
    from scipy.optimize import minimize

    sign = 2.0 * y - 1

    def cost(found: NDArray[np.float64]) -> float:
        new = math.exp(found[0]) * z + found[1]
        prior = float(((found / _SPREADS) ** 2).sum()) / 2
        return float(np.logaddexp(0.0, -sign * new).sum()) + prior

    best = minimize(cost, np.zeros(2), method="L-BFGS-B", bounds=[(-3.0, 3.0), (-20.0, 20.0)])
    return math.exp(float(best.x[0])), float(best.x[1])
