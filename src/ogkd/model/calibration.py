"""`calibration.json`: what held-out images say about a model's probabilities.

A temperature, prediction sets that contain the true class, and a threshold to abstain below.
A third of the images, chosen by content, fits the temperature and proposes thresholds; the
others, which it has not seen, give the sets and the risk. Both guarantees rest on that.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from ogkd.errors import ConfigError
from ogkd.model.calibration_file import CALIBRATION as CALIBRATION
from ogkd.model.calibration_file import SCHEMA as SCHEMA
from ogkd.model.calibration_file import CalibrationFile, Share
from ogkd.model.calibration_file import check_share as check_share
from ogkd.model.temperature import BOUNDS, justified_temperature, softmax

SetKind = Literal["lac", "aps"]
STEPS = 20  # shares of images that thresholds are tried at: 5, 10, ... 100 %


class Calibration(CalibrationFile):
    """What calibration images say about the probabilities of classes."""

    temperature: float = Field(ge=0.99 * BOUNDS[0], le=1.01 * BOUNDS[1])
    reason: str | None = None  # why the temperature is 1; None if rescaling helps
    counts: tuple[int, ...]  # images of each class
    # Of the images that fitted the temperature, the most confident first:
    first_confidences: tuple[Share, ...] = Field(min_length=1)
    first_correct: tuple[bool, ...]
    # Of the others, the most confident first:
    confidences: tuple[Share, ...] = Field(min_length=1)
    correct: tuple[bool, ...]
    lac: tuple[Share, ...]  # scores of the true class, see `lac_scores` and `aps_scores`
    aps: tuple[Share, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        first, rest = len(self.first_confidences), len(self.confidences)
        found = [len(row) for row in (self.first_correct, self.correct, self.lac, self.aps)]
        if found != [first, rest, rest, rest]:
            raise ValueError("lists of different length")
        if not sum(self.counts) == first + rest == self.images:
            raise ValueError(f"counts that do not add up to {self.images} images")
        return self

    def __repr__(self) -> str:
        right = 100 * sum(self.correct) / len(self.correct)
        return (
            f"<Calibration on {self.images} images: temperature {self.temperature:.3f}, "
            f"{right:.1f} % of {len(self.correct)} correct>"
        )

    __str__ = __repr__

    @property
    def applied(self) -> bool:
        """Whether probabilities are rescaled; sets and thresholds work either way."""
        return self.temperature != 1.0

    @property
    def names(self) -> int:
        return len(self.counts)

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
    ) -> Calibration:
        """Calibrate on logits [N, C] of images with labels [N]; `keys` name their content.

        Images of one group (patient) stay on one side of the division. `engine` encoded them,
        `pixels` are the fingerprints of their pixels. The temperature stays 1 unless the images
        show that another one is better.
        """
        z, y = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.int64)
        first = split_units(keys, groups)
        units = len({unit for unit, fits in zip(_units(keys, groups), first, strict=True) if fits})
        temperature, reason = justified_temperature(z[first], y[first], units=units)
        p = softmax(z, temperature)
        confidence = p.max(axis=1).astype(np.float64)
        right = p.argmax(axis=1) == y
        order = np.lexsort((np.asarray(keys), -confidence))
        fitted, rest = order[first[order]], order[~first[order]]
        rows = np.arange(len(rest))
        images = sorted(zip(keys, y.tolist(), strict=True))
        return cls(
            weights_sha256=weights_sha256,
            engine=engine,
            temperature=temperature,
            reason=reason,
            images=len(y),
            counts=tuple(np.bincount(y, minlength=z.shape[1]).tolist()),
            data_sha256=hashlib.sha256(json.dumps(images).encode()).hexdigest(),
            image_keys=tuple(sorted(set(keys))),
            image_pixels=tuple(sorted(set(pixels))),
            first_confidences=tuple(confidence[fitted].tolist()),
            first_correct=tuple(right[fitted].tolist()),
            confidences=tuple(confidence[rest].tolist()),
            correct=tuple(right[rest].tolist()),
            lac=tuple(lac_scores(p[rest])[rows, y[rest]].tolist()),
            aps=tuple(aps_scores(p[rest])[rows, y[rest]].tolist()),
        )

    def probabilities(self, logits: ArrayLike) -> NDArray[np.float32]:
        """softmax(logits / temperature), [N, C]: the order of the classes stays as it was."""
        return softmax(logits, self.temperature)

    def sets(
        self, p: ArrayLike, *, coverage: float = 0.9, kind: SetKind = "lac"
    ) -> NDArray[np.bool_]:
        """Prediction sets [N, C] from calibrated probabilities [N, C] (split conformal).

        If new images are exchangeable with the calibration images, the set contains the true
        class with probability at least `coverage`, on average over images and calibrations (not
        for each class or each patient). "lac" gives the smallest sets on average; one may be
        empty: no class fits. "aps" grows sets where the model hesitates; not randomised, never
        empty, and so a little larger than need be.
        """
        check_share("coverage", coverage)
        if kind not in ("lac", "aps"):
            raise ConfigError(f"Sets are 'lac' or 'aps', but got '{kind}'.")
        seen = np.sort(self.lac if kind == "lac" else self.aps)
        rank = conformal_rank(len(seen), coverage)
        if rank > len(seen):
            needed = held_out_for_coverage(coverage)
            raise ConfigError(
                f"Sets that contain the true class with {100 * coverage:g} % probability need at "
                f"least {needed} calibration images beside those that set the temperature. This "
                f"calibration has {self.images}, of which {len(seen)} count: at least "
                f"{more_needed(self.missing(needed))}, of other patients if they are known. "
                "Calibrate again with more images, or ask for less coverage.",
                argument="coverage",
            )
        rows = np.asarray(p)
        scores = lac_scores(rows) if kind == "lac" else aps_scores(rows)
        found: NDArray[np.bool_] = scores <= seen[rank - 1]
        if kind == "aps":
            found |= rows == rows.max(axis=1, keepdims=True)
        return found

    def least_probability(self, coverage: float) -> float | None:
        """A class is in the "lac" set if its probability is at least this; None: too few images."""
        seen = sorted(self.lac)
        rank = conformal_rank(len(seen), coverage)
        return max(0.0, 1.0 - seen[rank - 1]) if rank <= len(seen) else None

    def missing(self, held_out: int) -> int:
        """How many more images it takes, at the least, until so many do not fit the temperature.

        Whole patients go to one side, so with patients it may take more.
        """
        short = held_out - len(self.confidences)
        return max(short, _in_all(held_out) - self.images) if short > 0 else 0

    def threshold(self, max_risk: float, *, confidence: float = 0.9) -> float:
        """The top probability below which to abstain, so that few of the kept images are wrong.

        With probability at least `confidence` over the calibration images, the error rate among
        future images whose calibrated top probability is at least the threshold is at most
        `max_risk`. It holds for images that are independent draws from where the calibration
        images were drawn. How: the images that fitted the temperature propose thresholds, from
        the most promising to lower and lower ones; on the others each is tested in turn by the
        exact binomial tail (fixed-sequence testing). The last before the first failure is given.
        """
        check_share("max_risk", max_risk)
        check_share("confidence", confidence)
        found = None
        for threshold in self._proposals(max_risk):
            if _tail(*self._kept(threshold), max_risk) > 1 - confidence:
                break
            found = threshold
        if found is None:
            raise self._no_threshold(max_risk, confidence)
        return found

    def _proposals(self, max_risk: float) -> list[float]:
        """Thresholds in the order to test them, from the images that fitted the temperature."""
        seen, right = np.asarray(self.first_confidences), np.asarray(self.first_correct)
        quantiles = np.quantile(seen, np.arange(1, STEPS) / STEPS)
        falling = np.array([*sorted(set(quantiles.tolist()), reverse=True), 0.0])
        kept = (seen >= falling[:, None]).sum(axis=1)
        wrong = ((seen >= falling[:, None]) & ~right).sum(axis=1)
        # What the test will say if the others are alike; half an error more, as a precaution.
        share = len(self.confidences) / len(seen)
        p_value = _tail(kept * share, (wrong + 0.5) / (kept + 1) * kept * share, max_risk)
        best = int(np.flatnonzero(p_value == p_value.min())[-1])
        return [float(threshold) for threshold in falling[best:]]

    def _kept(self, threshold: float) -> tuple[int, int]:
        """How many of the other images a threshold keeps, and how many of those are wrong."""
        kept = np.asarray(self.confidences) >= threshold
        return int(kept.sum()), int((kept & ~np.asarray(self.correct)).sum())

    def _no_threshold(self, max_risk: float, confidence: float) -> ConfigError:
        goal = f"at most {100 * max_risk:g} % errors with {100 * confidence:g} % confidence"
        # What the same model would need if more images were like those that were seen.
        growth = np.geomspace(1, 1000, 200)[:, None]
        counts = np.array([self._kept(t) for t in sorted(set(self.confidences))])
        kept, wrong = np.floor(counts[:, 0] * growth), np.ceil(counts[:, 1] * growth)
        # A handful that happens to be right promises nothing: at least a tenth.
        hopeful = (counts[:, 1] < max_risk * counts[:, 0]) & (counts[:, 0] >= counts[0, 0] / 10)
        enough = ((_tail(kept, wrong, max_risk) <= 1 - confidence) & hopeful).any(axis=1)
        if not enough.any():
            images, errors = counts[0]
            return ConfigError(
                f"No threshold gives {goal}: {errors} of {images} calibration images are wrong, "
                "and hardly fewer among those that the model is sure of. Allow a larger risk, or "
                "use a better model."
            )
        more = math.ceil(self.images * growth[enough.argmax(), 0]) - self.images
        # Some threshold may just pass on these images, but not one that the first third proposes.
        more = max(more, math.ceil(self.images / 4))
        return ConfigError(
            f"{self.images} calibration images are too few to promise {goal}. About "
            f"{more_needed(more)} if they are like these. Calibrate again with more images, or "
            "allow a larger risk."
        )


def more_needed(images: int) -> str:
    """`1 more is needed`, `2 more are needed`."""
    return f"{images} more {'is' if images == 1 else 'are'} needed"


def lac_scores(p: ArrayLike) -> NDArray[np.float64]:
    """1 - p of each class, [N, C]."""
    return 1.0 - np.asarray(p, dtype=np.float64)


def aps_scores(p: ArrayLike) -> NDArray[np.float64]:
    """For each class the summed probability of all classes at least as probable, [N, C]."""
    rows = np.asarray(p, dtype=np.float64)
    order = np.argsort(-rows, axis=1, kind="stable")
    ranked = np.take_along_axis(rows, order, axis=1)
    sums = ranked.cumsum(axis=1)
    for column in range(rows.shape[1] - 2, -1, -1):  # classes of equal probability count together
        tied = ranked[:, column] == ranked[:, column + 1]
        sums[tied, column] = sums[tied, column + 1]
    scores = np.empty_like(rows)
    np.put_along_axis(scores, order, sums, axis=1)
    # Sums of float32 end at 1 give or take 1e-7, which must not decide about the last class.
    return np.minimum(scores.round(6), 1.0)


def conformal_rank(images: int, coverage: float) -> int:
    """Which smallest score of `images` is the limit: ceil((n + 1) * coverage)."""
    return math.ceil((images + 1) * coverage - 1e-9)  # 20 * 0.55 is a little more than 11


def split_units(
    keys: Sequence[str], groups: Sequence[str | None] | None = None
) -> NDArray[np.bool_]:
    """Which images fit the temperature: about a third, by content, whole groups together."""
    units: dict[str, list[int]] = {}
    for row, unit in enumerate(_units(keys, groups)):
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


def _units(keys: Sequence[str], groups: Sequence[str | None] | None) -> list[str]:
    """For each image its group, or itself if it has none."""
    names = groups or [None] * len(keys)
    pairs = zip(keys, names, strict=True)
    return [f"image {key}" if group is None else f"group {group}" for key, group in pairs]


def held_out_for_coverage(coverage: float) -> int:
    """The fewest images beside those that fit the temperature for sets of that coverage."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def held_out_for_risk(max_risk: float, *, confidence: float = 0.9) -> int:
    """The same for `threshold`, where the model makes no error at all."""
    return math.ceil(math.log(1 - confidence) / math.log(1 - max_risk) - 1e-9)


def images_needed_for_coverage(coverage: float) -> int:
    """The fewest calibration images, all in all and each of another patient, for such sets."""
    return _in_all(held_out_for_coverage(coverage))


def _in_all(held_out: int) -> int:
    """The fewest images of which `split_units` leaves so many, where none share a group."""
    images = held_out + 1
    while images - math.floor(images / 3 + 0.5) < held_out:
        images += 1
    return images


def _tail(kept: ArrayLike, wrong: ArrayLike, risk: float) -> NDArray[np.float64]:
    """P(at most `wrong` errors among `kept` images) at error rate `risk`; 1 where none is kept.

    By the incomplete beta function, which also has a value between whole numbers.
    """
    from scipy.special import betainc

    n, k = np.asarray(kept, dtype=np.float64), np.asarray(wrong, dtype=np.float64)
    found = betainc(np.maximum(n - k, 1e-12), k + 1, 1 - risk)
    return np.asarray(np.where(k < n, found, 1.0))
