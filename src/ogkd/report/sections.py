"""From the results of `ogkd.evaluation` to the tables and charts of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ogkd.evaluation.names import AREAS, METRICS, Metric
from ogkd.report.charts import Chart, confusion_table, reliability_chart, risk_chart
from ogkd.report.html import between, join_words, percent, share
from ogkd.report.summary import Outcome, screening_counts

Values = Mapping[str, Any]  # what the template reads
_SUMMARY = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "kappa")


def tiles(outcome: Outcome, result: Values) -> list[tuple[str, str, str]]:
    """The key numbers at the top: value, name, note."""
    ends, found = outcome.interval, result["screening"]
    interval = f"95 %: {100 * ends[0]:.0f} to {100 * ends[1]:.0f} %" if ends else ""
    referred = f"if the least confident {percent(1 - outcome.kept)} are referred"
    state = "calibrated" if outcome.calibrated else "not calibrated"
    made = [
        (str(outcome.images), "images evaluated", f"{len(outcome.names)} classes"),
        (percent(outcome.accuracy), "classified correctly", interval),
        (percent(outcome.risk), "errors", referred),
        (f"{METRICS['ece'].text(result['ece'])} points", "calibration error", state),
    ]
    if found and found["sensitivity"] is not None and found["specificity"] is not None:
        note = f"specificity {percent(found['specificity'])}"
        made.insert(2, (percent(found["sensitivity"]), "of findings detected", note))
    return made


def interval_words(result: Values) -> str:
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


def metrics(result: Values) -> list[tuple[str, str, str, str]]:
    """Name, meaning, value and interval of each metric of the whole result."""
    rows = []
    for metric in (METRICS[key] for key in _SUMMARY if key in result):
        ends = result["intervals"][metric.name]
        text = "" if ends is None else " to ".join(metric.text(end) for end in ends)
        text += " %" if text and metric.percent else ""
        rows.append((_name(metric), metric.meaning, _value(metric, result[metric.name]), text))
    return rows


def screening(result: Values, outcome: Outcome) -> Values | None:
    """Finding or no finding; None if no class is normal or one side has no images."""
    found = result["screening"]
    if not found or not found["diseased_images"] or not found["normal_images"]:
        return None
    missed = f"{found['missed']} of {found['diseased_images']} images with a finding are missed"
    alarms = (
        f"{found['false_positives']} false alarms on {found['normal_images']} images without a "
        "finding"
    )
    areas = "finding against no finding, at any threshold"
    rows = {"Sensitivity": missed, "Specificity": alarms, METRICS["auroc"].title: areas}
    counts = np.array(screening_counts(outcome.counts, outcome.normal))
    return {
        "words": f"Every class except {join_words(found['normal'])} counts as a finding; one "
        "finding mistaken for another counts as detected. The only question here is who would be "
        "referred.",
        "table": confusion_table(counts, ("finding", "no finding")),
        "rows": [
            (name, note, share(found[key]), between(found["intervals"][key]))
            for (name, note), key in zip(rows.items(), found["intervals"], strict=True)
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
    words = f"Risk-coverage curve: error rate among the images kept. {points} kept."
    abstain = result["abstain"] or ()
    refused = [row for row in abstain if "note" in row]
    return {
        "chart": risk_chart(coverage, found["curve"]["risk"], ideal, overall=overall, text=words),
        "rows": [(1 - c, max(1, math.ceil(c * images - 1e-9)), r) for c, r in at],
        "areas": [
            (_name(area), _value(area, found[area.name], more=1), area.meaning) for area in AREAS
        ],
        "guarantees": [row for row in abstain if "note" not in row],
        "refused": join_words([percent(row["max_risk"]) for row in refused]),
        # The note on the largest limit: it is the easiest to reach.
        "reason": max(refused, key=lambda row: row["max_risk"])["note"] if refused else "",
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
        states = {"before": found["before"], "after": found["after"]}
        t = found["temperature"]
        change = "less" if t > 1.001 else "more" if t < 0.999 else "neither more nor less"
        improved = found["after"]["nll"] < found["before"]["nll"]
        words = (
            f"The model was calibrated on {found['images']} other images. The resulting "
            f"temperature of {t:.2f} makes it {change} confident without changing its predictions. "
            f"On the images evaluated here, its probabilities "
            f"{'improved' if improved else 'did not improve'}."
        )
    return {
        "words": words,
        "panels": [
            (f"{name.capitalize()} calibration" if found else "Reliability", _reliability(state))
            for name, state in states.items()
        ],
        "columns": list(states),
        "rows": [
            (
                _name(metric),
                metric.meaning,
                [_value(metric, s[metric.name]) for s in states.values()],
            )
            for metric in map(METRICS.__getitem__, ("ece", "brier", "nll"))
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


def _name(metric: Metric) -> str:
    """The title with its abbreviation, if that is one: "Negative log-likelihood (NLL)"."""
    return f"{metric.title} ({metric.short})" if metric.short.isupper() else metric.title


def _value(metric: Metric, value: float | None, *, more: int = 0) -> str:
    if value is None:
        return "-"
    return metric.text(value, more=more) + ("\u00a0%" if metric.percent else "")
