"""Everything that is measured of a classifier on labelled images, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.data.case import Dataset
from ogkd.data.catalog import benchmarks
from ogkd.data.names import fold_name
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import ConfigError
from ogkd.evaluation import confidence
from ogkd.evaluation.findings import evaluate_findings
from ogkd.evaluation.metrics import (
    LEVEL,
    BootstrappedMetrics,
    confusion_matrix,
    exact_interval,
    mean_with_error,
    screening_masks,
)
from ogkd.evaluation.predictions import LabelledPredictions, predict_labelled
from ogkd.evaluation.prevalence import prevalences, screening_at
from ogkd.evaluation.show import Evaluation
from ogkd.evaluation.verdict import calibration_text, verdict
from ogkd.model.calibration import Calibration
from ogkd.model.card import ModelCard
from ogkd.model.classifier import Classifier
from ogkd.model.support_sets import SupportSets

COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
SET_COVERAGES = (0.9, 0.95)
_OF_CLASS = ("precision", "recall", "specificity", "f1", "auroc")
_POINTS = 200  # of the risk-coverage curve that are stored


def evaluate(
    classifier: Classifier,
    data: str | Path | Dataset,
    *,
    split: str = "test",
    graded: bool | None = None,
    resamples: int = 1000,
    seed: int = 0,
    leave_out_used: bool = False,
    prevalence: float | None = None,
) -> Evaluation:
    """Evaluate a classifier on one split, or on all images if the data has no splits.

    `graded` says whether the classes are grades in order (None: look them up in the catalogue,
    which has its own order of grades). `leave_out_used` leaves out the images that the model
    learned from or was calibrated on. `verdict` of the result says in words what it means.
    `prevalence` adds the predictive values where this share of images has a finding.
    """
    judged = predict_labelled(classifier, data, split=split)
    return evaluate_predictions(
        judged.unused(classifier) if leave_out_used else judged,
        classifier.calibration,
        graded=graded,
        resamples=resamples,
        seed=seed,
        card=classifier.card,
        prevalence=prevalence,
        support_sets=SupportSets.of(classifier),
    )


def evaluate_predictions(
    judged: LabelledPredictions,
    calibration: Calibration | None = None,
    *,
    graded: bool | None = None,
    resamples: int = 1000,
    seed: int = 0,
    card: ModelCard | None = None,
    prevalence: float | None = None,
    support_sets: SupportSets | None = None,
) -> Evaluation:
    """Metrics with intervals, screening, selective prediction, calibration and prediction sets.

    Shares are 0..1, or None if undefined. Probabilities are calibrated if a calibration is
    given. `card` says which images the model learned from; `support_sets` are measured if there
    is no calibration. Several findings are measured as `evaluate_findings` says.
    """
    measure = _MEASURES[judged.task.kind]
    return measure(
        judged,
        calibration,
        graded=graded,
        resamples=resamples,
        seed=seed,
        card=card,
        prevalence=prevalence,
        support_sets=support_sets,
    )


def evaluate_classes(
    judged: LabelledPredictions,
    calibration: Calibration | None,
    *,
    graded: bool | None,
    resamples: int,
    seed: int,
    card: ModelCard | None,
    prevalence: float | None,
    support_sets: SupportSets | None,
) -> Evaluation:
    """What is measured where each case has one class."""
    if prevalence is not None and not judged.normal:
        raise ConfigError(
            f"prevalence is {prevalence:g}, but no class of the data means that nothing was found.",
            argument="prevalence",
        )
    grades: bool | Sequence[int] = grade_order(judged.class_names) if graded is None else graded
    labels, names, p = judged.labels, judged.class_names, judged.probabilities(calibration)
    metrics = BootstrappedMetrics(judged, p, graded=grades, resamples=resamples, seed=seed)
    whole = ["accuracy", "balanced_accuracy", "macro_f1", "auroc", "brier", "nll"]
    whole += ["kappa"] if grades else []
    result = {
        "images": len(labels),
        "unit": judged.unit,
        "groups": judged.group_count,
        **metrics.rows(whole),
        "ece": confidence.ece(labels, p),
        "per_class": {
            name: metrics.rows(_OF_CLASS, "class/", c) | {"images": int((labels == c).sum())}
            for c, name in enumerate(names)
        },
        "class_names": list(names),
        "graded": bool(grades),
        "confusion": confusion_matrix(labels, p.argmax(axis=1), len(names)).tolist(),
        "screening": _screening(judged, p, metrics, prevalences(prevalence)),
        "selective": _selective(labels, p),
        "reliability": [asdict(row) for row in confidence.bins(labels, p)],
        "calibration": calibration and _calibration(judged, p, calibration),
        "sets": _sets(judged, p, calibration, support_sets),
        "abstain": calibration and _abstain(labels, p, calibration),
        "bootstrap": {
            "resamples": resamples,
            "by": "group" if judged.group_count else "image",
            "level": LEVEL,
        },
        **judged.origin(card, calibration),
    }
    intervals = {key: metrics.share_interval(key) for key in ("accuracy", "balanced_accuracy")}
    conclusion = verdict(
        result,
        accuracy=intervals["accuracy"] or (0.0, 1.0),
        balanced=intervals["balanced_accuracy"] or (0.0, 1.0),
        support=card.support_counts if card else (),
    )
    return Evaluation({"verdict": conclusion, **result})


def grade_order(class_names: Sequence[str]) -> tuple[int, ...]:
    """The labels in the order of grades if the catalogue lists these classes as grades, else ().

    The classes of a folder are in alphabetical order, which is not the order of their grades.
    """
    label_of = {fold_name(name): label for label, name in enumerate(class_names)}
    for record in benchmarks().values():
        grades = [fold_name(name) for name in record.class_names]
        if record.graded and len(class_names) == len(grades) and set(label_of) == set(grades):
            return tuple(label_of[name] for name in grades)
    return ()


def _screening(
    judged: LabelledPredictions,
    p: NDArray[np.float32],
    metrics: BootstrappedMetrics,
    prevalences: Sequence[float],
) -> dict[str, Any] | None:
    if not judged.normal:
        return None
    diseased, flagged = screening_masks(judged.labels, p, judged.normal)
    return {
        "normal": [judged.class_names[c] for c in judged.normal],
        "diseased_images": int(diseased.sum()),
        "normal_images": int((~diseased).sum()),
        "missed": int((diseased & ~flagged).sum()),
        "false_positives": int((~diseased & flagged).sum()),
        **metrics.rows(("sensitivity", "specificity", "auroc"), "screening/"),
        "at_prevalence": [
            {
                "prevalence": prevalence,
                **screening_at(
                    prevalence,
                    [metrics.counts(f"screening/{k}") for k in ("sensitivity", "specificity")],
                    intervals=metrics.interval("screening/sensitivity") is not None,
                ),
            }
            for prevalence in prevalences
        ],
    }


def _selective(labels: NDArray[np.int64], p: NDArray[np.float32]) -> dict[str, Any]:
    coverage, risk = confidence.risk_coverage(labels, p)
    shown = np.unique(np.linspace(0, len(labels) - 1, _POINTS).round().astype(int))
    return {
        "aurc": confidence.aurc(labels, p),
        "e_aurc": confidence.e_aurc(labels, p),
        "augrc": confidence.augrc(labels, p),
        "risk_at_coverage": {
            f"{c:g}": confidence.risk_at_coverage(labels, p, c) for c in COVERAGES
        },
        "coverage_at_risk": {f"{r:g}": confidence.coverage_at_risk(labels, p, r) for r in RISKS},
        "curve": {"coverage": coverage[shown].tolist(), "risk": risk[shown].tolist()},
    }


def _calibration(
    judged: LabelledPredictions, p: NDArray[np.float32], calibration: Calibration
) -> dict[str, Any]:
    scores = {
        state: {
            "ece": confidence.ece(judged.labels, values),
            "brier": confidence.brier(judged.labels, values),
            "nll": confidence.nll(judged.labels, values),
            "reliability": [asdict(row) for row in confidence.bins(judged.labels, values)],
        }
        for state, values in {"before": judged.probabilities(), "after": p}.items()
    }
    rows = [confidence.nll_rows(judged.labels, values) for values in (judged.probabilities(), p)]
    question = calibration.questions[0]
    about = {
        "temperature": question.temperature,
        "applied": question.applied,
        "images": calibration.cases,
        "change": mean_with_error(rows[1] - rows[0], judged.groups),
    }
    return {"text": calibration_text(about, question.reason), **about, **scores}


def _sets(
    judged: LabelledPredictions,
    p: NDArray[np.float32],
    calibration: Calibration | None,
    support_sets: SupportSets | None,
) -> list[dict[str, Any]] | None:
    """Coverage and size of prediction sets on these images, or why there are none.

    They are those of the calibration, or of the images learned from ("support").
    """
    labels = judged.labels

    def measure(wanted: float) -> dict[str, Any]:
        if calibration is not None:
            calibration.require_sets(wanted)
            members = judged.task.plausible(p, calibration.limits(wanted))
        elif support_sets is not None:
            members = support_sets.members(p, judged.features, wanted)
        hits = int(members[np.arange(len(labels)), labels].sum())
        sizes = members.sum(axis=1)
        return {
            "coverage": hits / len(labels),
            "interval": exact_interval(hits, len(labels)),
            "mean_size": float(sizes.mean()),
            "single": float((sizes == 1).mean()),
            "empty": float((sizes == 0).mean()),
        }

    if calibration is None and support_sets is None:
        return None
    kind = "support" if calibration is None else "lac"
    return [
        {"kind": kind, "wanted": wanted, **_or_note(measure, wanted)} for wanted in SET_COVERAGES
    ]


def _abstain(
    labels: NDArray[np.int64], p: NDArray[np.float32], calibration: Calibration
) -> list[dict[str, Any]]:
    """Coverage and risk of the guaranteed thresholds on these images, or why there are none."""

    def measure(max_risk: float) -> dict[str, Any]:
        threshold = calibration.questions[0].threshold(max_risk)
        kept = p.max(axis=1) >= threshold
        risk = float((p.argmax(axis=1) != labels)[kept].mean()) if kept.any() else None
        return {"threshold": threshold, "coverage": float(kept.mean()), "risk": risk}

    return [{"max_risk": risk, "confidence": 0.9, **_or_note(measure, risk)} for risk in RISKS]


def _or_note(measure: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    try:
        return measure(*arguments)
    except ConfigError as error:
        return {"note": str(error)}


_MEASURES: Mapping[str, Callable[..., Evaluation]]
_MEASURES = {OneOf.kind: evaluate_classes, Findings.kind: evaluate_findings}
