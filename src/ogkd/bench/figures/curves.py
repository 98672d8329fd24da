"""Accuracy along an axis (shots, prompts of the teacher, gamma, wrong labels) in small panels.

Averages and bands are those of the tables (tidy.py); here it is decided which datasets and points
a panel shows, and how it is drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ogkd.bench.figures import style
from ogkd.bench.figures.inputs import FigureInput
from ogkd.bench.figures.style import Drawn, Look, header, shown
from ogkd.bench.runs import LabelledRuns, Plan
from ogkd.bench.tidy import Condition, Summary, average_and_spread
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BANDS = 5  # with more curves than this, only the pair has bands
_IN_CELL = 12  # lines of a legend that fit into the place of a panel
Values = Mapping[tuple[str, float | None], pd.DataFrame]
"""(label, position on the axis; None: the row does not vary along it) -> datasets x seeds."""

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
    left_out: tuple[str, ...] = ()  # datasets that lack runs, points that lack datasets

    @property
    def positions(self) -> list[float]:
        return sorted(self.points["x"].dropna().unique())


def few_shot(given: FigureInput, *, average: bool) -> Drawn:
    """Accuracy against shots: a panel for each dataset, or one of their average."""
    plan = given.plan
    if plan.sweep is not None:
        raise ConfigError(
            f"It needs runs that differ only in shots, but '{plan.name}' sweeps {plan.sweep}."
        )
    values = _values(given.accuracy, given.accuracy.conditions, "shots", "test")
    _need_two({x for _, x in values if x is not None}, "shots")
    names = dict.fromkeys(name for scores in values.values() for name in scores.index)
    panels = [panel_of("", "test", values)] if average else []
    for name in names if not average else ():
        single = {key: scores.loc[[name]] for key, scores in values.items() if name in scores.index}
        panels.append(panel_of(name, "test", single))
    stem = "few-shot-average" if average else "few-shot"
    yield stem, draw_panels(_drawable(panels), given, "Shots per class", shots=True)


def sweep(given: FigureInput, *, stem: str, axis: str | None) -> Drawn:
    """Accuracy against the swept setting, averaged over datasets.

    Few-shot: a panel for each number of shots. Base-to-novel: base, novel and HM of averages.
    """
    swept = _axis(given.plan, axis)
    summary = given.accuracy
    panels: list[Panel] = []
    for shots, group in itertools.groupby(
        summary.conditions, key=lambda condition: condition.shots
    ):
        conditions = list(group)
        words = f"{shots} shot{'s' * (shots > 1)}" if shots else "all images"
        parts = {part for condition in conditions for part in summary.parts(condition)}
        values = {part: _values(summary, conditions, swept, part) for part in parts}
        if "test" in parts:
            panels.append(panel_of(words, "test", values["test"]))
        if "base" in parts:
            both = values["base"], values["novel"]
            panels.append(panel_of(f"Base, {words}", "base", both[0]))
            panels.append(panel_of(f"Novel, {words}", "novel", both[1]))
            panels.append(panel_of(f"HM of averages, {words}", "hm", *both))
    panels = _drawable(panels)
    _need_two({x for panel in panels for x in panel.positions}, swept)
    yield stem, draw_panels(panels, given, _AXES.get(swept, swept), gains=swept == "budget")


def panel_of(title: str, part: str, *tables: Values) -> Panel:
    """Curves averaged over the datasets that have every point of every curve.

    `tables` is one, or those of base and novel classes for the part "hm". In an unfinished plan,
    a point with less than half as many datasets as the fullest point is left out first.
    """
    common = [key for key in tables[0] if all(key in table for table in tables)]
    names = {key: set.intersection(*(set(table[key].index) for table in tables)) for key in common}
    everything = set().union(*names.values())
    fullest = max(map(len, names.values()), default=0)
    drawn = [key for key in common if 2 * len(names[key]) >= fullest]
    kept = sorted(everything.intersection(*(names[key] for key in drawn)))
    missing = sorted(everything.difference(kept))
    missing += [
        f"{label} at {x:g}" for label, x in common if x is not None and (label, x) not in drawn
    ]
    order = list(dict.fromkeys(label for label, _ in drawn))
    points = [
        (label, x, *average_and_spread(part, [table[label, x].loc[kept] for table in tables]))
        for label, x in sorted(drawn, key=lambda key: (order.index(key[0]), key[1] is None, key[1]))
        if kept
    ]
    frame = pd.DataFrame(points, columns=["label", "x", "mean", "std"])
    return Panel(title, frame.astype({"x": float}), tuple(kept), tuple(missing))


def _values(
    summary: Summary, conditions: Sequence[Condition], axis: str, part: str
) -> dict[tuple[str, float | None], pd.DataFrame]:
    """The finished scores of a part along an axis, in percent."""
    values: dict[tuple[str, float | None], pd.DataFrame] = {}
    for label, condition in itertools.product(summary.labels, conditions):
        (scores,) = summary.scores(label, condition, part)
        if not len(scores):
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


def _axis(plan: Plan, wanted: str | None) -> str:
    other = plan.sweep is not None and plan.sweep not in _AXES
    if plan.sweep is not None and (plan.sweep == wanted or (wanted is None and other)):
        return plan.sweep
    swept = f"sweeps {plan.sweep}" if plan.sweep else "sweeps nothing"
    needed = wanted or f"a setting other than {', '.join(_AXES)}"
    raise ConfigError(f"It needs a plan that sweeps {needed}, but '{plan.name}' {swept}.")


def _need_two(values: set[float], axis: str) -> None:
    if len(values) < 2:
        known = ", ".join(f"{x:g}" for x in values) or "none"
        raise ConfigError(f"A curve needs finished runs with two values of {axis}, not {known}.")


def _drawable(panels: Iterable[Panel]) -> list[Panel]:
    drawable = [panel for panel in panels if len(panel.points)]
    if not drawable:
        raise ConfigError("No dataset has finished runs at every point of every curve.")
    return drawable


def draw_panels(
    panels: Sequence[Panel],
    given: FigureInput,
    x_name: str,
    *,
    shots: bool = False,
    gains: bool = False,
) -> Figure:
    """Draw the panels; `shots`: a logarithmic axis; `gains`: Δ of the pair below each panel."""
    pair = given.pair if gains else None
    labels = list(dict.fromkeys(label for label, _ in given.runs))
    look = style.looks(labels, given.pair or ())
    columns = style.columns_for(len(panels))
    rows = -(-len(panels) // columns)
    width = style.COLUMN if len(panels) == 1 else min(style.PAGE, 2.5 * columns)
    height = 2.3 if pair else 2.1 if len(panels) == 1 else 1.75
    figure = style.new_figure(width, 0.6 + rows * height)
    ratios = [3.0, 1.0] if pair else [1.0]
    bands = set(labels) if len(labels) <= _BANDS else set(given.pair or ())
    limits = _gain_limits(panels, pair) if pair else (0.0, 0.0)
    handles: dict[str, Artist] = {}
    y_name = given.accuracy.metric.heading
    grid = figure.add_gridspec(rows * len(ratios), columns, height_ratios=ratios * rows)
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        ax = bottom = figure.add_subplot(grid[row * len(ratios), column])
        _panel(ax, panel, look, handles, bands=bands)
        if pair:
            bottom = figure.add_subplot(grid[row * len(ratios) + 1, column], sharex=ax)
            ax.tick_params(labelbottom=False)
            _gain_strip(bottom, panel, pair, limits)
        if column == 0:
            ax.set_ylabel(y_name)
            bottom.set_ylabel("Δ" if pair else y_name)
        if row == rows - 1:  # a label higher up would make its row lower than the others
            bottom.set_xlabel(x_name)
        _ticks(bottom, panel, shots=shots)
    free = rows * columns - len(panels)
    cell = figure.add_subplot(grid[-len(ratios), columns - free :]) if free else None
    _legend(figure, cell, handles, look)
    left_out = ", ".join(dict.fromkeys(name for panel in panels for name in panel.left_out))
    header(
        figure,
        _averaged_over(panels, given.runs, bands),
        f"Δ = {pair[0]} − {pair[1]}, in points" if pair else "",
        f"Not finished, left out: {left_out}" if left_out else "",
    )
    return figure


def _legend(
    figure: Figure, cell: Axes | None, handles: dict[str, Artist], look: dict[str, Look]
) -> None:
    """Draw the legend in the free cell if there is one, else below; the pair comes first."""
    order = {shown(label): number for number, label in enumerate(look)}
    names = sorted(handles, key=lambda name: order.get(name, len(order)))
    lines = [handles[name] for name in names]
    if cell is not None:
        cell.set_axis_off()
    if cell is not None and len(names) <= _IN_CELL:
        cell.legend(lines, names, loc="center left", borderaxespad=0, fontsize=7)
        return
    each = 0.4 + 0.06 * max(map(len, names))  # inches for one entry
    many = max(1, min(len(names), int(figure.get_figwidth() / each)))
    figure.set_figheight(figure.get_figheight() + 0.15 * -(-len(names) // many))
    figure.legend(lines, names, loc="outside lower center", ncols=many, columnspacing=1.2)


def _averaged_over(panels: Sequence[Panel], runs: LabelledRuns, bands: set[str]) -> str:
    seeds: dict[str, set[int]] = {}
    for label, run in runs:
        seeds.setdefault(label, set()).add(run.spec.seed)
    words = _range([len(group) for group in seeds.values()], "seed")
    if any(len(group) > 1 for group in seeds.values()):
        some = "" if len(bands) == len(seeds) else f" of {' and '.join(sorted(bands))}"
        words += f"; band{some}: ± std over seeds"
    names = {panel.datasets for panel in panels}
    if any(len(group) > 1 for group in names):
        return f"Mean of {_range([len(group) for group in names], 'dataset')}, {words}"
    return f"{next(iter(names))[0]}: mean of {words}" if len(names) == 1 else f"Mean of {words}"


def _range(counts: Sequence[int], noun: str) -> str:
    low, high = min(counts), max(counts)
    return f"{low} {noun}{'s' * (low > 1)}" if low == high else f"{low} to {high} {noun}s"


def _panel(
    ax: Axes, panel: Panel, look: dict[str, Look], handles: dict[str, Artist], *, bands: set[str]
) -> None:
    moving = set(panel.points.dropna(subset="x")["label"])
    curves = panel.points.groupby(["label", panel.points["x"].isna()], sort=False)
    # The pair comes last, so that its curves are on top.
    for (label, flat), curve in sorted(curves, key=lambda item: look[item[0][0]].width):
        drawn_as, mean, std = look[label], curve["mean"], curve["std"]
        if flat:  # it does not vary along the axis: a level
            name = f"{label} (preset)" if label in moving else label
            line = ax.axhline(mean.iloc[0], color=drawn_as.colour, linestyle="--", linewidth=0.9)
            handles.setdefault(shown(name), line)
            continue
        (line,) = ax.plot(
            curve["x"], mean, color=drawn_as.colour, marker=drawn_as.marker,
            linestyle=drawn_as.dash, linewidth=drawn_as.width, markeredgewidth=0,
        )  # fmt: skip
        handles.setdefault(shown(label), line)
        if label in bands and std.notna().any():
            style.band(ax, curve["x"], mean, std, drawn_as.colour)
    ax.set_title(shown(panel.title, 36), loc="left")


def _ticks(ax: Axes, panel: Panel, *, shots: bool) -> None:
    from matplotlib.ticker import NullLocator

    if not (positions := panel.positions):
        return
    if shots:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_minor_locator(NullLocator())
    step = -(-len(positions) // 6)  # at most six labels fit below a small panel
    ax.set_xticks(positions[::step], [f"{x:g}" for x in positions[::step]])


def _gain_limits(panels: Sequence[Panel], pair: tuple[str, str]) -> tuple[float, float]:
    """The limits of one scale for the gains of all panels, with room for the numbers."""
    everything = np.concatenate([[0.0], *(gain(panel, pair) for panel in panels)])
    low, top = float(everything.min()), float(everything.max())
    room = 0.5 * (top - low) or 1.0
    return low - (room if low < 0 else 0), top + (room if top > 0 or low == 0 else 0)


def _gain_strip(ax: Axes, panel: Panel, pair: tuple[str, str], limits: tuple[float, float]) -> None:
    """Draw Δ = A - B at each place as a bar with its number."""
    delta = gain(panel, pair)
    x = delta.index
    wide = 0.6 * float(np.diff(x).min()) if len(x) > 1 else 1.0
    ax.bar(x, delta, width=wide, color=["#009E73" if d >= 0 else "#CC79A7" for d in delta])
    ax.axhline(0, color="#444444", linewidth=0.6)
    ax.set_ylim(*limits)
    ax.grid(False)
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    for at, value in delta.items():
        ax.annotate(
            f"{value:+.1f}".replace("-", "−"), (at, value), xytext=(0, 1 if value >= 0 else -1),
            textcoords="offset points", ha="center", va="bottom" if value >= 0 else "top",
            fontsize=6.5,
        )  # fmt: skip


def gain(panel: Panel, pair: tuple[str, str]) -> pd.Series:
    """Δ = A - B where both methods have a point, by position."""
    points = panel.points.dropna(subset="x")
    both = points.pivot(index="x", columns="label", values="mean").reindex(columns=pair).dropna()
    return both[pair[0]] - both[pair[1]]
