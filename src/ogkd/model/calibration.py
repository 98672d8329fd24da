"""`calibration.json`: what held-out cases say about a model's probabilities.

For each question of the task: a scale (and, for findings, a shift) of logits, the probabilities of
right answers, from which prediction sets follow, and what is needed for a threshold to abstain
below. A third of the cases, chosen by content, fits the scale and proposes thresholds; the others,
which it has not seen, give the sets and the risk. Both guarantees rest on that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ogkd.data.task import Array, Labels, Masks, Probabilities, Task, softmax
from ogkd.errors import ConfigError, pluralize
from ogkd.files import write_json
from ogkd.model.scaling import (
    CONFIDENCE,
    binomial_tail,
    cases_in_all,
    check_share,
    conformal_limit,
    fit_odds,
    fit_temperature,
    held_out_for_coverage,
    held_out_for_risk,
    held_out_for_sensitivity,
    justified_temperature,
    more_needed,
    split_units,
    tolerance_limit,
    unit_names,
)
from ogkd.records import read_record, sealed

CALIBRATION = "calibration.json"
SCHEMA = 3
COVERAGE = 0.9  # of prediction sets if none is requested
STEPS = 20  # shares of cases that thresholds are tried at: 5, 10, ... 100 %
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
        held_out, classes = sum(map(len, self.scores)), len(self.counts)
        if (
            len(self.first_confidences) != len(self.first_correct)
            or not len(self.confidences) == len(self.correct) == held_out
            or sum(self.counts) != len(self.first_confidences) + held_out
            or len(self.scores) != classes
            or len(self.shift) not in (0, classes)
        ):
            raise ValueError("lists of different length")
        if any(list(row) != sorted(row) for row in self.scores):
            raise ValueError("probabilities that are not in order")
        return self

    @classmethod
    def fit(
        cls,
        logits: Array,
        labels: Labels,
        first: NDArray[np.bool_],
        keys: Sequence[str],
        *,
        shifted: bool,
        units: int | None,
    ) -> Question:
        """Fit on logits [N, C] of cases with labels [N]; those marked `first` fit the scale.

        `shifted` fits a shift of log-odds, too; `units` counts independent cases, such as
        patients, among the first: with None all cases fit the scale, whether or not a test can
        show that it helps.
        """
        fits = first if units is not None else np.ones_like(first)
        shift: tuple[float, ...] = ()
        reason = None
        if shifted:
            scale, offset = fit_odds(logits[fits, 1] - logits[fits, 0], labels[fits])
            shift = (0.0, offset)
        elif units is None:
            scale = 1 / fit_temperature(logits, labels)
        else:
            temperature, reason = justified_temperature(logits[fits], labels[fits], units=units)
            scale = 1 / temperature
        p = _rescaled(logits, scale, shift)
        confidence = p.max(axis=1).astype(np.float64)
        right = p.argmax(axis=1) == labels
        order = np.lexsort((np.asarray(keys), -confidence))
        fitted, rest = order[first[order]], order[~first[order]]
        classes = logits.shape[1]
        shares = p.astype(np.float64)
        if shifted:  # as `Findings.plausible` has it: equal ones must stay equal after rounding
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
        tops, wrong = np.asarray(self.confidences), ~np.asarray(self.correct, bool)
        passed = None
        for threshold in self._proposals(max_risk):
            kept = tops >= threshold
            if binomial_tail(kept.sum(), (kept & wrong).sum(), max_risk) > 1 - confidence:
                break
            passed = threshold
        if passed is None:
            goal = f"at most {100 * max_risk:g} % errors with {100 * confidence:g} % confidence"
            raise ConfigError(
                f"No threshold gives {goal}: {wrong.sum()} of {len(wrong)} held-out calibration "
                f"images are wrong. {self._remedy(int(wrong.sum()), max_risk, confidence)}",
                argument="max_risk",
            )
        return passed

    def _remedy(self, wrong: int, max_risk: float, confidence: float) -> str:
        """What gives a threshold; more cases do not where one answer to all is as often right."""
        more = self.missing(held_out_for_risk(max_risk, confidence=confidence))
        if wrong / len(self.confidences) >= 1 - max(self.counts) / sum(self.counts):
            return "No number of images helps, as guessing is as good: use a better model."
        if more:
            return f"At least {more_needed(more)}, or a larger risk."
        return "Calibrate with more images, allow a larger risk, or use a better model."

    def missing(self, held_out: int) -> int:
        """How many more cases it takes, at the least, until so many do not fit the scale.

        Whole patients go to one side, so with patients it may take more.
        """
        short = held_out - len(self.confidences)
        return max(short, cases_in_all(held_out) - sum(self.counts)) if short > 0 else 0

    def _proposals(self, max_risk: float) -> list[float]:
        """Thresholds in the order to test them, from the cases that fitted the scale."""
        confidences, correct = self.first_confidences, self.first_correct
        if not confidences:  # all cases fit the scale
            confidences, correct = self.confidences, self.correct
        seen, right = np.asarray(confidences), np.asarray(correct, bool)
        quantiles = np.quantile(seen, np.arange(1, STEPS) / STEPS)
        falling = np.array([*sorted(set(quantiles.tolist()), reverse=True), 0.0])
        kept = (seen >= falling[:, None]).sum(axis=1)
        wrong = ((seen >= falling[:, None]) & ~right).sum(axis=1)
        # What the test will say if the others are alike; half an error more, as a precaution.
        share = len(self.confidences) / len(seen)
        p_value = binomial_tail(kept * share, (wrong + 0.5) / (kept + 1) * kept * share, max_risk)
        best = int(np.flatnonzero(p_value == p_value.min())[-1])
        return [float(threshold) for threshold in falling[best:]]

    def limits(self, coverage: float, sensitivity: float | None, confidence: float) -> Array:
        """The smallest plausible probability of each class [C], as in `Calibration.limits`."""
        if not self.shift:
            pooled = sorted(score for scores in self.scores for score in scores)
            return np.full(len(self.scores), conformal_limit(pooled, coverage))
        absent, present = self.scores
        least = (
            conformal_limit(present, coverage)
            if sensitivity is None
            else tolerance_limit(present, sensitivity, confidence)
        )
        return np.array([conformal_limit(absent, coverage), least])


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
        split: bool = True,
    ) -> Self:
        """Calibrate on logits [N, C] of cases with labels [N] or [N, F]; `keys` name their content.

        Cases of one group (patient) stay on one side of the division. `engine` encoded them,
        `image_keys` and `pixels` recognise their images again. The scale stays 1 unless the cases
        show that another one is better.

        Without `split`, every case fits the scale, and every case gives sets and thresholds: these
        are then estimates, not guarantees.
        """
        if sensitivity is not None:
            check_share("sensitivity", sensitivity)
        check_share("confidence", confidence)
        y = np.asarray(labels, dtype=np.int64)
        first = split_units(keys, groups) if split else np.zeros(len(y), bool)
        pairs = zip(unit_names(keys, groups), first, strict=True)
        units = len({unit for unit, fits in pairs if fits}) if split else None
        shifted = "sensitivity" in task.guarantees  # a yes or no, whose threshold may move
        questions = []
        for z, answers in zip(task.questions(logits), task.question_labels(y), strict=True):
            known = answers >= 0
            names = [key for key, keep in zip(keys, known, strict=True) if keep]
            questions.append(
                Question.fit(
                    z[known], answers[known], first[known], names, shifted=shifted, units=units
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
    def split(self) -> bool:
        """Whether sets and thresholds are of cases that the scale has not seen."""
        return any(question.first_confidences for question in self.questions)

    def quality(self, unit: str = "image") -> str:
        """How often the model was right on these cases; "" for several findings."""
        if len(self.questions) > 1:
            return ""
        right = [*self.questions[0].first_correct, *self.questions[0].correct]
        cases, share = pluralize(len(right), unit), 100 * sum(right) / len(right)
        return f"Right on {sum(right)} of {cases} that it had not learned from ({share:.0f} %)"

    @property
    def seen(self) -> frozenset[str]:
        """The calibration images by content and by pixels."""
        return frozenset((*self.image_keys, *self.image_pixels))

    def limits(self, coverage: float = COVERAGE) -> list[Array]:
        """For each question, the smallest probability of each class that is still plausible [C].

        If new cases are exchangeable with the calibration cases, the right class is plausible with
        probability at least `coverage`: on average over classes, or for findings among the cases
        that show one and among those that do not. `sensitivity`, if requested, instead holds with
        `confidence` for the cases that show a finding. 0 where there are too few cases: always
        plausible.
        """
        check_share("coverage", coverage)
        how = coverage, self.sensitivity, self.confidence
        return [question.limits(*how) for question in self.questions]

    def require_sets(self, coverage: float) -> None:
        """Raise unless there are cases enough for sets of that coverage."""
        check_share("coverage", coverage)
        needed = held_out_for_coverage(coverage)
        if missing := self.missing(needed):
            raise ConfigError(
                f"Sets that contain the true class with {100 * coverage:g} % probability need at "
                f"least {needed} calibration images beside those that fit the scale: at least "
                f"{more_needed(missing)}. Calibrate again with more images, or ask for less "
                "coverage.",
                argument="coverage",
            )

    def missing(self, held_out: int) -> int:
        """How many more cases it takes until so many do not fit the scale of a question."""
        return min(question.missing(held_out) for question in self.questions)

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


class CalibratedSets:
    """Prediction sets by the smallest plausible probabilities of a calibration."""

    def __init__(self, calibration: Calibration, task: Task) -> None:
        self.calibration, self.task = calibration, task
        self._yes_or_no = any(question.shift for question in calibration.questions)

    def limits(self, coverage: float) -> list[Array]:
        """For each question, the smallest plausible probability of each class [C]."""
        return self.calibration.limits(coverage)

    def check(self, coverage: float) -> None:
        """Raise unless there are cases enough for sets of that coverage.

        Findings have no sets: where there are too few cases, they are unsure.
        """
        if self._yes_or_no:
            self.limits(coverage)  # which checks the shares
        else:
            self.calibration.require_sets(coverage)

    def members(self, p: Probabilities, features: NDArray[np.float32], coverage: float) -> Masks:
        """The plausible classes of answers with probabilities p, as `Task.plausible`."""
        return self.task.plausible(p, self.limits(coverage))

    def notes(self, coverage: float) -> Iterator[str]:
        """What is guaranteed of findings, and for which it cannot be."""
        if not self._yes_or_no:
            return
        wanted, confidence = self.calibration.sensitivity, self.calibration.confidence
        missed = f"{100 * (1 - (coverage if wanted is None else wanted)):g} %"
        how = "" if wanted is None else f" (with {100 * confidence:g} % confidence)"
        yield (
            f"On images like those of the calibration, at most {missed} of the images with a "
            f"finding are answered no{how}, and at most {100 * (1 - coverage):g} % of those "
            "without it yes; others are unsure."
        )
        least = held_out_for_coverage(coverage)
        needed = least if wanted is None else held_out_for_sensitivity(wanted, confidence)
        for word, kind, column, number in (("no", "with", 1, needed), ("yes", "without", 0, least)):
            counts = [len(question.scores[column]) for question in self.calibration.questions]
            pairs = zip(self.task.names, counts, strict=True)
            if lacking := [f"{name} ({count})" for name, count in pairs if count < number]:
                yield (
                    f"Note: '{word}' cannot be guaranteed, and is not answered, for: "
                    f"{', '.join(lacking)}. It takes {number} held-out calibration images {kind} "
                    "the finding; two thirds of the calibration images are held out."
                )


def _rescaled(logits: Array, scale: float, shift: Sequence[float]) -> Probabilities:
    z = np.asarray(logits, dtype=np.float64) * scale
    return softmax(z + np.asarray(shift) if shift else z)


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} {why}. Calibrate again, or delete this file.")
