"""Everything that is measured of a classifier on labelled images, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.datasets.catalog import benchmarks
from ogkd.datasets.manifest import Manifest
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
from ogkd.model.calibration_file import CalibrationFile
from ogkd.model.card import ModelCard
from ogkd.model.classifier import Classifier
from ogkd.model.findings import FindingsCalibration
from ogkd.model.support_sets import SupportSets
from ogkd.prompts.bank import fold

COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
SET_COVERAGES = (0.9, 0.95)
_OF_CLASS = ("precision", "recall", "specificity", "f1", "auroc")
_POINTS = 200  # of the risk-coverage curve that are stored


def evaluate(
    classifier: Classifier,
    data: str | Path | Manifest,
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
    found = predict_labelled(classifier, data, split=split)
    return evaluate_predictions(
        found.unused(classifier) if leave_out_used else found,
        classifier.calibration,
        graded=graded,
        resamples=resamples,
        seed=seed,
        card=classifier.card,
        prevalence=prevalence,
        support_sets=SupportSets.of(classifier),
    )


def evaluate_predictions(
    found: LabelledPredictions,
    calibration: CalibrationFile | None = None,
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
    if found.findings:
        for argument, given in (("graded", graded), ("prevalence", prevalence)):
            if given is not None and given is not False:
                raise ConfigError(
                    f"{argument} is for models that give an image one class, but this one answers "
                    "several findings.",
                    argument=argument,
                )
        assert calibration is None or isinstance(calibration, FindingsCalibration)
        return evaluate_findings(found, calibration, resamples=resamples, seed=seed, card=card)
    assert calibration is None or isinstance(calibration, Calibration)
    if prevalence is not None and not found.normal:
        raise ConfigError(
            f"prevalence is {prevalence:g}, but no class of the data means that nothing was found.",
            argument="prevalence",
        )
    grades: bool | Sequence[int] = grade_order(found.class_names) if graded is None else graded
    labels, names, p = found.labels, found.class_names, found.probabilities(calibration)
    metrics = BootstrappedMetrics(found, p, graded=grades, resamples=resamples, seed=seed)
    whole = ["accuracy", "balanced_accuracy", "macro_f1", "auroc", "brier", "nll"]
    whole += ["kappa"] if grades else []
    result = {
        "images": len(labels),
        "unit": found.unit,
        "groups": found.group_count,
        **metrics.rows(whole),
        "ece": confidence.ece(labels, p),
        "per_class": {
            name: metrics.rows(_OF_CLASS, "class/", c) | {"images": int((labels == c).sum())}
            for c, name in enumerate(names)
        },
        "class_names": list(names),
        "graded": bool(grades),
        "confusion": confusion_matrix(labels, p.argmax(axis=1), len(names)).tolist(),
        "screening": _screening(found, p, metrics, prevalences(prevalence)),
        "selective": _selective(labels, p),
        "reliability": [asdict(row) for row in confidence.bins(labels, p)],
        "calibration": calibration and _calibration(found, p, calibration),
        "sets": _sets(found, p, calibration, support_sets),
        "abstain": calibration and _abstain(labels, p, calibration),
        "bootstrap": {
            "resamples": resamples,
            "by": "group" if found.group_count else "image",
            "level": LEVEL,
        },
        **found.origin(card, calibration),
    }
    intervals = {key: metrics.share_interval(key) for key in ("accuracy", "balanced_accuracy")}
    said = verdict(
        result,
        accuracy=intervals["accuracy"] or (0.0, 1.0),
        balanced=intervals["balanced_accuracy"] or (0.0, 1.0),
        support=card.support_counts if card else (),
    )
    return Evaluation({"verdict": said, **result})


def grade_order(class_names: Sequence[str]) -> tuple[int, ...]:
    """The labels in the order of grades if the catalogue lists these classes as grades, else ().

    The classes of a folder are in alphabetical order, which is not the order of their grades.
    """
    mine = {fold(name): label for label, name in enumerate(class_names)}
    for record in benchmarks().values():
        grades = [fold(name) for name in record.class_names]
        if record.graded and len(class_names) == len(grades) and set(mine) == set(grades):
            return tuple(mine[name] for name in grades)
    return ()


def _screening(
    found: LabelledPredictions,
    p: NDArray[np.float32],
    metrics: BootstrappedMetrics,
    prevalences: Sequence[float],
) -> dict[str, Any] | None:
    if not found.normal:
        return None
    diseased, flagged = screening_masks(found.labels, p, found.normal)
    return {
        "normal": [found.class_names[c] for c in found.normal],
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
    found: LabelledPredictions, p: NDArray[np.float32], calibration: Calibration
) -> dict[str, Any]:
    scores = {
        state: {
            "ece": confidence.ece(found.labels, values),
            "brier": confidence.brier(found.labels, values),
            "nll": confidence.nll(found.labels, values),
            "reliability": [asdict(row) for row in confidence.bins(found.labels, values)],
        }
        for state, values in {"before": found.probabilities(), "after": p}.items()
    }
    rows = [confidence.nll_rows(found.labels, values) for values in (found.probabilities(), p)]
    about = {
        "temperature": calibration.temperature,
        "applied": calibration.applied,
        "images": calibration.images,
        "change": mean_with_error(rows[1] - rows[0], found.groups),
    }
    return {"text": calibration_text(about, calibration.reason), **about, **scores}


def _sets(
    found: LabelledPredictions,
    p: NDArray[np.float32],
    calibration: Calibration | None,
    support_sets: SupportSets | None,
) -> list[dict[str, Any]] | None:
    """Coverage and size of prediction sets on these images, or why there are none.

    They are those of the calibration ("lac", "aps"), or of the images learned from ("support").
    """
    labels = found.labels

    def measure(wanted: float, kind: Any) -> dict[str, Any]:
        if calibration is not None:
            members = calibration.sets(p, coverage=wanted, kind=kind)
        elif support_sets is not None:
            members = support_sets.sets(found.features, coverage=wanted)
        held = int(members[np.arange(len(labels)), labels].sum())
        sizes = members.sum(axis=1)
        return {
            "coverage": held / len(labels),
            "interval": exact_interval(held, len(labels)),
            "mean_size": float(sizes.mean()),
            "single": float((sizes == 1).mean()),
            "empty": float((sizes == 0).mean()),
        }

    kinds: tuple[str, ...] = ("support",) if calibration is None else ("lac", "aps")
    if calibration is None and support_sets is None:
        return None
    return [
        {"kind": kind, "wanted": wanted, **_or_note(measure, wanted, kind)}
        for wanted in SET_COVERAGES
        for kind in kinds
    ]


def _abstain(
    labels: NDArray[np.int64], p: NDArray[np.float32], calibration: Calibration
) -> list[dict[str, Any]]:
    """Coverage and risk of the guaranteed thresholds on these images, or why there are none."""

    def measure(max_risk: float) -> dict[str, Any]:
        threshold = calibration.threshold(max_risk)
        kept = p.max(axis=1) >= threshold
        risk = float((p.argmax(axis=1) != labels)[kept].mean()) if kept.any() else None
        return {"threshold": threshold, "coverage": float(kept.mean()), "risk": risk}

    return [{"max_risk": risk, "confidence": 0.9, **_or_note(measure, risk)} for risk in RISKS]


def _or_note(measure: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    try:
        return measure(*arguments)
    except ConfigError as error:
        return {"note": str(error)}
