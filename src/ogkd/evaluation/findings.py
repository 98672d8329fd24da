"""Everything that is measured of a model of several findings, each by itself and on average."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.data.task import NO, UNSURE, YES
from ogkd.evaluation.metrics import (
    Array,
    BootstrappedMetrics,
    auroc,
    average_precision,
    mean_of_known,
    plain,
    resampling_units,
    share,
)
from ogkd.evaluation.predictions import LabelledPredictions
from ogkd.evaluation.sections import Section, Table, Values, cell, interval_text
from ogkd.evaluation.subgroups import subgroups
from ogkd.evaluation.verdict import finding_verdict
from ogkd.model.calibration import Calibration
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider

_AREAS = ("auroc", "average_precision")
_NOT_CALIBRATED = (
    "The model was not calibrated: it answers yes from a probability of 50 % on, and guarantees "
    "nothing. The command ogkd calibrate finds limits that do."
)


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


def finding_metrics(
    judged: LabelledPredictions, p: NDArray[np.float32], *, resamples: int
) -> BootstrappedMetrics:
    """The areas of single findings, of their means ("macro/...") and of all pairs ("micro/...")."""
    labels = judged.labels
    return BootstrappedMetrics(
        lambda weights: areas(labels, p, weights),
        resampling_units(len(p), judged.groups),
        resamples=resamples,
        areas={"auroc": (labels >= 0, labels == 1)},
    )


def evaluate_findings(
    judged: LabelledPredictions,
    common: Mapping[str, Any],
    calibration: Calibration | None,
    classifier: Classifier | None,
    *,
    resamples: int,
) -> dict[str, Any]:
    """AUROC and average precision with intervals, answers, prevalence, and what they mean.

    `yes` and `no` are answered by the calibration's limits, without one from 50 % on.
    """
    p, labels, names = judged.probabilities(calibration), judged.labels, judged.class_names
    metrics = finding_metrics(judged, p, resamples=resamples)
    limits, plausible = [np.array([0.5, 0.5])] * len(names), None
    if calibration is not None:
        limits = calibration.limits()
        plausible = judged.task.plausible(p, limits)
    words = np.array([answer.verdicts for answer in judged.task.answers(p, plausible)])  # [N, F]
    each = {}
    for f, name in enumerate(names):
        known = labels[:, f]
        yes, no = known == 1, known == 0
        squared = (p[:, f] - yes) ** 2
        each[name] = {
            "present": int(yes.sum()),
            "absent": int(no.sum()),
            "unknown": int((known < 0).sum()),
            "prevalence": plain(float(share(yes.sum(), yes.sum() + no.sum()))),
            **metrics.rows(_AREAS, "", f),
            "brier": plain(float(share(squared[known >= 0].sum(), (yes | no).sum()))),
            "no_below": float(limits[f][1]),
            "yes_above": float(1 - limits[f][0]),
            **{
                f"{truth}_{word}": int((words[rows, f] == word).sum())
                for truth, rows in (("present", yes), ("absent", no))
                for word in (YES, NO, UNSURE)
            },
        }
    result: dict[str, Any] = {
        "asks": "findings",
        **common,
        "macro": metrics.rows(_AREAS, "macro/"),
        "micro": metrics.rows(_AREAS, "micro/"),
        "per_finding": each,
        "calibrated": calibration is not None,
        "sensitivity": calibration and calibration.sensitivity,
        "guarantee": next(iter(Decider(classifier).notes), "") if classifier else "",
    }
    return {"verdict": finding_verdict(result), **result}


def each_finding(result: Values) -> Section:
    """Each finding, then their averages."""
    rows = [
        (
            name,
            *(str(row[key]) for key in ("present", "absent", "unknown")),
            *(cell(row, key) for key in _AREAS),
            cell(row, "prevalence"),
        )
        for name, row in result["per_finding"].items()
    ]
    for key, name in {"macro": "mean of findings", "micro": "all answers together"}.items():
        rows.append((name, "", "", "", *(cell(result[key], area) for area in _AREAS), ""))
    head = ("finding", "with", "without", "unknown", "AUROC", "average precision", "prevalence")
    text = (
        "In percent, in brackets 95 % intervals. AUROC: how often an image with the finding gets a "
        "higher probability than one without it; 50 means guessing. Average precision: the share "
        "of images that show it among those ranked first, averaged over all that show it; guessing "
        "gives the prevalence. Images about which a finding is unknown are not counted."
    )
    table = Table(head, tuple(rows))
    texts = (text, interval_text(result))
    return Section("Each finding", texts, table, key="findings", short="Findings", brief=True)


def answers(result: Values) -> Section:
    """For each finding, how images with and without it were answered."""
    kinds = [f"{truth}_{word}" for truth in ("present", "absent") for word in (YES, UNSURE, NO)]
    rows = [
        (name, *(str(row[kind]) for kind in kinds)) for name, row in result["per_finding"].items()
    ]
    head = ("finding", "with it: yes", "unsure", "no", "without: yes", "unsure", "no")
    table, text = Table(head, tuple(rows)), (result["guarantee"] or _NOT_CALIBRATED,)
    title = "Answers: yes, no or unsure"
    return Section(title, text, table, key="answers", short="Answers", brief=True)


FINDING_SECTIONS = (each_finding, subgroups, answers)
