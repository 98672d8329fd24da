"""Accuracy along an axis (shots, or what a plan sweeps) in small panels.

Averages and bands are those of the tables (tidy.py). A point is drawn once all its runs are
finished.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from ogkd.bench.figures import style
from ogkd.bench.figures.style import Drawn, shown
from ogkd.bench.tidy import Condition, Summary, measured
from ogkd.errors import ConfigError, pluralize

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ogkd.bench.figures import FigureInput

_TICKS = 6  # labels that fit below a small panel
_AXES = {
    "shots": "Shots per class",
    "gamma": "Geometry strength γ",
    "budget": "Prompts per class of the teacher, N",
    "flips": "Wrong labels per class",
}


class Panel(NamedTuple):
    title: str
    part: str
    conditions: Sequence[Condition]
    datasets: Sequence[str]


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
    panels = [Panel(title, "test", summary.conditions, group) for title, group in groups.items()]
    yield "few-shot-average" if average else "few-shot", _draw(panels, given, "shots")


def sweep(given: FigureInput) -> Drawn:
    """Accuracy against the swept setting, averaged over datasets.

    Few-shot: a panel for each number of shots. Base-to-novel: base, novel and HM of averages.
    """
    summary, swept = given.accuracy, given.plan.sweep
    if swept is None:
        raise ConfigError(f"It needs a plan that sweeps a setting; '{given.plan.name}' does not.")
    titles = {"test": "", "base": "Base", "novel": "Novel", "hm": "HM of averages"}
    panels = []
    for shots, group in itertools.groupby(summary.conditions, key=lambda other: other.shots):
        conditions = list(group)
        words = f"{shots} shot{'s' * (shots > 1)}" if shots else "all images"
        for part, title in titles.items():
            name = ", ".join(filter(None, [title, words]))
            panels.append(Panel(name, part, conditions, summary.datasets))
    yield f"sweep-{style.file_stem(swept)}", _draw(panels, given, swept)


def points_of(summary: Summary, panel: Panel, axis: str) -> tuple[pd.DataFrame, int]:
    """The points of a panel in percent, and how many are left out: their runs are not finished.

    Columns: label, x (NaN: it does not vary along the axis), mean, std (NaN for one seed).
    """
    points, unfinished = [], 0
    for label, condition in itertools.product(summary.labels, panel.conditions):
        if (label, condition) not in summary.planned:
            continue
        average = summary.average(label, condition, panel.part, panel.datasets)
        if average is not None and average.complete:
            x = _position(condition, axis)
            points.append((label, x, 100 * average.value, 100 * average.std))
        unfinished += average is None or not average.complete
    frame = pd.DataFrame(points, columns=["label", "x", "mean", "std"]).astype({"x": float})
    if (twice := frame.duplicated(["label", "x"])).any():
        label = frame["label"][twice].iloc[0]
        raise ConfigError(f"'{label}' has runs under several conditions with one {axis}.")
    return frame, unfinished


def _position(condition: Condition, axis: str) -> float | None:
    value = {"shots": condition.shots, "flips": condition.flips}.get(axis, condition.value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"A curve needs numbers along its axis, but {axis} is '{value}'.")
    return None if value is None else float(value)


def _draw(panels: Sequence[Panel], given: FigureInput, axis: str) -> Figure:
    """Draw the panels with one legend."""
    summary, pair = given.accuracy, given.pair or ()
    planned = [panel for panel in panels if {*measured(panel.part)} <= {*summary.parts}]
    points, unfinished = zip(*(points_of(summary, panel, axis) for panel in planned), strict=True)
    if len({x for frame in points for x in frame["x"].dropna()}) < 2:
        raise ConfigError(f"A curve needs finished runs at two values of {axis}.")
    look = style.looks(summary.labels, pair)
    bands = pair or summary.labels  # of many curves they would hide each other
    handles: dict[str, Artist] = {}
    figure, axes = style.grid(
        len(planned),
        _AXES.get(axis, axis),
        summary.metric.heading,
        height=1.75 if len(planned) > 1 else 2.1,
    )
    for ax, panel, frame in zip(axes, planned, points, strict=True):
        _draw_panel(ax, frame, look, handles, bands)
        _ticks(ax, frame, logarithmic=axis == "shots")
        ax.set_title(shown(panel.title, 36), loc="left")
    style.legend_below(figure, handles)
    seeds = pluralize(len({run.spec.seed for _, run in given.runs}), "seed")
    bars = "; band: ± std over seeds" if seeds != "1 seed" else ""
    missing = sum(unfinished)
    words = f"Not finished, left out: {pluralize(missing, 'point')}" if missing else ""
    style.header(figure, f"Mean of {seeds}{bars}", words)
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
        colour, mean, std = look[label]["color"], curve["mean"], curve["std"]
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
