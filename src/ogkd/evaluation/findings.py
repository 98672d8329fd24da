"""Everything that is measured of a model of several findings, each by itself and on average."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ogkd.data.task import NO, UNSURE, YES
from ogkd.errors import ConfigError, pluralize
from ogkd.evaluation.metrics import (
    LEVEL,
    Array,
    auroc,
    effective_counts,
    exact_interval,
    interval,
    mean_of_known,
    plain,
    resample_weights,
    resampling_units,
    share,
)
from ogkd.evaluation.predictions import LabelledPredictions
from ogkd.evaluation.show import Evaluation
from ogkd.model.calibration import Calibration
from ogkd.model.card import ModelCard

_AREAS = ("auroc", "average_precision")
_FEW = 10  # images with a finding below which little can be said about it
_LEAKED = 0.05  # share of learned images above which the numbers say nothing about new ones


def average_precision(
    positive: ArrayLike, scores: ArrayLike, weights: Array | None = None
) -> Array:
    """The mean precision over the positives, each at its own score, equal scores together.

    Weights [R, N] give R values at once; NaN without a positive.
    """
    marks, values = np.asarray(positive, dtype=bool), np.asarray(scores)
    counts = np.ones((1, len(marks))) if weights is None else weights
    order = np.argsort(-values, kind="stable")
    hits = np.cumsum(counts[:, order] * marks[order], axis=1)
    taken = np.cumsum(counts[:, order], axis=1)
    last = np.searchsorted(-values[order], -values[order], side="right") - 1  # of equal scores
    gained = counts[:, order] * marks[order]
    total = (gained * share(hits[:, last], taken[:, last])).sum(axis=1, where=gained > 0)
    precision = share(total, hits[:, -1] if len(marks) else np.zeros(len(counts)))
    return precision[0] if weights is None else precision


def areas(labels: NDArray[np.int64], p: NDArray[np.float32], weights: Array) -> dict[str, Array]:
    """AUROC and average precision of each finding [R, F], their means and those of all pairs [R].

    Labels [N, F] are 1, 0 or -1 (not counted); the mean ("macro") is over findings that have both;
    all pairs of an image and a finding in one list give "micro".
    """
    measured: dict[str, Array] = {}
    known = labels >= 0
    for name, area in zip(_AREAS, (auroc, average_precision), strict=True):
        columns = []
        for f in range(labels.shape[1]):
            rows = known[:, f]
            value = area(labels[rows, f] == 1, p[rows, f], weights[:, rows])
            both = [weights[:, rows] @ (labels[rows, f] == answer) > 0 for answer in (1, 0)]
            columns.append(np.where(both[0] & both[1], value, np.nan))
        measured[name] = np.stack(columns, axis=1)
        measured[f"macro/{name}"] = mean_of_known(measured[name])
        images = np.nonzero(known)[0]
        measured[f"micro/{name}"] = area(labels[known] == 1, p[known], weights[:, images])
    return measured


def evaluate_findings(
    judged: LabelledPredictions,
    calibration: Calibration | None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    card: ModelCard | None = None,
    **others: Any,
) -> Evaluation:
    """AUROC and average precision with intervals, answers, prevalence, and what they mean.

    `yes` and `no` are answered by the calibration's limits, without one from 50 % on. Shares are
    0..1, or None if undefined.
    """
    for argument in ("graded", "prevalence"):
        if others.get(argument) not in (None, False):
            raise ConfigError(f"{argument} has no meaning for findings.", argument=argument)
    p, names = judged.probabilities(calibration), judged.class_names
    units = resampling_units(len(p), judged.groups)
    value = areas(judged.labels, p, np.ones((1, len(p))))
    blocks = [
        areas(judged.labels, p, weights)
        for weights in resample_weights(units, resamples=resamples, seed=seed)
    ]
    drawn = {key: np.concatenate([block[key] for block in blocks]) for key in value if blocks}
    limits, plausible = [np.array([0.5, 0.5])] * len(names), None
    if calibration is not None:
        limits = calibration.limits()
        plausible = judged.task.plausible(p, limits)
    words = np.array([answer.verdicts for answer in judged.task.answers(p, plausible)])  # [N, F]

    def rows(prefix: str, f: int | None = None) -> dict[str, Any]:
        def one(table: Array) -> Array:
            return table if f is None else table[:, f]

        keys = {key: f"{prefix}{key}" for key in _AREAS}
        ends = {k: interval(one(drawn[key])) if drawn else None for k, key in keys.items()}
        return {
            **{k: plain(float(one(value[key])[0])) for k, key in keys.items()},
            "intervals": ends,
        }

    each = {}
    for f, name in enumerate(names):
        known = judged.labels[:, f]
        yes, no = known == 1, known == 0
        squared = (p[:, f] - yes) ** 2
        each[name] = {
            "present": int(yes.sum()),
            "absent": int(no.sum()),
            "unknown": int((known < 0).sum()),
            "prevalence": plain(float(share(yes.sum(), yes.sum() + no.sum()))),
            **rows("", f),
            "brier": plain(float(share(squared[known >= 0].sum(), (yes | no).sum()))),
            "no_below": float(limits[f][1]),
            "yes_above": float(1 - limits[f][0]),
            **_answered(words[:, f], yes, no, units),
        }
    result: dict[str, Any] = {
        "asks": "findings",
        "images": len(p),
        "unit": judged.unit,
        "groups": judged.group_count,
        "macro": rows("macro/"),
        "micro": rows("micro/"),
        "per_finding": each,
        "class_names": list(names),
        "calibrated": calibration is not None,
        "sensitivity": calibration and calibration.sensitivity,
        "bootstrap": {
            "resamples": resamples,
            "by": "group" if judged.group_count else "image",
            "level": LEVEL,
        },
        **judged.origin(card, calibration),
    }
    return Evaluation({"verdict": verdict(result), **result})


def _answered(
    answers: NDArray[np.str_],
    yes: NDArray[np.bool_],
    no: NDArray[np.bool_],
    units: NDArray[np.int64],
) -> dict[str, Any]:
    """How often images with and without a finding are answered yes, no and unsure."""
    measured: dict[str, Any] = {}
    for truth, rows in (("present", yes), ("absent", no)):
        for word in (YES, NO, UNSURE):
            measured[f"{truth}_{word}"] = int((answers[rows] == word).sum())
        wrong = answers[rows] == (YES if truth == "absent" else NO)
        ends = exact_interval(*effective_counts(wrong, units[rows])) if rows.any() else None
        measured[f"{truth}_wrong"] = {
            "share": plain(float(share(wrong.sum(), rows.sum()))),
            "interval": ends,
        }
    return measured


def verdict(result: Mapping[str, Any]) -> dict[str, Any]:
    """Which findings are recognised better than by guessing: plain fields, and `text`."""
    rows: Mapping[str, Mapping[str, Any]] = result["per_finding"]
    state = {name: _better(row) for name, row in rows.items()}
    learned = result["learned_from"] > _LEAKED * result["images"]
    better = [name for name, is_better in state.items() if is_better]
    every = bool(better) and len(better) == len(rows)
    headline = (
        "No verdict: the model learned from these images"
        if learned
        else f"Clearly better than guessing for all {len(rows)} findings"
        if every and len(rows) > 1
        else f"Clearly better than guessing for {len(better)} of {pluralize(len(rows), 'finding')}"
        if better
        else "No finding is recognised clearly better than by guessing"
    )
    conclusion = {
        "better_than_guessing": None if learned else every or (None if better else False),
        "headline": headline,
        "better": better,
        "open": [name for name, is_better in state.items() if is_better is None],
        "not_better": [name for name, is_better in state.items() if is_better is False],
    }
    conclusion["details"] = " ".join(_sentences(conclusion, result))
    conclusion["text"] = f"{headline}. {conclusion['details']}".strip()
    return conclusion


def _better(row: Mapping[str, Any]) -> bool | None:
    """Whether the interval of the AUROC is above 0.5; None if the images cannot show either."""
    ends, value = row["intervals"]["auroc"], row["auroc"]
    if value is None or ends is None or row["present"] < 2 or row["absent"] < 2:
        return None
    return True if ends[0] > 0.5 else False if ends[1] < 0.6 else None


def _sentences(conclusion: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[str]:
    rows, used = result["per_finding"], result["learned_from"]
    if used:
        yield (
            f"The model learned from {used} of these {result['images']} images, so the numbers are "
            "better than on new images."
        )
    macro = result["macro"]
    if (area := macro["auroc"]) is not None:
        ends = macro["intervals"]["auroc"]
        sure = "" if ends is None else f", 95 % interval {100 * ends[0]:.0f} to {100 * ends[1]:.0f}"
        yield (
            f"An image with a finding is ranked above one without it in {100 * area:.0f} % of all "
            f"pairs on average (AUROC{sure})."
        )
    judged = {name: row for name, row in rows.items() if row["auroc"] is not None}
    if len(judged) > 1:
        weak = min(judged, key=lambda name: judged[name]["auroc"])
        yield f"Weakest: '{weak}' with {100 * judged[weak]['auroc']:.0f} %."
    if conclusion["open"]:
        few = [f"{name} ({rows[name]['present']} with it)" for name in conclusion["open"]]
        yield f"These images cannot show whether it recognises: {', '.join(few)}."
    if conclusion["not_better"]:
        yield f"Not better than guessing: {', '.join(conclusion['not_better'])}."
    if scarce := [
        n for n, row in judged.items() if row["present"] < _FEW and n in conclusion["better"]
    ]:
        yield f"Fewer than {_FEW} images show {', '.join(scarce)}: test more of them."
