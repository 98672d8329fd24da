"""From the results of `ogkd.evaluation` to the tables and charts of the page."""

from __future__ import annotations

import math

import numpy as np

from ogkd.evaluation.names import AREAS, METRICS, Metric
from ogkd.evaluation.prevalence import VALUES
from ogkd.report.charts import Chart, confusion_table, reliability_chart, risk_chart
from ogkd.report.html import between, join_words, percent, share
from ogkd.report.summary import KEPT, Values, flagged_share, risk_of_kept, screened

_SUMMARY = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "kappa")
TOO_NARROW = (
    " If several images come from one patient and the data does not say so, these intervals are "
    "too narrow."
)


def tiles(result: Values) -> list[tuple[str, str, str]]:
    """The key numbers at the top, each beside what guessing would reach: value, name, note."""
    found, counts = result["verdict"], np.asarray(result["confusion"])
    most = found["majority"]
    made = [
        (
            f"{np.trace(counts)} of {result['images']}",
            "images classified correctly",
            f"always '{most['class']}': {percent(most['share'])}",
        ),
        (
            percent(found["balanced_accuracy"]),
            "of a class found, on average",
            f"guessing: {percent(1 / np.count_nonzero(counts.sum(axis=1)))}",
        ),
    ]
    if weak := found["weakest"]:
        value = f"{weak['found']} of {weak['images']}"
        made.append((value, f"images of '{weak['class']}' found", "weakest class"))
    if sides := screened(result):
        ill, well = sides
        alarms = percent(well[0] / sum(well))
        made.append(
            (
                percent(ill[0] / sum(ill)),
                f"of findings detected, with {alarms} false alarms",
                f"flagging as many at random: {percent(flagged_share(result))}",
            )
        )
    referred = f"errors if the least confident {percent(1 - KEPT)} are referred"
    errors = f"of all: {percent(1 - result['accuracy'])}"
    return [*made, (percent(risk_of_kept(result)), referred, errors)]


def interval_words(result: Values) -> str:
    how = result["bootstrap"]
    if not how["resamples"]:
        return "No intervals were computed."
    unit = "patients (groups)" if how["by"] == "group" else "images"
    text = (
        f"Intervals: {100 * how['level']:.0f} %, exact (Clopper-Pearson) for shares of images, "
        f"by {how['resamples']} bootstrap resamples of {unit} for F1, AUROC and kappa."
    )
    if how["by"] == "group":
        text += " Images of one patient (group) are alike and count for fewer."
    return text + (TOO_NARROW if how["by"] == "image" else "")


def metrics(result: Values) -> list[tuple[str, str, str, str]]:
    """Name, meaning, value and interval of each metric of the whole result."""
    rows = []
    for metric in (METRICS[key] for key in _SUMMARY if key in result):
        ends = result["intervals"][metric.name]
        text = "" if ends is None else " to ".join(metric.text(end) for end in ends)
        text += " %" if text and metric.percent else ""
        rows.append((_name(metric), metric.meaning, _value(metric, result[metric.name]), text))
    return rows


def screening(result: Values) -> Values | None:
    """Finding or no finding; None if no class is normal or one side has no images."""
    found, sides = result["screening"], screened(result)
    if sides is None:
        return None
    missed = f"{found['missed']} of {found['diseased_images']} images with a finding are missed"
    alarms = (
        f"{found['false_positives']} false alarms on {found['normal_images']} images without a "
        "finding"
    )
    areas = "finding against no finding, at any threshold"
    rows = {"Sensitivity": missed, "Specificity": alarms, METRICS["auroc"].title: areas}
    return {
        "words": f"Every class except {join_words(found['normal'])} counts as a finding; one "
        "finding mistaken for another counts as detected. The only question here is who would be "
        "referred.",
        "table": confusion_table(np.array(sides), ("finding", "no finding")),
        "rows": [
            (name, note, share(found[key]), between(found["intervals"][key]))
            for (name, note), key in zip(rows.items(), found["intervals"], strict=True)
        ],
        "prevalence": [
            (percent(row["prevalence"]), [_with_interval(row, key) for key in VALUES])
            for row in found["at_prevalence"]
        ],
    }


def _with_interval(row: Values, key: str) -> str:
    ends = row["intervals"][key]
    return share(row[key]) + ("" if ends is None else f" ({between(ends)})")


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
            "The model was not calibrated: its probabilities come straight from training. "
            "The command ogkd calibrate corrects them with images that the model has not "
            "learned from, if those show that it helps."
        )
    else:
        words = found["text"]
    changed = bool(found and found["applied"])
    states = {"before": found["before"], "after": found["after"]} if changed else {"here": result}
    return {
        "words": words,
        "panels": [
            (f"{name.capitalize()} calibration" if changed else "Reliability", _reliability(state))
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


def sets(result: Values) -> Values:
    """Prediction sets that could be measured, and the guarantees that need more images."""
    rows = result["sets"] or ()
    few = dict.fromkeys(percent(row["wanted"]) for row in rows if "note" in row)
    by_class = any(row["kind"] == "support" for row in rows)
    return {
        "rows": [row for row in rows if "note" not in row],
        "names": {
            "lac": "smallest sets (LAC)",
            "aps": "adaptive sets (APS)",
            "support": "sets by class",
        },
        "by_class": by_class,
        "refused": " or ".join(few),
        "few": "images per class" if by_class else "calibration images",
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
