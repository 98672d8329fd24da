"""Every method with one setting for all datasets: accuracy, risk, truth of probabilities, time."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.common import markdown, mean_and_spread, paired, percent, points

BEST = "fused"
BASE = "zero-shot-ensemble"
_SHOWN = ("fused", "zs-lp", "gda", "ogkd", "biomedcoop", "coop", BASE)  # in figures
_METRICS = {
    "accuracy": "accuracy",
    "balanced": "balanced_accuracy",
    "aurc": "aurc",
    "ece": "ece",
}


def tables(frame: pd.DataFrame) -> dict[str, str]:
    shots = sorted(frame["shots"].unique())
    columns = [f"K={K}" for K in shots]
    labels = list(dict.fromkeys(frame["label"]))
    made = {}
    for name, metric in _METRICS.items():
        rows = {}
        for label in labels:
            cells = []
            for K in shots:
                part = frame[(frame["label"] == label) & (frame["shots"] == K)]
                mean, spread = mean_and_spread(part, metric) if len(part) else (None, 0.0)
                cells.append("" if mean is None else f"{percent(mean)} ± {percent(spread)}")
            rows[label] = cells
        made[name] = markdown(rows, columns, "method")
    seconds = frame.groupby(["label", "shots"])["seconds"].mean().unstack("shots")
    made["seconds"] = markdown(
        {
            label: [
                "" if pd.isna(seconds.loc[label, K]) else f"{seconds.loc[label, K]:.2f}"
                for K in shots
            ]
            for label in labels
        },
        columns,
        "method",
    )
    made["against"] = markdown(
        {
            label: [
                points(paired(frame[frame["shots"] == K], BEST, label, "accuracy"))
                if len(frame[(frame["shots"] == K) & (frame["label"] == label)])
                else ""
                for K in shots
            ]
            for label in labels
            if label != BEST
        },
        columns,
        f"{BEST} minus",
    )
    made["datasets"] = _datasets(frame, shots, columns)
    return made


def _datasets(frame: pd.DataFrame, shots: list[int], columns: list[str]) -> str:
    """`fused` on each dataset, and its difference to the prompt ensemble."""
    means = frame.groupby(["label", "shots", "dataset"])["accuracy"].mean()
    rows = {
        name: [
            f"{percent(means[BEST, K, name])} "
            f"({100 * (means[BEST, K, name] - means[BASE, K, name]):+.1f})"
            for K in shots
        ]
        for name in sorted(frame["dataset"].unique())
    }
    return markdown(rows, columns, "dataset")


def figures(frame: pd.DataFrame) -> dict[str, Figure]:
    """Accuracy by labels per class; time against accuracy."""
    return {"accuracy": _by_labels(frame), "time": _by_time(frame)}


def _by_labels(frame: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for label in _SHOWN:
        part = frame[frame["label"] == label]
        shots = sorted(part["shots"].unique())
        points = [mean_and_spread(part[part["shots"] == K], "accuracy") for K in shots]
        mean, spread = (100 * pd.Series(values) for values in zip(*points, strict=True))
        style = "--" if label == BASE else "-"
        axes.errorbar(shots, mean, yerr=spread, label=label, marker="o", capsize=3, linestyle=style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(shots := sorted(frame["shots"].unique()), [str(K) for K in shots])
    axes.set_xlabel("labels per class")
    axes.set_ylabel("accuracy (%), mean of ten datasets")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _by_time(frame: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    part = frame[frame["shots"] == 16]
    means = part.groupby("label").agg({"seconds": "mean", "accuracy": "mean"})
    placed: list[tuple[float, float]] = []  # of the words: log10 of seconds, accuracy
    for label, (seconds, accuracy) in means.sort_values("accuracy", ascending=False).iterrows():
        x, y = max(seconds, 1e-3), 100 * accuracy
        marker, colour = ("*", "C3") if label == BEST else ("o", "C0")
        axes.plot(x, y, marker, color=colour)
        height = y
        while any(abs(math.log10(x) - u) < 1 and abs(height - v) < 1.1 for u, v in placed):
            height -= 0.2
        placed.append((math.log10(x), height))
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": "0.6"} if height < y else None
        words = (1.25 * x, height)
        axes.annotate(str(label), (x, y), words, fontsize=7, va="center", arrowprops=line)
    axes.margins(x=0.2)
    axes.set_xscale("log")
    axes.set_xlabel("seconds of one fit, 16 labels per class, features cached")
    axes.set_ylabel("accuracy (%)")
    axes.grid(alpha=0.3)
    return figure
