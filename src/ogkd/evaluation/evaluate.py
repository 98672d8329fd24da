"""Everything that is measured of a classifier on labelled images, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.data.case import Dataset
from ogkd.data.catalog import benchmarks
from ogkd.data.names import fold_name
from ogkd.data.tables import Row, data_frame
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import ConfigError
from ogkd.evaluation import confidence
from ogkd.evaluation.class_sections import CLASS_SECTIONS
from ogkd.evaluation.findings import FINDING_SECTIONS, evaluate_findings, finding_metrics
from ogkd.evaluation.metrics import (
    LEVEL,
    BootstrappedMetrics,
    class_metrics,
    confusion_matrix,
    exact_interval,
    screening_masks,
)
from ogkd.evaluation.names import METRICS
from ogkd.evaluation.predictions import LabelledPredictions, predict_labelled
from ogkd.evaluation.sections import Section, in_units, join_words, sections_of, text_lines, wrapped
from ogkd.evaluation.subgroups import subgroup_rows
from ogkd.evaluation.verdict import FEW_TESTED, class_verdict, is_leaked
from ogkd.model.calibration import CalibratedSets, Calibration
from ogkd.model.classifier import Classifier
from ogkd.model.decide import engine_note
from ogkd.model.support_sets import SupportSets

COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
SET_COVERAGES = (0.9, 0.95)
_OF_CLASS = ("precision", "recall", "specificity", "f1", "auroc")
_WORSE = 0.05  # a rise of the mean negative log-likelihood that is no matter of chance
_POINTS = 200  # of the risk-coverage curve that are stored


class Evaluation(dict[str, Any]):
    """The result of an evaluation; it is a plain dictionary to JSON and to everything else."""

    @property
    def sections(self) -> list[Section]:
        """What it says, part by part."""
        return sections_of(_SECTIONS[self.get("asks", OneOf.kind)], self)

    def text(self, *, everything: bool = False) -> str:
        """The verdict and the essential table as plain text; every section if asked for."""
        shown = [section for section in self.sections if everything or section.brief]
        return "\n".join([*wrapped(self["verdict"]["text"]), *text_lines(shown)])

    def to_frame(self) -> Any:
        """Every metric as a pandas DataFrame: part, metric, value, and the ends of its interval."""
        return data_frame([("part", "metric", "value", "low", "high"), *_metric_rows(self)])

    def __repr__(self) -> str:
        groups = f" of {self['groups']} patients or groups" if self["groups"] else ""
        title = in_units(f"Evaluation on {self['images']} images{groups}", self)
        lines = [line for warning in self["warnings"] for line in wrapped(f"Warning: {warning}")]
        return "\n".join([title, *lines, self.text()])


def _metric_rows(values: Mapping[str, Any], part: str = "") -> Iterator[Row]:
    intervals = values.get("intervals", {})
    for key, value in values.items():
        if isinstance(value, Mapping) and key not in ("intervals", "verdict"):
            yield from _metric_rows(value, f"{part}/{key}".strip("/"))
        elif key in intervals or key in METRICS:
            yield part, key, value, *(intervals.get(key) or (None, None))


def evaluate(
    classifier: Classifier,
    data: str | Path | Dataset,
    *,
    split: str = "test",
    resamples: int = 1000,
    leave_out_used: bool = False,
    by: Sequence[str] | None = None,
) -> Evaluation:
    """Evaluate a classifier on one split, or on all images if the data has no splits.

    `leave_out_used` leaves out the images that the model learned from or was calibrated on. `by`
    are columns of the table, or keywords of DICOM headers, whose values are subgroups.
    `verdict` of the result says in words what it means, and `sections` everything else.
    """
    judged = predict_labelled(classifier, data, split=split)
    if leave_out_used:
        judged = judged.unused(classifier)
    return evaluate_predictions(judged, classifier, resamples=resamples, by=by)


def evaluate_predictions(
    judged: LabelledPredictions,
    classifier: Classifier | None = None,
    *,
    calibration: Calibration | None = None,
    resamples: int = 1000,
    by: Sequence[str] | None = None,
) -> Evaluation:
    """Metrics with intervals, screening, selective prediction, calibration and prediction sets.

    Shares are 0..1, or None if undefined. `classifier` is what predicted: its calibration applies,
    its sets are measured, and images that it learned from are counted. `calibration` is for
    predictions without a classifier, and `by` is that of `evaluate`. There are no intervals if the
    model learned from the images.
    """
    if classifier is not None:
        calibration = classifier.calibration
    seen = classifier.card.seen if classifier and not judged.held_out else frozenset()
    learned_from = int(judged.copies_of(seen).sum())
    resamples = 0 if is_leaked(learned_from, len(judged.labels)) else resamples
    common = {
        "images": len(judged.labels),
        "unit": judged.unit,
        "groups": judged.group_count,
        "class_names": list(judged.class_names),
        "bootstrap": {
            "resamples": resamples,
            "by": "group" if judged.group_count else "image",
            "level": LEVEL,
        },
        "learned_from": learned_from,
        "calibrated_on": int(judged.copies_of(calibration.seen if calibration else ()).sum()),
        "left_out": judged.left_out,
    }
    measure = _MEASURES[judged.task.kind]
    result = measure(judged, common, calibration, classifier, resamples=resamples)
    if by:

        def score(part: LabelledPredictions) -> dict[str, Any]:
            metrics, names = bootstrapped(part, calibration, resamples=resamples)
            return metrics.rows(names[:1])

        result["subgroups"] = subgroup_rows(judged, [by] if isinstance(by, str) else by, score)
    warnings = [*judged.warnings, *_warnings(result, classifier)]
    result["warnings"] = [in_units(warning, result) for warning in warnings]
    result["verdict"] = {key: in_units(text, result) for key, text in result["verdict"].items()}
    return Evaluation(result)


def bootstrapped(
    judged: LabelledPredictions, calibration: Calibration | None, *, resamples: int
) -> tuple[BootstrappedMetrics, tuple[str, ...]]:
    """The metrics of what the task asks, and which of them summarise it, the first most."""
    measure, names = _METRICS[judged.task.kind]
    return measure(judged, judged.probabilities(calibration), resamples=resamples), names


def _warnings(result: Mapping[str, Any], classifier: Classifier | None) -> Iterator[str]:
    """Reasons to trust the numbers less."""
    unbounded = is_leaked(result["learned_from"], result["images"])
    used = {"learned from": result["learned_from"], "was calibrated on": result["calibrated_on"]}
    for what, count in used.items():
        if count:
            bounds = " and have no bounds for new images" if unbounded else ""
            yield (
                f"The model {what} {count} of these {result['images']} images, so the numbers "
                f"look better than they are{bounds}: leave those out (leave_out_used), or evaluate "
                "others."
            )
    if classifier is not None and (note := engine_note(classifier)):
        yield note
    if (fitted := result.get("calibration")) and result["nll"] > fitted["before"]["nll"] + _WORSE:
        yield "The calibration made the probabilities of these images worse: calibrate again."
    rows = result.get("per_finding") or result["per_class"]
    counts = {name: row.get("present", row.get("images")) for name, row in rows.items()}
    if few := [f"{name} ({count})" for name, count in counts.items() if 0 < count < FEW_TESTED]:
        yield f"Few images of {join_words(few)}: see the intervals before relying on them."
    if absent := [name for name, count in counts.items() if not count]:
        yield f"No images of {join_words(absent)}: nothing is known about them."


def evaluate_classes(
    judged: LabelledPredictions,
    common: Mapping[str, Any],
    calibration: Calibration | None,
    classifier: Classifier | None,
    *,
    resamples: int,
) -> dict[str, Any]:
    """What is measured where each case has one class."""
    grades = grade_order(judged.class_names)
    labels, names, p = judged.labels, judged.class_names, judged.probabilities(calibration)
    metrics = class_metrics(judged, p, graded=grades, resamples=resamples)
    whole = ["accuracy", "balanced_accuracy", "macro_f1", "auroc", "brier", "nll"]
    whole += ["kappa"] if grades else []
    result = {
        **common,
        **metrics.rows(whole),
        "ece": confidence.ece(labels, p),
        "per_class": {
            name: metrics.rows(_OF_CLASS, "class/", c) | {"images": int((labels == c).sum())}
            for c, name in enumerate(names)
        },
        "graded": bool(grades),
        "confusion": confusion_matrix(labels, p.argmax(axis=1), len(names)).tolist(),
        "screening": _screening(judged, p, metrics),
        "selective": _selective(labels, p),
        "reliability": confidence.bins(labels, p),
        "calibration": calibration and _calibration(judged, calibration),
        "sets": _sets(judged, p, calibration, classifier, intervals=resamples > 0),
        # Where all cases fit the scale, no threshold is guaranteed.
        "abstain": calibration and (_abstain(labels, p, calibration) if calibration.split else []),
    }
    ends = {key: metrics.share_interval(key) for key in ("accuracy", "balanced_accuracy")}
    support = classifier.card.support_counts if classifier else ()
    conclusion = class_verdict(result, ends, support=support)
    return {"verdict": conclusion, **result}


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
    }


def _selective(labels: NDArray[np.int64], p: NDArray[np.float32]) -> dict[str, Any]:
    coverage, risk = confidence.risk_coverage(labels, p)
    shown = np.unique(np.linspace(0, len(labels) - 1, _POINTS).round().astype(int))
    return {
        "aurc": confidence.aurc(labels, p),
        "risk_at_coverage": {
            f"{c:g}": confidence.risk_at_coverage(labels, p, c) for c in COVERAGES
        },
        "curve": {"coverage": coverage[shown].tolist(), "risk": risk[shown].tolist()},
    }


def _calibration(judged: LabelledPredictions, calibration: Calibration) -> dict[str, Any]:
    """What the calibration did; the scores after it are those of the whole result."""
    labels, p, question = judged.labels, judged.probabilities(), calibration.questions[0]
    change = "less" if question.temperature > 1 else "more"
    return {
        "text": f"Calibration on {calibration.cases} other images made the model {change} "
        f"confident (temperature {question.temperature:.2f})."
        if question.applied
        else question.reason or "Calibration left the probabilities unchanged.",
        "temperature": question.temperature,
        "applied": question.applied,
        "images": calibration.cases,
        "before": {
            "ece": confidence.ece(labels, p),
            "brier": confidence.brier(labels, p),
            "nll": confidence.nll(labels, p),
            "reliability": confidence.bins(labels, p),
        },
    }


def _sets(
    judged: LabelledPredictions,
    p: NDArray[np.float32],
    calibration: Calibration | None,
    classifier: Classifier | None,
    *,
    intervals: bool,
) -> list[dict[str, Any]] | None:
    """Coverage and size of prediction sets on these images, or why there are none.

    They are those of the calibration, or of the images learned from ("support").
    """
    sets: SupportSets | CalibratedSets | None = None
    if calibration is not None:
        sets = CalibratedSets(calibration, judged.task)
    elif classifier is not None:
        sets = SupportSets.of(classifier)
    if sets is None:
        return None
    labels = judged.labels

    def measure(wanted: float) -> dict[str, Any]:
        sets.check(wanted)
        members = sets.members(p, judged.features, wanted)
        hits = int(members[np.arange(len(labels)), labels].sum())
        sizes = members.sum(axis=1)
        return {
            "coverage": hits / len(labels),
            "interval": exact_interval(hits, len(labels)) if intervals else None,
            "mean_size": float(sizes.mean()),
            "single": float((sizes == 1).mean()),
            "empty": float((sizes == 0).mean()),
        }

    kind = "support" if calibration is None else "lac" if calibration.split else "estimate"
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


_MEASURES: Mapping[str, Callable[..., dict[str, Any]]]
_MEASURES = {OneOf.kind: evaluate_classes, Findings.kind: evaluate_findings}
_METRICS: Mapping[str, tuple[Callable[..., BootstrappedMetrics], tuple[str, ...]]]
_METRICS = {
    OneOf.kind: (class_metrics, ("accuracy", "balanced_accuracy", "auroc")),
    Findings.kind: (finding_metrics, ("macro/auroc", "macro/average_precision")),
}
_SECTIONS = {OneOf.kind: CLASS_SECTIONS, Findings.kind: FINDING_SECTIONS}
