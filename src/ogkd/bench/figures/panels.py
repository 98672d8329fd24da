"""Small multiples of curves: bands, gains, one legend outside the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.figures import style
from ogkd.bench.figures.inputs import FigureInput
from ogkd.bench.figures.style import Look, header, shown
from ogkd.bench.runs import LabelledRuns

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BANDS = 5  # with more curves than this, only the pair has bands
_IN_CELL = 12  # lines of a legend that fit into the place of a panel


@dataclass(frozen=True)
class Curve:
    """Averages and their spread (NaN for one seed) along an axis."""

    label: str
    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    flat: bool = False  # does not vary along the axis: one value, drawn as a level


@dataclass(frozen=True)
class Panel:
    """One set of axes with several curves."""

    title: str
    curves: tuple[Curve, ...]
    datasets: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # datasets that lack runs, points that lack datasets


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
    grid = figure.add_gridspec(rows * len(ratios), columns, height_ratios=ratios * rows)
    bands = set(labels) if len(labels) <= _BANDS else set(given.pair or ())
    limits = _gain_limits(panels, pair) if pair else (0.0, 0.0)
    handles: dict[str, Artist] = {}
    y_name = given.accuracy.metric.heading
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
    difference = f"Δ = {pair[0]} − {pair[1]}, in points" if pair else ""
    header(figure, _averaged_over(panels, given.runs, bands), difference, *_missing(panels))
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
    words = _range([len(mine) for mine in seeds.values()], "seed")
    if any(len(mine) > 1 for mine in seeds.values()):
        some = "" if len(bands) == len(seeds) else f" of {' and '.join(sorted(bands))}"
        words += f"; band{some}: ± std over seeds"
    names = {panel.datasets for panel in panels}
    if any(len(mine) > 1 for mine in names):
        return f"Mean of {_range([len(mine) for mine in names], 'dataset')}, {words}"
    return f"{next(iter(names))[0]}: mean of {words}" if len(names) == 1 else f"Mean of {words}"


def _range(counts: Sequence[int], noun: str) -> str:
    low, high = min(counts), max(counts)
    return f"{low} {noun}{'s' * (low > 1)}" if low == high else f"{low} to {high} {noun}s"


def _missing(panels: Sequence[Panel]) -> list[str]:
    left = dict.fromkeys(name for panel in panels for name in panel.left_out)
    return [f"Not finished, left out: {', '.join(left)}"] if left else []


def _panel(
    ax: Axes, panel: Panel, look: dict[str, Look], handles: dict[str, Artist], *, bands: set[str]
) -> None:
    moving = {curve.label for curve in panel.curves if not curve.flat}
    # The pair comes last, so that its curves are on top.
    for curve in sorted(panel.curves, key=lambda curve: look[curve.label].wide):
        mine = look[curve.label]
        if curve.flat:
            name = f"{curve.label} (preset)" if curve.label in moving else curve.label
            line = ax.axhline(curve.mean[0], color=mine.colour, linestyle="--", linewidth=0.9)
            handles.setdefault(shown(name), line)
            continue
        (line,) = ax.plot(
            curve.x, curve.mean, color=mine.colour, marker=mine.marker, linestyle=mine.dash,
            linewidth=mine.width, markeredgewidth=0,
        )  # fmt: skip
        handles.setdefault(shown(curve.label), line)
        if curve.label in bands and np.isfinite(curve.std).any():
            ax.fill_between(
                curve.x, curve.mean - curve.std, curve.mean + curve.std,
                color=mine.colour, alpha=0.15, linewidth=0,
            )  # fmt: skip
    ax.set_title(shown(panel.title, 36), loc="left")


def _ticks(ax: Axes, panel: Panel, *, shots: bool) -> None:
    from matplotlib.ticker import NullLocator

    places = sorted({float(x) for curve in panel.curves if not curve.flat for x in curve.x})
    if not places:
        return
    if shots:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_minor_locator(NullLocator())
    step = -(-len(places) // 6)  # at most six labels fit below a small panel
    ax.set_xticks(places[::step], [f"{place:g}" for place in places[::step]])


def _gain_limits(panels: Sequence[Panel], pair: tuple[str, str]) -> tuple[float, float]:
    """The limits of one scale for the gains of all panels, with room for the numbers."""
    everything = np.concatenate([[0.0], *(gain(panel.curves, pair)[1] for panel in panels)])
    low, top = float(everything.min()), float(everything.max())
    room = 0.5 * (top - low) or 1.0
    return low - (room if low < 0 else 0), top + (room if top > 0 or low == 0 else 0)


def _gain_strip(ax: Axes, panel: Panel, pair: tuple[str, str], limits: tuple[float, float]) -> None:
    """Draw Δ = A - B at each place as a bar with its number."""
    x, delta = gain(panel.curves, pair)
    wide = 0.6 * float(np.diff(x).min()) if len(x) > 1 else 1.0
    ax.bar(x, delta, width=wide, color=["#009E73" if d >= 0 else "#CC79A7" for d in delta])
    ax.axhline(0, color="#444444", linewidth=0.6)
    ax.set_ylim(*limits)
    ax.grid(False)
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)
    for place, value in zip(x, delta, strict=True):
        ax.annotate(
            f"{value:+.1f}".replace("-", "−"), (place, value), xytext=(0, 1 if value >= 0 else -1),
            textcoords="offset points", ha="center", va="bottom" if value >= 0 else "top",
            fontsize=6.5,
        )  # fmt: skip


def gain(
    curves: Sequence[Curve], pair: tuple[str, str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The places where both methods have a point, and Δ = A - B there."""
    first, second = (
        {float(x): float(y) for c in curves if c.label == name and not c.flat
         for x, y in zip(c.x, c.mean, strict=True)}
        for name in pair
    )  # fmt: skip
    places = sorted(set(first) & set(second))
    return np.array(places), np.array([first[x] - second[x] for x in places])
