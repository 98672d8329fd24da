"""Accuracy along an axis (shots, prompts of the teacher, gamma, wrong labels) in small panels.

Averages and bands are those of the tables (tidy.py); here it is decided which datasets and points
a panel shows, and how it is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from ogkd.bench.figures import style
from ogkd.bench.figures.style import Drawn, shown
from ogkd.bench.tidy import Condition, Summary, average_and_spread
from ogkd.errors import ConfigError, pluralize

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ogkd.bench.figures import FigureInput

_BANDS = 5  # with more curves than this, only the pair has bands
_TICKS = 6  # labels that fit below a small panel
_AXES = {
    "gamma": "Geometry strength γ",
    "budget": "Prompts per class of the teacher, N",
    "flips": "Wrong labels per class",
}


@dataclass(frozen=True)
class Panel:
    title: str
    points: pd.DataFrame
    """label, x (NaN: it does not vary along the axis), mean, std (NaN for one seed)"""
    left_out: tuple[str, ...] = ()  # datasets that lack runs


def few_shot(given: FigureInput, *, average: bool) -> Drawn:
    """Accuracy against shots: a panel for each dataset, or one of their average."""
    plan, summary = given.plan, given.accuracy
    if plan.sweep is not None:
        raise ConfigError(
            f"It needs runs that differ only in shots, but '{plan.name}' sweeps {plan.sweep}."
        )
    groups = {"": summary.datasets} if average and len(summary.datasets) > 1 else {}
    groups = groups or {name: [name] for name in summary.datasets}
    panels = [
        panel_of(summary, title, "test", summary.conditions, "shots", names)
        for title, names in groups.items()
    ]
    stem = "few-shot-average" if average else "few-shot"
    yield stem, _draw(panels, given, "shots", "Shots per class")


def sweep(given: FigureInput, *, stem: str, axis: str | None) -> Drawn:
    """Accuracy against the swept setting, averaged over datasets.

    Few-shot: a panel for each number of shots. Base-to-novel: base, novel and HM of averages.
    """
    summary, swept = given.accuracy, given.plan.sweep
    if swept is None or (swept != axis if axis else swept in _AXES):
        needed = axis or f"a setting other than {', '.join(_AXES)}"
        raise ConfigError(f"It needs a plan that sweeps {needed}, not {swept or 'nothing'}.")
    titles = {"test": "", "base": "Base, ", "novel": "Novel, ", "hm": "HM of averages, "}
    panels = []
    for shots, group in itertools.groupby(summary.conditions, key=lambda other: other.shots):
        conditions = list(group)
        words = f"{shots} shot{'s' * (shots > 1)}" if shots else "all images"
        for part, title in titles.items():
            panels.append(panel_of(summary, title + words, part, conditions, swept))
    yield stem, _draw(panels, given, swept, _AXES.get(swept, swept))


def panel_of(
    summary: Summary,
    title: str,
    part: str,
    conditions: Sequence[Condition],
    axis: str,
    datasets: Sequence[str] | None = None,
) -> Panel:
    """Curves averaged over the datasets that have every point of every curve, in percent."""
    scores: dict[tuple[str, float | None], pd.DataFrame] = {}
    for label, condition in itertools.product(summary.labels, conditions):
        rows = summary.scores(label, condition, part, datasets)
        if rows.empty:
            continue
        key = (label, _position(condition, axis))
        if key in scores:
            raise ConfigError(f"'{label}' has runs under several conditions with one {axis}.")
        scores[key] = rows
    names = [set(rows.index.unique("dataset")) for rows in scores.values()]
    kept = set.intersection(*names) if names else set()
    points = [
        (label, x, *average_and_spread(part, 100 * rows[rows.index.isin(kept, "dataset")]))
        for (label, x), rows in scores.items()
        if kept
    ]
    frame = pd.DataFrame(points, columns=["label", "x", "mean", "std"]).astype({"x": float})
    return Panel(title, frame, tuple(sorted(set().union(*names) - kept)))


def _position(condition: Condition, axis: str) -> float | None:
    value = {"shots": condition.shots, "flips": condition.flips}.get(axis, condition.value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"A curve needs numbers along its axis, but {axis} is '{value}'.")
    return None if value is None else float(value)


def _draw(panels: Sequence[Panel], given: FigureInput, axis: str, x_name: str) -> Figure:
    """Draw the panels with one legend."""
    panels = [panel for panel in panels if len(panel.points)]
    if len({x for panel in panels for x in panel.points["x"].dropna()}) < 2:
        raise ConfigError(f"A curve needs two values of {axis} at which all methods have runs.")
    labels = given.accuracy.labels
    look = style.looks(labels, given.pair or ())
    bands = labels if len(labels) <= _BANDS else given.pair or ()
    handles: dict[str, Artist] = {}
    height = 1.75 if len(panels) > 1 else 2.1
    figure, axes = style.grid(len(panels), x_name, given.accuracy.metric.heading, height=height)
    for ax, panel in zip(axes, panels, strict=True):
        _draw_panel(ax, panel, look, handles, bands)
        _ticks(ax, panel, logarithmic=axis == "shots")
    style.legend_below(figure, handles)
    seeds = pluralize(len({run.spec.seed for _, run in given.runs}), "seed")
    bars = "; band: ± std over seeds" if seeds != "1 seed" else ""
    left_out = ", ".join(dict.fromkeys(name for panel in panels for name in panel.left_out))
    words = f"Not finished, left out: {left_out}" if left_out else ""
    style.header(figure, f"Mean of {seeds}{bars}", words)
    return figure


def _draw_panel(
    ax: Axes,
    panel: Panel,
    look: Mapping[str, dict[str, Any]],
    handles: dict[str, Artist],
    bands: Sequence[str],
) -> None:
    moving = set(panel.points.dropna(subset="x")["label"])
    curves = panel.points.groupby(["label", panel.points["x"].isna()], sort=False)
    # The pair comes last, so that its curves are on top.
    for (label, flat), curve in sorted(curves, key=lambda item: look[item[0][0]]["linewidth"]):
        colour, mean, std = look[label]["color"], curve["mean"], curve["std"]
        if flat:  # it does not vary along the axis: a level
            name = f"{label} (preset)" if label in moving else label
            line = ax.axhline(mean.iloc[0], color=colour, linestyle="--", linewidth=0.9)
            handles.setdefault(shown(name), line)
            continue
        (line,) = ax.plot(curve["x"], mean, markeredgewidth=0, **look[label])
        handles.setdefault(shown(label), line)
        if label in bands and std.notna().any():
            style.band(ax, curve["x"], mean, std, colour)
    ax.set_title(shown(panel.title, 36), loc="left")


def _ticks(ax: Axes, panel: Panel, *, logarithmic: bool) -> None:
    if logarithmic:
        ax.set_xscale("log", base=2)
        ax.minorticks_off()
    positions = sorted(panel.points["x"].dropna().unique())
    positions = positions[:: -(-len(positions) // _TICKS) or 1]
    ax.set_xticks(positions, [f"{x:g}" for x in positions])
