"""From the numbers of `ogkd.evaluation.describe` to what stands in the tables of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ogkd.report.charts import Chart, reliability_chart, risk_chart
from ogkd.report.tables import pair_heat
from ogkd.report.words import Outcome, join_words, percent, screening_counts

__all__ = ["calibration", "classes", "conformal", "interval_words", "metrics", "risk", "screening"]

Values = Mapping[str, Any]  # what the template reads
_METRICS = (
    ("accuracy", "Accuracy", "share of images named correctly"),
    ("balanced_accuracy", "Balanced accuracy", "mean recall: every class counts the same"),
    ("macro_f1", "Macro F1", "mean of the classes' F1: recall and precision together"),
    ("auroc", "AUROC", "how often an image of a class is ranked above one of another class"),
    ("kappa", "Quadratic kappa", "agreement beyond chance; a grade further off counts more"),
)
_PLAIN = ("auroc", "kappa")
_CALIBRATION = (
    ("ece", "ECE", "how far stated certainty and share of right answers lie apart on average"),
    ("brier", "Brier score", "squared distance of all probabilities to the truth, 0 to 2"),
    ("nll", "Negative log-likelihood", "punishes being sure and wrong most"),
)
_AREAS = (
    ("aurc", "AURC", "mean error rate along the curve"),
    ("e_aurc", "Excess AURC", "what a better order of certainty would save"),
    ("augrc", "AUGRC", "mean share of all images that are kept and wrong"),
)
_KINDS = {"lac": "smallest sets (LAC)", "aps": "sets that adapt (APS)"}


def interval_words(result: Values) -> str:
    """How the intervals were made."""
    how = result["bootstrap"]
    if not how["resamples"]:
        return "No intervals were computed."
    unit = "patients (groups)" if how["by"] == "group" else "images"
    text = (
        f"Intervals: {100 * how['level']:.0f} % bootstrap over {unit}, {how['resamples']} "
        "resamples; exact (Clopper-Pearson) where all or none are right."
    )
    if how["by"] == "image":
        text += " Images of one patient are alike: where patients are not told, they are too short."
    return text


def metrics(result: Values) -> list[Values]:
    """A row for each number that says how good the model is."""
    return [
        _row(name, result[key], result["intervals"][key], words, plain=key in _PLAIN)
        for key, name, words in _METRICS
        if key in result
    ]


def classes(result: Values) -> list[Values]:
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
    """Finding or no finding; None where no class is normal or one side has no image."""
    found = result["screening"]
    if not found or not found["diseased_images"] or not found["normal_images"]:
        return None
    ill, healthy = screening_counts(outcome.counts, outcome.normal)
    normal = join_words(found["normal"])
    between = found["intervals"]
    return {
        "words": f"All classes but {normal} count as a finding; one finding taken for another "
        "counts as noticed. The question here is only who would be sent on.",
        "table": pair_heat(np.array([ill, healthy]), ("finding", "no finding")),
        "rows": [
            _row(
                "Sensitivity",
                found["sensitivity"],
                between["sensitivity"],
                f"{found['missed']} of {found['diseased_images']} images with a finding are missed",
            ),
            _row(
                "Specificity",
                found["specificity"],
                between["specificity"],
                f"{found['false_positives']} false alarms on {found['normal_images']} images "
                "without a finding",
            ),
            _row(
                "AUROC",
                found["auroc"],
                between["auroc"],
                "finding against none, whatever the threshold",
                plain=True,
            ),
        ],
    }


def risk(result: Values) -> Values:
    """Selective prediction: the curve, what referring gives, and promised limits."""
    found, images = result["selective"], result["images"]
    overall = 1 - result["accuracy"]
    coverage = np.asarray(found["curve"]["coverage"])
    kept = np.maximum(coverage * images, 1)
    ideal = np.maximum(0, kept - images * (1 - overall)) / kept
    at = sorted(((float(c), r) for c, r in found["risk_at_coverage"].items()), reverse=True)
    told = ", ".join(f"{percent(r)} at {percent(c)}" for c, r in at[:4])
    return {
        "chart": risk_chart(
            coverage,
            found["curve"]["risk"],
            ideal,
            overall=overall,
            text=f"Risk-coverage curve: error rate among the images kept. {told} kept.",
        ),
        "rows": [
            {
                "referred": percent(1 - c),
                "kept": max(1, math.ceil(c * images - 1e-9)),
                "risk": _share(r),
            }
            for c, r in at
        ],
        "areas": [(name, f"{found[key]:.4f}", words) for key, name, words in _AREAS],
        **_promises(result["abstain"] or ()),
    }


def _promises(rows: Sequence[Values]) -> Values:
    """The limits that can be promised, and why not the others."""
    refused = [row for row in rows if "note" in row]
    return {
        "promises": [
            {
                "risk": percent(row["max_risk"]),
                "threshold": f"{_share(row['threshold'])} sure",
                "kept": _share(row["coverage"]),
                "errors": _share(row["risk"]),
            }
            for row in rows
            if "note" not in row
        ],
        # The note on the largest limit: it is the nearest to be reached.
        "refused": {
            "risks": join_words([percent(row["max_risk"]) for row in refused]),
            "note": max(refused, key=lambda row: row["max_risk"])["note"],
        }
        if refused
        else None,
    }


def calibration(result: Values) -> Values:
    """Reliability, before and after where the model was calibrated."""
    found = result["calibration"]
    if found is None:
        words = [
            "The model was not calibrated, so its probabilities are as they came out of training. "
            "The command ogkd calibrate mends them with images that it has not learned from."
        ]
        states = {"as it is": result}
    else:
        t = found["temperature"]
        change = (
            "less sure" if t > 1.001 else "surer" if t < 0.999 else "neither more nor less sure"
        )
        words = [
            f"{found['images']} other images served to calibrate. Their temperature of {t:.2f} "
            f"makes the model {change} without changing which class it names. {_gain(found)}"
        ]
        states = {"before": found["before"], "after": found["after"]}
    return {
        "words": words,
        "panels": [
            {"title": f"{name.capitalize()} calibration" if found else "Reliability", "chart": c}
            for name, state in states.items()
            for c in [_reliability(state)]
        ],
        "columns": list(states),
        "rows": [
            {
                "name": name,
                "texts": [f"{state[key]:.3f}" for state in states.values()],
                "words": explained,
            }
            for key, name, explained in _CALIBRATION
        ],
    }


def _gain(found: Values) -> str:
    before, after = found["before"]["nll"], found["after"]["nll"]
    if after < before:
        return "On the images judged here its probabilities became better by it."
    return "On the images judged here its probabilities did not become better by it."


def _reliability(state: Values) -> Chart:
    rows = [row for row in state["reliability"] if row["images"]]
    return reliability_chart(
        [row["confidence"] for row in rows],
        [row["accuracy"] for row in rows],
        [row["images"] for row in rows],
        text=f"Reliability diagram: share of right answers against stated certainty in "
        f"{len(rows)} bins; ECE {state['ece']:.3f}.",
    )


def conformal(result: Values) -> Values | None:
    """Prediction sets; None where the model was not calibrated."""
    if not result["sets"]:
        return None
    rows = []
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
    return {
        "words": "Instead of one class the model can give a set of classes that holds the right "
        "one as often as promised, for images like those it was calibrated on, on average over "
        "images and not for each class. A set of one class is a clear answer, a larger one "
        "says what cannot be told apart, an empty one that no class fits.",
        "rows": rows,
    }


def _row(
    name: str,
    value: float | None,
    between: Sequence[float] | None,
    words: str,
    *,
    plain: bool = False,
) -> Values:
    """A row of a table; `plain` numbers are customarily not told in percent."""
    if plain:
        text = "-" if value is None else f"{value:.3f}"
        ends = "" if between is None else f"{between[0]:.3f} to {between[1]:.3f}"
    else:
        text, ends = _share(value), _range(between)
    return {"name": name, "text": text, "range": ends, "words": words}


def _share(value: float | None) -> str:
    """A share in a table, where decimals stand below each other."""
    return "-" if value is None else f"{100 * value:.1f}\u00a0%"


def _range(between: Sequence[float] | None) -> str:
    return "" if between is None else f"{100 * between[0]:.1f} to {100 * between[1]:.1f} %"
