"""Accuracy along an axis (shots, or what a plan sweeps) in small panels.

Averages and bands are those of the tables (tidy.py). A point is drawn once all its runs are
finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd

from ogkd.bench.compare import published_elsewhere
from ogkd.bench.figures import style
from ogkd.bench.figures.style import Drawn, shown
from ogkd.bench.tidy import Condition
from ogkd.errors import ConfigError, pluralize

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ogkd.bench.figures import FigureInput
    from ogkd.bench.runs import Plan

_HOLLOW = "Hollow: published elsewhere, with the authors' own settings and backbone"
_MARKERS = "osD^v<>pPX"  # of what is published elsewhere
_TICKS = 6  # labels that fit below a small panel
_AXES = {
    "shots": "Shots per class",
    "gamma": "Geometry strength γ",
    "budget": "Prompts per class of the teacher, N",
    "flips": "Wrong labels per class",
}


def few_shot(given: FigureInput, *, average: bool) -> Drawn:
    """Accuracy against shots: a panel for each dataset, or one of their average."""
    plan, summary = given.plan, given.accuracy
    if plan.sweep is not None:
        raise ConfigError(
            f"It needs runs that differ only in shots, but '{plan.name}' sweeps {plan.sweep}."
        )
    groups = {name: [name] for name in summary.datasets}
    if average and len(groups) > 1:
        groups = {"": summary.datasets}
    points = summary.averages(groups)
    points["panel"] = points["group"]
    points = points[points["part"] == "test"]
    elsewhere = _elsewhere(plan, len(summary.datasets)) if "" in groups else {}
    name = "few-shot-average" if average else "few-shot"
    yield name, _draw(points, given, "shots", elsewhere)


def _elsewhere(plan: Plan, datasets: int) -> dict[str, pd.Series]:
    """Averages over as many of the paper's datasets that papers print: accuracy by shots."""
    table = published_elsewhere(plan)
    if table.empty:
        return {}
    rows = table[table["datasets"] == str(datasets)].set_index("method").filter(like="K=")
    rows = rows.rename(columns=lambda name: int(name[2:])).apply(pd.to_numeric)
    return {str(method): row.dropna() for method, row in rows.iterrows()}


def sweep(given: FigureInput) -> Drawn:
    """Accuracy against the swept setting, averaged over datasets.

    Few-shot: a panel for each number of shots. Base-to-novel: base, novel and HM of averages.
    """
    swept = given.plan.sweep
    if swept is None:
        raise ConfigError(f"It needs a plan that sweeps a setting; '{given.plan.name}' does not.")
    points = given.accuracy.averages({"": given.accuracy.datasets})
    points = points[points["part"] != "mean-hm"].reset_index(drop=True)
    shots = ["all images" if k is None else pluralize(k, "shot") for k, *_ in points["condition"]]
    titles = {"test": "", "base": "Base, ", "novel": "Novel, ", "hm": "HM of averages, "}
    points["panel"] = points["part"].map(titles) + shots
    yield f"sweep-{style.file_stem(swept)}", _draw(points, given, swept)


def _position(condition: Condition, axis: str) -> float | None:
    value = {"shots": condition.shots, "flips": condition.flips}.get(axis, condition.value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"A curve needs numbers along its axis, but {axis} is '{value}'.")
    return None if value is None else float(value)


def _draw(
    points: pd.DataFrame,
    given: FigureInput,
    axis: str,
    elsewhere: Mapping[str, pd.Series] = MappingProxyType({}),
) -> Figure:
    """Draw the finished points of each panel, with one legend, and what is published elsewhere."""
    summary, pair = given.accuracy, given.pair or ()
    is_finished = points["value"].notna() & (points["done"] == points["planned"])
    missing = len(points) - int(is_finished.sum())
    points = points[is_finished]
    # NaN: it does not vary along the axis.
    points = points.assign(x=[_position(condition, axis) for condition in points["condition"]])
    points[["value", "std"]] *= 100
    if points["x"].nunique() < 2:
        raise ConfigError(f"A curve needs finished runs at two values of {axis}.")
    if (twice := points.duplicated(["panel", "label", "x"])).any():
        label = points["label"][twice].iloc[0]
        raise ConfigError(f"'{label}' has runs under several conditions with one {axis}.")
    look = style.looks(summary.labels, pair)
    bands = pair or summary.labels  # of many curves they would hide each other
    handles: dict[str, Artist] = {}
    panels = list(points.groupby("panel", sort=False))
    height = 1.75 if len(panels) > 1 else 2.1
    x_name, y_name = _AXES.get(axis, axis), summary.metric.heading
    figure, axes = style.grid(len(panels), x_name, y_name, height=height)
    for ax, (title, panel) in zip(axes, panels, strict=True):
        _draw_panel(ax, panel, look, handles, bands)
        _ticks(ax, panel, logarithmic=axis == "shots")
        ax.set_title(shown(title, 36), loc="left")
        for marker, (name, values) in zip(_MARKERS, elsewhere.items(), strict=False):
            (handles[shown(name)],) = ax.plot(values, marker, color="#666666", fillstyle="none")
    style.legend_below(figure, handles)
    seeds = pluralize(len({run.spec.seed for _, run in given.runs}), "seed")
    bars = "; band: ± std over seeds" if seeds != "1 seed" else ""
    words = f"Not finished, left out: {pluralize(missing, 'point')}" if missing else ""
    style.header(figure, f"Mean of {seeds}{bars}", words, _HOLLOW if elsewhere else "")
    return figure


def _draw_panel(
    ax: Axes,
    points: pd.DataFrame,
    look: Mapping[str, dict[str, Any]],
    handles: dict[str, Artist],
    bands: Sequence[str],
) -> None:
    moving = set(points.dropna(subset="x")["label"])
    curves = points.groupby(["label", points["x"].isna()], sort=False)
    # The pair comes last, so that its curves are on top.
    for (label, flat), curve in sorted(curves, key=lambda item: look[item[0][0]]["linewidth"]):
        colour, mean, std = look[label]["color"], curve["value"], curve["std"]
        if flat:  # it does not vary along the axis: a level
            name = f"{label} (preset)" if label in moving else label
            line = ax.axhline(mean.iloc[0], color=colour, linestyle="--", linewidth=0.9)
        else:
            name = label
            (line,) = ax.plot(curve["x"], mean, markeredgewidth=0, **look[label])
            if label in bands and std.notna().any():
                style.band(ax, curve["x"], mean, std, colour)
        handles.setdefault(shown(name), line)


def _ticks(ax: Axes, points: pd.DataFrame, *, logarithmic: bool) -> None:
    if logarithmic:
        ax.set_xscale("log", base=2)
        ax.minorticks_off()
    positions = sorted(points["x"].dropna().unique())
    positions = positions[:: -(-len(positions) // _TICKS) or 1]
    ax.set_xticks(positions, [f"{x:g}" for x in positions])
