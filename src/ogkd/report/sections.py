"""From the results of `ogkd.evaluation` to the tables and charts of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ogkd.evaluation.names import AREAS, METRICS, Metric
from ogkd.report.charts import Chart, confusion_table, reliability_chart, risk_chart
from ogkd.report.summary import Outcome, join_words, percent, screening_counts

Values = Mapping[str, Any]  # what the template reads
_SUMMARY = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "kappa")
_CALIBRATION = ("ece", "brier", "nll")
_AREAS = (METRICS["aurc"], AREAS["e_aurc"], AREAS["augrc"])
_KINDS = {"lac": "smallest sets (LAC)", "aps": "adaptive sets (APS)"}


def tiles(outcome: Outcome, result: Values) -> list[Values]:
    """The key numbers at the top."""
    between, found = outcome.interval, result["screening"]
    made = [
        _tile(str(outcome.images), "images evaluated", f"{len(outcome.names)} classes"),
        _tile(
            percent(outcome.accuracy),
            "classified correctly",
            f"95 %: {100 * between[0]:.0f} to {100 * between[1]:.0f} %" if between else "",
        ),
        _tile(
            percent(outcome.risk),
            "errors",
            f"if the least confident {percent(1 - outcome.kept)} are referred",
        ),
        _tile(
            f"{METRICS['ece'].text(result['ece'])} points",
            "calibration error",
            "calibrated" if outcome.calibrated else "not calibrated",
        ),
    ]
    if found and found["sensitivity"] is not None and found["specificity"] is not None:
        note = f"specificity {percent(found['specificity'])}"
        made.insert(2, _tile(percent(found["sensitivity"]), "of findings detected", note))
    return made


def _tile(value: str, name: str, note: str) -> Values:
    return {"value": value, "name": name, "note": note}


def interval_words(result: Values) -> str:
    """How the intervals were computed."""
    how = result["bootstrap"]
    if not how["resamples"]:
        return "No intervals were computed."
    unit = "patients (groups)" if how["by"] == "group" else "images"
    text = (
        f"Intervals: {100 * how['level']:.0f} % bootstrap over {unit}, {how['resamples']} "
        "resamples; exact (Clopper-Pearson) if all or none are correct."
    )
    if how["by"] == "image":
        text += (
            " If several images come from one patient and the data does not say so, these "
            "intervals are too narrow."
        )
    return text


def metrics(result: Values) -> list[Values]:
    """A row for each metric of the whole result."""
    return [
        _row(METRICS[key], result[key], result["intervals"][key])
        for key in _SUMMARY
        if key in result
    ]


def per_class(result: Values) -> list[Values]:
    """A row for each class."""
    return [
        {
            "name": name,
            "images": row["images"],
            "shares": [
                {"text": _share(row[key]), "range": _range(row["intervals"][key])}
                for key in ("recall", "precision", "specificity", "f1")
            ],
        }
        for name, row in result["per_class"].items()
    ]


def screening(result: Values, outcome: Outcome) -> Values | None:
    """Finding or no finding; None if no class is normal or one side has no images."""
    found = result["screening"]
    if not found or not found["diseased_images"] or not found["normal_images"]:
        return None
    notes = {
        "sensitivity": f"{found['missed']} of {found['diseased_images']} images with a finding "
        "are missed",
        "specificity": f"{found['false_positives']} false alarms on {found['normal_images']} "
        "images without a finding",
        "auroc": "finding against no finding, at any threshold",
    }
    return {
        "words": f"Every class except {join_words(found['normal'])} counts as a finding; one "
        "finding mistaken for another counts as detected. The only question here is who would be "
        "referred.",
        "table": confusion_table(
            np.array(screening_counts(outcome.counts, outcome.normal)), ("finding", "no finding")
        ),
        "rows": [
            {
                "name": METRICS["auroc"].title if key == "auroc" else key.capitalize(),
                "text": _share(found[key]),
                "range": _range(found["intervals"][key]),
                "words": note,
            }
            for key, note in notes.items()
        ],
    }


def selective(result: Values) -> Values:
    """Selective prediction: the curve, what referral achieves, and guaranteed limits."""
    found, images = result["selective"], result["images"]
    overall = 1 - result["accuracy"]
    coverage = np.asarray(found["curve"]["coverage"])
    kept = np.maximum(coverage * images, 1)
    ideal = np.maximum(0, kept - images * (1 - overall)) / kept
    at = sorted(((float(c), r) for c, r in found["risk_at_coverage"].items()), reverse=True)
    points = ", ".join(f"{percent(r)} with {percent(c)}" for c, r in at[:4])
    abstain = result["abstain"] or ()
    refused = [row for row in abstain if "note" in row]
    return {
        "chart": risk_chart(
            coverage,
            found["curve"]["risk"],
            ideal,
            overall=overall,
            text=f"Risk-coverage curve: error rate among the images kept. {points} kept.",
        ),
        "rows": [
            {
                "referred": percent(1 - c),
                "kept": max(1, math.ceil(c * images - 1e-9)),
                "risk": _share(r),
            }
            for c, r in at
        ],
        "areas": [
            (_name(area), _value(area, found[area.name], more=1), area.meaning) for area in _AREAS
        ],
        "guarantees": [
            {
                "risk": percent(row["max_risk"]),
                "threshold": _share(row["threshold"]),
                "kept": _share(row["coverage"]),
                "errors": _share(row["risk"]),
            }
            for row in abstain
            if "note" not in row
        ],
        # The note on the largest limit: it is the easiest to reach.
        "refused": {
            "risks": join_words([percent(row["max_risk"]) for row in refused]),
            "note": max(refused, key=lambda row: row["max_risk"])["note"],
        }
        if refused
        else None,
    }


def calibration(result: Values) -> Values:
    """Reliability, before and after calibration if there is one."""
    found = result["calibration"]
    if found is None:
        words = (
            "The model was not calibrated: its probabilities are as training left them. "
            "The command ogkd calibrate corrects them with images that the model has not "
            "learned from."
        )
        states = {"uncalibrated": result}
    else:
        t = found["temperature"]
        change = (
            "less confident"
            if t > 1.001
            else "more confident"
            if t < 0.999
            else "neither more nor less confident"
        )
        improved = found["after"]["nll"] < found["before"]["nll"]
        effect = "improved" if improved else "did not improve"
        words = (
            f"The model was calibrated on {found['images']} other images. The resulting "
            f"temperature of {t:.2f} makes it {change} without changing its predictions. On the "
            f"images evaluated here, its probabilities {effect}."
        )
        states = {"before": found["before"], "after": found["after"]}
    return {
        "words": words,
        "panels": [
            {
                "title": f"{name.capitalize()} calibration" if found else "Reliability",
                "chart": _reliability(state),
            }
            for name, state in states.items()
        ],
        "columns": list(states),
        "rows": [
            {
                "name": _name(metric),
                "texts": [_value(metric, state[metric.name]) for state in states.values()],
                "words": metric.meaning,
            }
            for metric in map(METRICS.__getitem__, _CALIBRATION)
        ],
    }


def _reliability(state: Values) -> Chart:
    rows = [row for row in state["reliability"] if row["images"]]
    return reliability_chart(
        [row["confidence"] for row in rows],
        [row["accuracy"] for row in rows],
        [row["images"] for row in rows],
        text=f"Reliability diagram: accuracy against confidence in {len(rows)} bins; "
        f"{METRICS['ece'].short} {_value(METRICS['ece'], state['ece'])}.",
    )


def prediction_sets(result: Values) -> list[Values] | None:
    """Rows about prediction sets; None if the model was not calibrated."""
    if not result["sets"]:
        return None
    rows: list[Values] = []
    for row in result["sets"]:
        texts = [percent(row["wanted"]), "too few calibration images", "", "", ""]
        if "coverage" in row:
            texts[1:] = [
                f"{_share(row['coverage'])} ({_range(row['interval'])})",
                f"{row['mean_size']:.2f}",
                _share(row["single"]),
                _share(row["empty"]),
            ]
        rows.append({"name": _KINDS[row["kind"]], "texts": texts})
    return rows


def _row(metric: Metric, value: float | None, between: Sequence[float] | None) -> Values:
    ends = "" if between is None else " to ".join(metric.text(end) for end in between)
    return {
        "name": _name(metric),
        "text": _value(metric, value),
        "range": f"{ends} %" if ends and metric.percent else ends,
        "words": metric.meaning,
    }


def _name(metric: Metric) -> str:
    """The title with its abbreviation, if that is one: "Negative log-likelihood (NLL)"."""
    return f"{metric.title} ({metric.short})" if metric.short.isupper() else metric.title


def _value(metric: Metric, value: float | None, *, more: int = 0) -> str:
    if value is None:
        return "-"
    return metric.text(value, more=more) + ("\u00a0%" if metric.percent else "")


def _share(value: float | None) -> str:
    """A percentage in a table, always with one decimal so that columns align."""
    return "-" if value is None else f"{100 * value:.1f}\u00a0%"


def _range(between: Sequence[float] | None) -> str:
    return "" if between is None else f"{100 * between[0]:.1f} to {100 * between[1]:.1f} %"
