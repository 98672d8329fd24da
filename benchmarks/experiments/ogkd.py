"""OGKD against BiomedCoOp (B) and its own parts, in pairs of the same datasets and seeds."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.common import markdown, mean_and_spread, paired, percent, points


def tables(frame: pd.DataFrame) -> dict[str, str]:
    made = {}
    losses = _condition(frame[frame["grid"] == "losses"], "shots", "K")
    if len(losses):
        made["losses"] = _table(losses, "accuracy", "B")
        made["losses-aurc"] = _table(losses, "aurc", "B")
    noise = _condition(frame[frame["grid"] == "noise"], "flips", "wrong")
    if len(noise):
        made["noise"] = _table(noise, "accuracy", "B")
        made["noise-aurc"] = _table(noise, "aurc", "B")
    novel = frame[frame["grid"] == "novel"]
    if len(novel):
        wide = novel.pivot_table(
            index=["label", "dataset", "seed"], columns="part", values="accuracy"
        )
        wide["hm"] = 2 * wide["base"] * wide["novel"] / (wide["base"] + wide["novel"])
        long = wide.stack().rename("accuracy").reset_index()
        made["novel"] = _table(long.rename(columns={"part": "column"}), "accuracy", "B")
    return made


def _condition(frame: pd.DataFrame, column: str, word: str) -> pd.DataFrame:
    return frame.assign(column=[f"{word}={int(value)}" for value in frame[column]])


def _table(frame: pd.DataFrame, metric: str, base: str) -> str:
    """Means, and differences to `base` with their 95 % intervals."""
    columns = list(dict.fromkeys(frame["column"]))
    columns = sorted(columns, key=lambda name: (len(name), name))
    rows = {}
    for label in dict.fromkeys(frame["label"]):
        cells = []
        for column in columns:
            part = frame[frame["column"] == column]
            mean, _ = mean_and_spread(part[part["label"] == label], metric)
            words = percent(mean)
            if label != base:
                words += f", {points(paired(part, str(label), base, metric))}"
            cells.append(words)
        rows[str(label)] = cells
    return markdown(rows, columns, f"minus {base}")


def figures(frame: pd.DataFrame) -> dict[str, Figure]:
    """A forest plot: OGKD minus BiomedCoOp for each condition."""
    losses, noise = (frame[frame["grid"] == grid] for grid in ("losses", "noise"))
    novel = frame[frame["grid"] == "novel"]
    parts = [
        losses.assign(column=[f"{int(K)} per class" for K in losses["shots"]]),
        noise.assign(column=[f"{int(flips)} of 16 wrong" for flips in noise["flips"]]),
        novel.assign(column=[f"16, {part} classes" for part in novel["part"]]),
    ]
    entries = []
    for part in parts:
        for column in dict.fromkeys(part["column"]):
            if {"B", "OGKD"} <= set(part["label"]):
                at = part[part["column"] == column]
                entries.append((column, paired(at, "OGKD", "B", "accuracy")))
    figure = Figure(figsize=(7, 0.5 + 0.4 * len(entries)), layout="constrained")
    axes = figure.subplots()
    for row, (_, (mean, low, high)) in enumerate(reversed(entries)):
        axes.plot([100 * low, 100 * high], [row, row], color="C0")
        axes.plot(100 * mean, row, "o", color="C0")
    axes.axvline(0, color="0.5", linewidth=1)
    axes.set_yticks(range(len(entries)), [name for name, _ in reversed(entries)])
    axes.set_xlabel("OGKD minus BiomedCoOp, accuracy in points, 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    return {"forest": figure}
