"""Everything that is said of a classifier on labelled images, as plain numbers for JSON."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.datasets.catalog import benchmarks
from ogkd.datasets.manifest import Manifest
from ogkd.errors import ConfigError
from ogkd.evaluation.bootstrap import LEVEL, exact_interval
from ogkd.evaluation.columns import Columns
from ogkd.evaluation.judge import Judged, judge
from ogkd.evaluation.metrics import confusion_matrix
from ogkd.evaluation.reliability import bins, brier, ece, nll
from ogkd.evaluation.screening import screening_masks
from ogkd.evaluation.selective import (
    augrc,
    aurc,
    coverage_at_risk,
    e_aurc,
    risk_at_coverage,
    risk_coverage,
)
from ogkd.model.calibration import Calibration, softmax
from ogkd.model.classifier import Classifier
from ogkd.prompts.bank import fold

__all__ = ["Judged", "describe", "evaluate", "grade_order", "judge"]

COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
SET_COVERAGES = (0.9, 0.95)
_POINTS = 200  # of the risk-coverage curve that are kept


def evaluate(
    classifier: Classifier,
    data: str | Path | Manifest,
    *,
    split: str = "test",
    graded: bool | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Judge one split and describe it; where the data has no splits, all of its images.

    `graded` says that the classes are grades in order (None: as the catalogue knows them,
    by its own order of grades).
    """
    judged = judge(classifier, data, split=split)
    return describe(
        judged,
        classifier.calibration,
        graded=graded,
        resamples=resamples,
        seed=seed,
        learned=classifier.card.support_images,
    )


def describe(
    judged: Judged,
    calibration: Calibration | None = None,
    *,
    graded: bool | None = None,
    resamples: int = 1000,
    seed: int = 0,
    learned: Collection[str] = (),
) -> dict[str, Any]:
    """Metrics with intervals, screening, selective prediction, calibration and sets.

    Shares are 0..1, None where undefined. Probabilities are calibrated where there is a
    calibration. `learned` are the keys of the images that the model learned from.
    """
    grades: bool | Sequence[int] = grade_order(judged.class_names) if graded is None else graded
    labels, names = judged.labels, judged.class_names
    p = softmax(judged.logits, 1.0 if calibration is None else calibration.temperature)
    columns = Columns(judged, p, graded=grades, resamples=resamples, seed=seed)
    whole = ["accuracy", "balanced_accuracy", "macro_f1", "auroc", "brier", "nll"]
    whole += ["kappa"] if grades else []
    known = set(learned)
    used = set() if calibration is None else set(calibration.image_keys)
    return {
        "images": len(labels),
        "groups": len({group for group in judged.groups if group is not None}) or None,
        **{key: columns.value(key) for key in whole},
        "ece": ece(labels, p),
        "intervals": {key: columns.interval(key) for key in whole},
        "per_class": _per_class(judged, columns),
        "class_names": list(names),
        "graded": bool(grades),
        "confusion": confusion_matrix(labels, p.argmax(axis=1), len(names)).tolist(),
        "screening": _screening(judged, p, columns),
        "selective": _selective(labels, p),
        "reliability": [asdict(row) for row in bins(labels, p)],
        "calibration": None if calibration is None else _calibration(judged, p, calibration),
        "sets": None if calibration is None else _sets(labels, p, calibration),
        "abstain": None if calibration is None else _abstain(labels, p, calibration),
        "bootstrap": {
            "resamples": resamples,
            "by": "group" if any(group is not None for group in judged.groups) else "image",
            "level": LEVEL,
        },
        "learned_from": judged.among(known),
        "calibrated_on": judged.among(used),
    }


def grade_order(class_names: Sequence[str]) -> tuple[int, ...]:
    """Labels from grade to grade where the catalogue knows these classes as grades; else ().

    A folder's classes stand in alphabetical order, which is not that of their grades.
    """
    mine = {fold(name): label for label, name in enumerate(class_names)}
    for record in benchmarks().values():
        grades = [fold(name) for name in record.class_names]
        if record.graded and len(class_names) == len(grades) and set(mine) == set(grades):
            return tuple(mine[name] for name in grades)
    return ()


def _per_class(judged: Judged, columns: Columns) -> dict[str, Any]:
    keys = ("precision", "recall", "specificity", "f1", "auroc")
    return {
        name: {
            **{key: columns.value(f"class/{key}", c) for key in keys},
            "images": int((judged.labels == c).sum()),
            "intervals": {key: columns.interval(f"class/{key}", c) for key in keys},
        }
        for c, name in enumerate(judged.class_names)
    }


def _screening(judged: Judged, p: NDArray[np.float32], columns: Columns) -> dict[str, Any] | None:
    if not judged.normal:
        return None
    ill, flagged = screening_masks(judged.labels, p, judged.normal)
    keys = ("sensitivity", "specificity", "auroc")
    return {
        "normal": [judged.class_names[c] for c in judged.normal],
        "diseased_images": int(ill.sum()),
        "normal_images": int((~ill).sum()),
        "missed": int((ill & ~flagged).sum()),
        "false_positives": int((~ill & flagged).sum()),
        **{key: columns.value(f"screening/{key}") for key in keys},
        "intervals": {key: columns.interval(f"screening/{key}") for key in keys},
    }


def _selective(labels: NDArray[np.int64], p: NDArray[np.float32]) -> dict[str, Any]:
    coverage, risk = risk_coverage(labels, p)
    shown = np.unique(np.linspace(0, len(labels) - 1, _POINTS).round().astype(int))
    return {
        "aurc": aurc(labels, p),
        "e_aurc": e_aurc(labels, p),
        "augrc": augrc(labels, p),
        "risk_at_coverage": {f"{c:g}": risk_at_coverage(labels, p, c) for c in COVERAGES},
        "coverage_at_risk": {f"{r:g}": coverage_at_risk(labels, p, r) for r in RISKS},
        "curve": {"coverage": coverage[shown].tolist(), "risk": risk[shown].tolist()},
    }


def _calibration(
    judged: Judged, p: NDArray[np.float32], calibration: Calibration
) -> dict[str, Any]:
    def scores(p: NDArray[np.float32]) -> dict[str, Any]:
        labels = judged.labels
        return {
            "ece": ece(labels, p),
            "brier": brier(labels, p),
            "nll": nll(labels, p),
            "reliability": [asdict(row) for row in bins(labels, p)],
        }

    return {
        "temperature": calibration.temperature,
        "images": calibration.images,
        "before": scores(softmax(judged.logits)),
        "after": scores(p),
    }


def _sets(
    labels: NDArray[np.int64], p: NDArray[np.float32], calibration: Calibration
) -> list[dict[str, Any]]:
    """What prediction sets do on these images, or why there are none."""
    found: list[dict[str, Any]] = []
    for wanted in SET_COVERAGES:
        for kind in ("lac", "aps"):
            row: dict[str, Any] = {"kind": kind, "wanted": wanted}
            try:
                members = calibration.sets(p, coverage=wanted, kind=kind)
            except ConfigError as error:
                found.append(row | {"note": str(error)})
                continue
            held = int(members[np.arange(len(labels)), labels].sum())
            sizes = members.sum(axis=1)
            found.append(
                row
                | {
                    "coverage": held / len(labels),
                    "interval": exact_interval(held, len(labels)),
                    "mean_size": float(sizes.mean()),
                    "single": float((sizes == 1).mean()),
                    "empty": float((sizes == 0).mean()),
                }
            )
    return found


def _abstain(
    labels: NDArray[np.int64], p: NDArray[np.float32], calibration: Calibration
) -> list[dict[str, Any]]:
    """What the promised thresholds do on these images, or why there is none."""
    found: list[dict[str, Any]] = []
    wrong = p.argmax(axis=1) != labels
    for risk in RISKS:
        row: dict[str, Any] = {"max_risk": risk, "confidence": 0.9}
        try:
            threshold = calibration.threshold(risk)
        except ConfigError as error:
            found.append(row | {"note": str(error)})
            continue
        kept = p.max(axis=1) >= threshold
        risk_now = float(wrong[kept].mean()) if kept.any() else None
        found.append(
            row | {"threshold": threshold, "coverage": float(kept.mean()), "risk": risk_now}
        )
    return found
