"""Accuracy along an axis (shots, prompts of the teacher, gamma, wrong labels) in small panels.

Averages and bands are those of the tables (tidy.py); here it is decided which datasets and points
a panel shows, and how it is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from ogkd.bench.figures import style
from ogkd.bench.figures.style import Drawn, header, shown
from ogkd.bench.tidy import Condition, Summary, average_and_spread
from ogkd.errors import ConfigError, pluralize

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ogkd.bench.figures import FigureInput

_BANDS = 5  # with more curves than this, only the pair has bands
_TICKS = 6  # labels that fit below a small panel
Values = Mapping[tuple[str, float | None], pd.DataFrame]
"""(label, position; None: the row does not vary along the axis) -> (part, dataset) x seed."""

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
    datasets: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # datasets that lack runs


def few_shot(given: FigureInput, *, average: bool) -> Drawn:
    """Accuracy against shots: a panel for each dataset, or one of their average."""
    plan, summary = given.plan, given.accuracy
    if plan.sweep is not None:
        raise ConfigError(
            f"It needs runs that differ only in shots, but '{plan.name}' sweeps {plan.sweep}."
        )
    values = _values(summary, summary.conditions, "shots", "test")
    title = "" if len(summary.datasets) > 1 else summary.datasets[0]
    panels = [panel_of(title, "test", values)] if average else []
    for name in summary.datasets if not average else ():
        single = {
            key: scores[scores.index.isin([name], "dataset")] for key, scores in values.items()
        }
        panels.append(panel_of(name, "test", {k: v for k, v in single.items() if len(v)}))
    stem = "few-shot-average" if average else "few-shot"
    yield stem, draw_panels(panels, given, "shots", "Shots per class")


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
            values = _values(summary, conditions, swept, part)
            if values:
                panels.append(panel_of(title + words, part, values))
    yield stem, draw_panels(panels, given, swept, _AXES.get(swept, swept))


def panel_of(title: str, part: str, values: Values) -> Panel:
    """Curves averaged over the datasets that have every point of every curve."""
    names = {key: set(scores.index.get_level_values("dataset")) for key, scores in values.items()}
    everything = set().union(*names.values())
    kept = sorted(everything.intersection(*names.values()))
    order = list(dict.fromkeys(label for label, _ in values))
    points = [
        (label, x, *average_and_spread(part, scores[scores.index.isin(kept, "dataset")]))
        for (label, x), scores in sorted(
            values.items(), key=lambda item: (order.index(item[0][0]), item[0][1] or 0.0)
        )
        if kept
    ]
    frame = pd.DataFrame(points, columns=["label", "x", "mean", "std"]).astype({"x": float})
    return Panel(title, frame, tuple(kept), tuple(sorted(everything.difference(kept))))


def gain(panel: Panel, pair: tuple[str, str]) -> pd.Series:
    """Δ = A - B where both methods have a point, by position."""
    points = panel.points.dropna(subset="x")
    both = points.pivot(index="x", columns="label", values="mean").reindex(columns=pair).dropna()
    return both[pair[0]] - both[pair[1]]


def _values(
    summary: Summary, conditions: Sequence[Condition], axis: str, part: str
) -> dict[tuple[str, float | None], pd.DataFrame]:
    """The finished scores of a part along an axis, in percent."""
    values: dict[tuple[str, float | None], pd.DataFrame] = {}
    for label, condition in itertools.product(summary.labels, conditions):
        scores = summary.scores(label, condition, part)
        if scores.empty:
            continue
        key = (label, _position(condition, axis))
        if key in values:
            raise ConfigError(
                f"'{label}' has runs under several conditions with {axis} = {key[1]}: make a grid "
                f"that varies {axis} only."
            )
        values[key] = summary.metric.scale * scores
    return values


def _position(condition: Condition, axis: str) -> float | None:
    value = {"shots": condition.shots, "flips": condition.flips}.get(axis, condition.value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"A curve needs numbers along its axis, but {axis} is '{value}'.")
    return None if value is None else float(value)


def draw_panels(panels: Iterable[Panel], given: FigureInput, axis: str, x_name: str) -> Figure:
    """Draw the panels with one legend; of budgets with the gain of the pair at each point."""
    panels = [panel for panel in panels if len(panel.points)]
    if len({x for panel in panels for x in panel.points["x"].dropna()}) < 2:
        raise ConfigError(
            f"A curve needs two values of {axis} at which every method has finished runs of a "
            "common dataset."
        )
    labels = list(dict.fromkeys(label for label, _ in given.runs))
    look = style.looks(labels, given.pair or ())
    bands = labels if len(labels) <= _BANDS else given.pair or ()
    handles: dict[str, Artist] = {}
    height = 1.75 if len(panels) > 1 else 2.1
    figure, axes = style.grid(len(panels), x_name, given.accuracy.metric.heading, height=height)
    for ax, panel in zip(axes, panels, strict=True):
        _draw_panel(ax, panel, look, handles, bands)
        _ticks(ax, panel, logarithmic=axis == "shots")
        if axis == "budget" and given.pair:
            _write_gains(ax, panel, given.pair)
    style.legend_below(figure, handles)
    header(figure, *_heading(panels, given, axis))
    return figure


def _heading(panels: Sequence[Panel], given: FigureInput, axis: str) -> Iterator[str]:
    """What is averaged, and what the numbers in the panels are."""
    most = max(len(panel.datasets) for panel in panels)
    seeds = pluralize(len({run.spec.seed for _, run in given.runs}), "seed")
    bars = "; band: ± std over seeds" if seeds != "1 seed" else ""
    yield f"Mean of {f'{most} datasets, ' if most > 1 else ''}{seeds}{bars}"
    if axis == "budget" and given.pair:
        yield f"Δ = {' − '.join(given.pair)}, in points"
    if left_out := dict.fromkeys(name for panel in panels for name in panel.left_out):
        yield f"Not finished, left out: {', '.join(left_out)}"


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
    from matplotlib.ticker import NullLocator

    if logarithmic:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_minor_locator(NullLocator())
    positions = sorted(panel.points["x"].dropna().unique())
    positions = positions[:: -(-len(positions) // _TICKS) or 1]
    ax.set_xticks(positions, [f"{x:g}" for x in positions])


def _write_gains(ax: Axes, panel: Panel, pair: tuple[str, str]) -> None:
    """Write Δ = A - B above each position."""
    ax.margins(y=0.2)
    for x, delta in gain(panel, pair).items():
        ax.annotate(
            f"{delta:+.1f}".replace("-", "−"), (x, 0.98), xycoords=("data", "axes fraction"),
            ha="center", va="top", fontsize=6.5,
        )  # fmt: skip
