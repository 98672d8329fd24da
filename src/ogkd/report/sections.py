"""From the results of `ogkd.evaluation` to the words, tables and charts of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ogkd.evaluation.names import AREAS, METRICS, Metric
from ogkd.evaluation.prevalence import VALUES
from ogkd.report.charts import Chart, confusion_table, reliability_chart, risk_chart
from ogkd.report.page import between, join_words, percent, share

Values = Mapping[str, Any]  # the value of `evaluate_predictions`
KEPT = 0.8  # share of the images that are kept when the least confident are referred
_PAIRS = 3  # confusions that are named
_FEW = 20  # images of a class below which its numbers are little more than a hint
_SAME = 0.02  # a smaller change of the error rate counts as none
_HONEST = 0.05  # how far mean confidence may be off and still count as about right
_SUMMARY = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "kappa")
TOO_NARROW = (
    " If several images come from one patient and the data does not say so, these intervals are "
    "too narrow."
)


def tiles(result: Values) -> list[tuple[str, str, str]]:
    """The key numbers at the top, each beside what guessing would reach: value, name, note."""
    verdict, counts = result["verdict"], np.asarray(result["confusion"])
    most = verdict["majority"]
    tiles = [
        (
            f"{np.trace(counts)} of {result['images']}",
            "images classified correctly",
            f"always '{most['class']}': {percent(most['share'])}",
        ),
        (
            percent(verdict["balanced_accuracy"]),
            "of a class found, on average",
            f"guessing: {percent(1 / np.count_nonzero(counts.sum(axis=1)))}",
        ),
    ]
    if weak := verdict["weakest"]:
        value = f"{weak['found']} of {weak['images']}"
        tiles.append((value, f"images of '{weak['class']}' found", "weakest class"))
    if sides := screened(result):
        ill, well = sides
        alarms = percent(well[0] / sum(well))
        tiles.append(
            (
                percent(ill[0] / sum(ill)),
                f"of findings detected, with {alarms} false alarms",
                f"flagging as many at random: {percent(flagged_share(result))}",
            )
        )
    referred = f"errors if the least confident {percent(1 - KEPT)} are referred"
    errors = f"of all: {percent(1 - result['accuracy'])}"
    return [*tiles, (percent(risk_of_kept(result)), referred, errors)]


def interval_words(result: Values) -> str:
    how = result["bootstrap"]
    if not how["resamples"]:
        return "No intervals were computed."
    unit = "patients (groups)" if how["by"] == "group" else "images"
    text = (
        f"Intervals: {100 * how['level']:.0f} %, exact (Clopper-Pearson) for shares of images, "
        f"by {how['resamples']} bootstrap resamples of {unit} for the others."
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
    counts, sides = result["screening"], screened(result)
    if sides is None:
        return None
    missed = f"{counts['missed']} of {counts['diseased_images']} images with a finding are missed"
    alarms = (
        f"{counts['false_positives']} false alarms on {counts['normal_images']} images without a "
        "finding"
    )
    areas = "finding against no finding, at any threshold"
    rows = {"Sensitivity": missed, "Specificity": alarms, METRICS["auroc"].title: areas}
    return {
        "words": f"Every class except {join_words(counts['normal'])} counts as a finding; one "
        "finding mistaken for another counts as detected. The only question here is who would be "
        "referred.",
        "table": confusion_table(np.array(sides), ("finding", "no finding")),
        "rows": [
            (name, note, share(counts[key]), between(counts["intervals"][key]))
            for (name, note), key in zip(rows.items(), counts["intervals"], strict=True)
        ],
        "prevalence": [
            (percent(row["prevalence"]), [_with_interval(row, key) for key in VALUES])
            for row in counts["at_prevalence"]
        ],
    }


def _with_interval(row: Values, key: str) -> str:
    ends = row["intervals"][key]
    return share(row[key]) + ("" if ends is None else f" ({between(ends)})")


def selective(result: Values) -> Values:
    """Selective prediction: the curve, what referral achieves, and guaranteed limits."""
    selection, images = result["selective"], result["images"]
    overall = 1 - result["accuracy"]
    coverage = np.asarray(selection["curve"]["coverage"])
    kept = np.maximum(coverage * images, 1)
    ideal = np.maximum(0, kept - images * (1 - overall)) / kept
    at = sorted(((float(c), r) for c, r in selection["risk_at_coverage"].items()), reverse=True)
    points = ", ".join(f"{percent(r)} with {percent(c)}" for c, r in at[:4])
    words = f"Risk-coverage curve: error rate among the images kept. {points} kept."
    abstain = result["abstain"] or ()
    refused = [row for row in abstain if "note" in row]
    return {
        "chart": risk_chart(
            coverage, selection["curve"]["risk"], ideal, overall=overall, text=words
        ),
        "rows": [(1 - c, max(1, math.ceil(c * images - 1e-9)), r) for c, r in at],
        "areas": [
            (_name(area), _value(area, selection[area.name], more=1), area.meaning)
            for area in AREAS
        ],
        "guarantees": [row for row in abstain if "note" not in row],
        "refused": join_words([percent(row["max_risk"]) for row in refused]),
        # The note on the largest limit: it is the easiest to reach.
        "reason": max(refused, key=lambda row: row["max_risk"])["note"] if refused else "",
    }


def calibration(result: Values) -> Values:
    """Reliability, before and after calibration if there is one."""
    fitted = result["calibration"]
    if fitted is None:
        words = (
            "The model was not calibrated: its probabilities come straight from training. "
            "The command ogkd calibrate corrects them with images that the model has not "
            "learned from, if those show that it helps."
        )
    else:
        words = fitted["text"]
    changed = bool(fitted and fitted["applied"])
    states = {"before": fitted["before"], "after": fitted["after"]} if changed else {"here": result}
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
        "names": {"lac": "smallest sets (LAC)", "support": "sets by class"},
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


def sentences(result: Values) -> list[str]:
    """One sentence for each thing that matters, the most important first."""
    confused = frequent_confusions(result)
    return [
        *([f"Its most frequent errors: {confused}."] if confused else []),
        *_screening(result),
        _referral(result),
        _certainty(result),
    ]


def warnings(result: Values) -> list[str]:
    """Reasons to trust the numbers less."""
    messages = []
    if learned := result["learned_from"] + result["calibrated_on"]:
        messages.append(
            f"The model learned from or was calibrated on {learned} of the {result['images']} "
            "evaluated images. The numbers are better than on new images: leave those out, or "
            "evaluate other images."
        )
    totals = {name: row["images"] for name, row in result["per_class"].items()}
    if few := [f"{name} ({count})" for name, count in totals.items() if 0 < count < _FEW]:
        messages.append(
            f"Few images of {join_words(few)}: see the intervals before relying on them."
        )
    if absent := [name for name, count in totals.items() if not count]:
        messages.append(f"No images of {join_words(absent)}: nothing is known about them.")
    return messages


def frequent_confusions(result: Values) -> str:
    """The most frequent errors as "a mistaken for b (3 of 10)"; empty if there are none."""
    names, counts = result["class_names"], np.array(result["confusion"])
    totals = counts.sum(axis=1)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:_PAIRS]
    pairs = (divmod(int(cell), len(names)) for cell in order)
    return join_words(
        [
            f"{names[a]} mistaken for {names[b]} ({counts[a, b]} of {totals[a]})"
            for a, b in pairs
            if counts[a, b]
        ]
    )


def screened(result: Values) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Images predicted as a finding and not, for images with and for images without one.

    None if no class is normal or one side has no images.
    """
    counts = result["screening"]
    if not counts or not counts["diseased_images"] or not counts["normal_images"]:
        return None
    missed, alarms = counts["missed"], counts["false_positives"]
    return (counts["diseased_images"] - missed, missed), (alarms, counts["normal_images"] - alarms)


def flagged_share(result: Values) -> float:
    """The share of all images flagged: what guessing in the same proportion would detect."""
    ill, well = screened(result) or ((0, 0), (0, 0))
    return (ill[0] + well[0]) / int(result["images"])


def _screening(result: Values) -> list[str]:
    if (sides := screened(result)) is None:
        return []
    ill, well = sides
    return [
        f"As a screening test (anything but {join_words(result['screening']['normal'])} counts as "
        f"a finding) it detects {ill[0]} of {sum(ill)} images with a finding and raises a false "
        f"alarm on {well[0]} of {sum(well)} without one. Flagging as many images at random would "
        f"detect {percent(flagged_share(result))}."
    ]


def risk_of_kept(result: Values) -> float:
    """The error rate among the images kept when the least confident are referred."""
    return float(result["selective"]["risk_at_coverage"][f"{KEPT:g}"])


def _referral(result: Values) -> str:
    error, risk = 1 - result["accuracy"], risk_of_kept(result)
    start = (
        f"If the least confident {percent(1 - KEPT)} of the images are referred to a "
        "specialist, the error rate on the rest "
    )
    if abs(risk - error) <= _SAME:
        return f"{start}stays at about {percent(error)}."
    return (
        f"{start}{'falls' if risk < error else 'rises'} from {percent(error)} to {percent(risk)}."
    )


def _certainty(result: Values) -> str:
    bins = [row for row in result["reliability"] if row["images"]]
    sure = sum(row["images"] * row["confidence"] for row in bins) / result["images"]
    gap = sure - result["accuracy"]
    if abs(gap) <= _HONEST:
        verdict = "on average its confidence is about right"
    else:
        verdict = "it is overconfident" if gap > 0 else "it is underconfident"
    advice = "" if result["calibration"] else " (not calibrated: see ogkd calibrate)"
    return (
        f"Its mean confidence is {percent(sure)} and its accuracy "
        f"{percent(result['accuracy'])}: {verdict}{advice}."
    )
