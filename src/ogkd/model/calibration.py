"""`calibration.json`: what held-out cases say about a model's probabilities.

For each question of the task: a scale (and, for findings, a shift) of logits, the probabilities of
right answers, from which prediction sets follow, and what is needed for a threshold to abstain
below. A third of the cases, chosen by content, fits the scale and proposes thresholds; the others,
which it has not seen, give the sets and the risk. Both guarantees rest on that.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ogkd.datasets.task import Array, Labels, Probabilities, Task, softmax
from ogkd.errors import ConfigError, counted
from ogkd.files import write_json
from ogkd.records import read_record, sealed

CALIBRATION = "calibration.json"
SCHEMA = 3
COVERAGE = 0.9  # of prediction sets if none is requested
CONFIDENCE = 0.9  # with which a guarantee about risk or sensitivity holds
TEMPERATURES = (0.05, 20.0)  # between which the temperature lies
STEPS = 20  # shares of cases that thresholds are tried at: 5, 10, ... 100 %
_PRIOR = 0.7  # standard deviation of the log of the scale before any case is seen
_SHIFT_PRIOR = 2.0  # and of the shift
_LEVEL = 0.05  # of the test whether rescaling helps
Share = Annotated[float, Field(ge=0, le=1)]


class Question(BaseModel):
    """The calibration of one choice between classes."""

    model_config = ConfigDict(frozen=True)

    scale: float = Field(gt=0, allow_inf_nan=False)
    shift: tuple[float, ...] = ()  # of each class; () for none
    reason: str | None = None  # why the scale is 1; None if rescaling helps
    counts: tuple[int, ...]  # cases of each class
    # Of the cases that fitted the scale, the most confident first:
    first_confidences: tuple[Share, ...]
    first_correct: tuple[bool, ...]
    # Of the others, the most confident first:
    confidences: tuple[Share, ...]
    correct: tuple[bool, ...]
    scores: tuple[tuple[Share, ...], ...]  # of each class, when it is right: ascending

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.first_confidences) != len(self.first_correct):
            raise ValueError("lists of different length")
        held_out = sum(map(len, self.scores))
        if not len(self.confidences) == len(self.correct) == held_out:
            raise ValueError("lists of different length")
        if len(self.scores) != len(self.counts) or len(self.shift) not in (0, len(self.counts)):
            raise ValueError("scores of another number of classes")
        if any(list(row) != sorted(row) for row in self.scores):
            raise ValueError("probabilities that are not in order")
        if sum(self.counts) != len(self.first_confidences) + held_out:
            raise ValueError("counts that do not add up")
        return self

    @classmethod
    def fit(
        cls,
        logits: Array,
        labels: Labels,
        first: NDArray[np.bool_],
        keys: Sequence[str],
        *,
        affine: bool,
        units: int,
    ) -> Question:
        """Fit on logits [N, C] of cases with labels [N]; those marked `first` fit the scale.

        `units` counts independent cases, such as patients, among the first.
        """
        shift: tuple[float, ...] = ()
        reason = None
        if affine:
            scale, offset = fit_odds(logits[first, 1] - logits[first, 0], labels[first])
            shift = (0.0, offset)
        else:
            temperature, reason = justified_temperature(logits[first], labels[first], units=units)
            scale = 1 / temperature
        p = _rescaled(logits, scale, shift)
        confidence = p.max(axis=1).astype(np.float64)
        right = p.argmax(axis=1) == labels
        order = np.lexsort((np.asarray(keys), -confidence))
        fitted, rest = order[first[order]], order[~first[order]]
        classes = logits.shape[1]
        shares = p.astype(np.float64)
        if affine:  # as `Findings.plausible` has it: equal ones must stay equal after rounding
            shares[:, 0] = 1 - shares[:, 1]
        scores = [np.sort(shares[~first & (labels == c), c]).tolist() for c in range(classes)]
        return cls(
            scale=scale,
            shift=shift,
            reason=reason,
            counts=tuple(np.bincount(labels, minlength=classes).tolist()),
            first_confidences=tuple(confidence[fitted].tolist()),
            first_correct=tuple(right[fitted].tolist()),
            confidences=tuple(confidence[rest].tolist()),
            correct=tuple(right[rest].tolist()),
            scores=tuple(map(tuple, scores)),
        )

    @property
    def temperature(self) -> float:
        return 1 / self.scale

    @property
    def applied(self) -> bool:
        """Whether probabilities are rescaled; sets and thresholds work either way."""
        return self.scale != 1.0 or any(self.shift)

    def probabilities(self, logits: Array) -> Probabilities:
        """Rescaled probabilities [N, C] of logits [N, C]."""
        return _rescaled(logits, self.scale, self.shift)

    def threshold(self, max_risk: float, *, confidence: float = CONFIDENCE) -> float:
        """The top probability below which to abstain, so that few of the kept cases are wrong.

        With probability at least `confidence` over the calibration cases, the error rate among
        future cases whose calibrated top probability is at least the threshold is at most
        `max_risk`. It holds for cases that are independent draws from where the calibration
        cases were drawn. How: the cases that fitted the scale propose thresholds, from the most
        promising to lower and lower ones; on the others each is tested in turn by the exact
        binomial tail (fixed-sequence testing). The last before the first failure is given.
        """
        check_share("max_risk", max_risk)
        check_share("confidence", confidence)
        passed = None
        for threshold in self._proposals(max_risk):
            if _tail(*self._kept(threshold), max_risk) > 1 - confidence:
                break
            passed = threshold
        if passed is None:
            raise self._no_threshold(max_risk, confidence)
        return passed

    def _proposals(self, max_risk: float) -> list[float]:
        """Thresholds in the order to test them, from the cases that fitted the scale."""
        seen, right = np.asarray(self.first_confidences), np.asarray(self.first_correct, bool)
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
        """How many of the other cases a threshold keeps, and how many of those are wrong."""
        kept = np.asarray(self.confidences) >= threshold
        return int(kept.sum()), int((kept & ~np.asarray(self.correct, bool)).sum())

    def _no_threshold(self, max_risk: float, confidence: float) -> ConfigError:
        goal = f"at most {100 * max_risk:g} % errors with {100 * confidence:g} % confidence"
        # What the same model would need if more cases were like those that were seen.
        growth = np.geomspace(1, 1000, 200)[:, None]
        counts = np.array([self._kept(t) for t in sorted(set(self.confidences))])
        kept, wrong = np.floor(counts[:, 0] * growth), np.ceil(counts[:, 1] * growth)
        # A handful that happens to be right promises nothing: at least a tenth.
        hopeful = (counts[:, 1] < max_risk * counts[:, 0]) & (counts[:, 0] >= counts[0, 0] / 10)
        enough = ((_tail(kept, wrong, max_risk) <= 1 - confidence) & hopeful).any(axis=1)
        cases = sum(self.counts)
        if not enough.any():
            images, errors = counts[0]
            return ConfigError(
                f"No threshold gives {goal}: {errors} of {images} calibration images are wrong, "
                "and hardly fewer among those that the model is sure of. Allow a larger risk, or "
                "use a better model.",
                argument="max_risk",
            )
        more = math.ceil(cases * growth[enough.argmax(), 0]) - cases
        # Some threshold may just pass on these cases, but not one that the first third proposes.
        more = max(more, math.ceil(cases / 4))
        return ConfigError(
            f"{cases} calibration images are too few to guarantee {goal}. About "
            f"{more_needed(more)} if they are like these. Calibrate again with more images, or "
            "allow a larger risk.",
            argument="max_risk",
        )


class Calibration(BaseModel):
    """What was learned from calibration cases; no image and no image's name is in it."""

    model_config = ConfigDict(frozen=True)

    schema_version: int = SCHEMA
    weights_sha256: str  # of the model that it belongs to
    engine: str | None = None  # that encoded the images
    cases: int = Field(ge=2)
    data_sha256: str
    image_keys: tuple[str, ...]  # as in ModelCard.support_images
    image_pixels: tuple[str, ...] = ()  # as in ModelCard.support_pixels
    questions: tuple[Question, ...] = Field(min_length=1)
    sensitivity: float | None = Field(default=None, gt=0, lt=1)  # to guarantee, if requested
    confidence: float = Field(default=CONFIDENCE, gt=0, lt=1)  # with which it holds

    @classmethod
    def fit(
        cls,
        task: Task,
        logits: ArrayLike,
        labels: ArrayLike,
        keys: Sequence[str],
        *,
        groups: Sequence[str | None] | None = None,
        image_keys: Sequence[str] | None = None,
        pixels: Sequence[str] = (),
        weights_sha256: str = "",
        engine: str | None = None,
        sensitivity: float | None = None,
        confidence: float = CONFIDENCE,
    ) -> Self:
        """Calibrate on logits [N, C] of cases with labels [N] or [N, F]; `keys` name their content.

        Cases of one group (patient) stay on one side of the division. `engine` encoded them,
        `image_keys` and `pixels` recognise their images again. The scale stays 1 unless the cases
        show that another one is better.
        """
        if sensitivity is not None:
            check_share("sensitivity", sensitivity)
        check_share("confidence", confidence)
        y = np.asarray(labels, dtype=np.int64)
        first = split_units(keys, groups)
        units = len({unit for unit, fits in zip(_units(keys, groups), first, strict=True) if fits})
        questions = []
        for z, answers in zip(task.questions(logits), task.question_labels(y), strict=True):
            known = answers >= 0
            names = [key for key, keep in zip(keys, known, strict=True) if keep]
            questions.append(
                Question.fit(
                    z[known], answers[known], first[known], names, affine=task.affine, units=units
                )
            )
        cases = sorted(zip(keys, y.tolist(), strict=True))
        return cls(
            weights_sha256=weights_sha256,
            engine=engine,
            cases=len(y),
            data_sha256=hashlib.sha256(json.dumps(cases).encode()).hexdigest(),
            image_keys=tuple(sorted(set(image_keys or keys))),
            image_pixels=tuple(sorted(set(pixels))),
            questions=tuple(questions),
            sensitivity=sensitivity,
            confidence=confidence,
        )

    def __repr__(self) -> str:
        rescaled = sum(question.applied for question in self.questions)
        return f"<Calibration on {self.cases} cases: {rescaled} of {len(self.questions)} rescaled>"

    __str__ = __repr__

    @property
    def seen(self) -> frozenset[str]:
        """The calibration images by content and by pixels."""
        return frozenset((*self.image_keys, *self.image_pixels))

    def limits(
        self,
        task: Task,
        coverage: float = COVERAGE,
        *,
        sensitivity: float | None = None,
        confidence: float | None = None,
    ) -> list[Array]:
        """For each question, the smallest probability of each class that is still plausible [C].

        If new cases are exchangeable with the calibration cases, the right class is plausible with
        probability at least `coverage`: on average over classes, or for findings among the cases
        that show one and among those that do not. `sensitivity` instead holds with `confidence`
        for the cases that show a finding. 0 where there are too few cases: always plausible.
        """
        check_share("coverage", coverage)
        wanted = self.sensitivity if sensitivity is None else sensitivity
        level = self.confidence if confidence is None else confidence
        limits = []
        for question in self.questions:
            if not task.affine:
                pooled = sorted(score for scores in question.scores for score in scores)
                limits.append(np.full(len(question.scores), conformal_limit(pooled, coverage)))
                continue
            absent, present = question.scores
            least = (
                conformal_limit(present, coverage)
                if wanted is None
                else tolerance_limit(present, wanted, level)
            )
            limits.append(np.array([conformal_limit(absent, coverage), least]))
        return limits

    def require_sets(self, coverage: float) -> None:
        """Raise unless there are cases enough for sets of that coverage."""
        check_share("coverage", coverage)
        held_out, needed = self._held_out, held_out_for_coverage(coverage)
        if held_out < needed:
            raise ConfigError(
                f"Sets that contain the true class with {100 * coverage:g} % probability need at "
                f"least {needed} calibration images beside those that fit the scale, but there are "
                f"{held_out}: at least {more_needed(self.missing(needed))}. Calibrate again with "
                "more images, or ask for less coverage.",
                argument="coverage",
            )

    @property
    def _held_out(self) -> int:
        return max(len(question.confidences) for question in self.questions)

    def missing(self, held_out: int) -> int:
        """How many more cases it takes, at the least, until so many do not fit the scale.

        Whole patients go to one side, so with patients it may take more.
        """
        short = held_out - self._held_out
        return max(short, _in_all(held_out) - self.cases) if short > 0 else 0

    @classmethod
    def read(cls, path: Path, task: Task, *, weights_sha256: str | None = None) -> Self | None:
        """Read and check; None if there is no such file. Other weights are refused."""
        try:
            calibration = read_record(path, cls, oldest=SCHEMA, newest=SCHEMA)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise _unusable(path, f"is damaged ({error})") from error
        if weights_sha256 not in (None, calibration.weights_sha256):
            raise _unusable(path, "belongs to other weights than those beside it")
        shapes = [table.shape[1] for table in task.questions(np.zeros((1, len(task.names))))]
        if shapes != [len(question.scores) for question in calibration.questions]:
            raise _unusable(path, f"is not for these {len(task.names)} {task.plural}")
        return calibration

    def write(self, path: Path) -> None:
        """Write the file in one step."""
        write_json(path, sealed(self.model_dump(mode="json")), ours=True)


def _rescaled(logits: Array, scale: float, shift: Sequence[float]) -> Probabilities:
    z = np.asarray(logits, dtype=np.float64) * scale
    return softmax(z + np.asarray(shift) if shift else z)


def justified_temperature(logits: Array, labels: Labels, *, units: int) -> tuple[float, str | None]:
    """The temperature, or 1 and the reason if these cases do not show that another is better.

    A likelihood ratio test against 1 (5 %, one degree of freedom), counting patients rather than
    cases where there are fewer (`units`). Comparing the losses of left-out cases instead finds
    a fourfold overconfidence in 16 cases in only one of five draws, this in nine of ten.
    """
    from scipy.stats import chi2

    temperature = fit_temperature(logits, labels)
    images = f"The {counted(len(labels), 'image')} for fitting the temperature"
    if temperature == 1.0:
        return 1.0, (
            f"{images} cannot show whether rescaling helps, as the model makes no error there; "
            "probabilities stay as they are."
        )
    gain = len(labels) * (_loss(logits, labels, 1.0) - _loss(logits, labels, temperature))
    if chi2.sf(2 * gain * units / len(labels), 1) > _LEVEL:
        return 1.0, f"{images} cannot show that rescaling helps; probabilities stay as they are."
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
    return _in_all(held_out_for_coverage(coverage))


def _in_all(held_out: int) -> int:
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


def _tail(kept: ArrayLike, wrong: ArrayLike, risk: float) -> Array:
    """P(at most `wrong` errors among `kept` cases) at error rate `risk`; 1 where none is kept.

    By the incomplete beta function, which also has a value between whole numbers.
    """
    from scipy.special import betainc

    n, k = np.asarray(kept, dtype=np.float64), np.asarray(wrong, dtype=np.float64)
    tail = betainc(np.maximum(n - k, 1e-12), k + 1, 1 - risk)
    return np.asarray(np.where(k < n, tail, 1.0))


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} {why}. Calibrate again, or delete this file.")
