"""Densities of two methods' predictions: margins, probability of neighbours and of disease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.analysis import (
    both_wrong,
    density,
    disease_mass,
    is_normal,
    margins,
    neighbour_mass,
    wins,
)
from ogkd.bench.figures.inputs import FigureInput, PairedPredictions, paired
from ogkd.bench.figures.style import Drawn, file_stem, header, looks, new_figure, shown
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NEIGHBOURS = 3  # the paper's k
_RUG = 60  # up to this many values are also drawn one by one, below their density
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Sample:
    """One panel: the same quantity of the same images, as predicted by A and by B."""

    title: str
    x_name: str
    values: tuple[Floats, Floats]  # by A, by B
    bounds: tuple[float, float] | None = None


def wins_and_losses(given: FigureInput, *, losses: bool) -> Drawn:
    """Margins and neighbour mass where A is right and B wrong (Fig. wins-kde); losses: reversed.

    On wins A's margin is positive and B's is not, because the images were chosen so: the figure
    shows by how much, and is fair only beside the losses.
    """
    pair = given.both
    better, worse = reversed(pair) if losses else pair
    empty = True
    for mine in paired(given.runs, pair):
        one, other = (mine.b, mine.a) if losses else (mine.a, mine.b)
        chosen = wins(one, other, mine.y)
        if not chosen.any():
            continue
        empty = False
        y, a, b = mine.y[chosen], mine.a[chosen], mine.b[chosen]
        k = min(_NEIGHBOURS, len(mine.W) - 1)
        which = f"p of the {k} nearest classes in W"
        if k == len(mine.W) - 1:
            which = f"p of all {k} other classes, 1 − p(y)"
        near = tuple(neighbour_mass(p, y, mine.W, k=k) for p in (a, b))
        samples = [
            _Sample("Margin", "z(y) − max z(j), j ≠ y", (margins(a, y), margins(b, y))),
            _Sample("Neighbour mass", which, (near[0], near[1]), bounds=(0.0, 1.0)),
        ]
        figure = _draw(samples, pair)
        _head(figure, mine, f"{shown(better)} right, {shown(worse)} wrong", int(chosen.sum()))
        yield f"{'losses' if losses else 'wins'}-{file_stem(mine.name)}", figure
    if empty:
        raise ConfigError(f"There is no image on which '{better}' is right and '{worse}' wrong.")


def disease(given: FigureInput, *, without_truth: bool) -> Drawn:
    """Probability of disease on diseased images that both get wrong, and on normal images.

    `without_truth` leaves the true class out of the sum (see analysis.disease_mass).
    """
    pair = given.both
    empty = True
    for mine in paired(given.runs, pair):
        healthy = is_normal(mine.y, mine.normal)
        if not mine.normal or len(mine.normal) == mine.a.shape[1] or not len(mine.y):
            continue
        missed = both_wrong(mine.a, mine.b, mine.y) & ~healthy
        what = "p of all diseases" + (" but the true one" if without_truth else "")
        samples = [
            _Sample(
                f"{name} (n = {rows.sum()})",
                what,
                _mass(mine, rows, without_truth=without_truth),
                bounds=(0.0, 1.0),
            )
            for name, rows in (
                ("Both wrong on a disease", missed),
                ("Normal images", healthy),
            )
        ]
        empty = False
        figure = _draw(samples, pair)
        _head(figure, mine, "", None)
        yield f"disease-mass{'-other' if without_truth else ''}-{file_stem(mine.name)}", figure
    if empty:
        raise ConfigError("No dataset has both normal classes and classes of disease.")


def _mass(
    mine: PairedPredictions, rows: NDArray[np.bool_], *, without_truth: bool
) -> tuple[Floats, Floats]:
    without = mine.y[rows] if without_truth else None
    a, b = (disease_mass(p[rows], mine.normal, without=without) for p in (mine.a, mine.b))
    return a, b


def _head(figure: Figure, mine: PairedPredictions, what: str, count: int | None) -> None:
    pooled = f"{mine.seeds} seeds pooled" if mine.seeds > 1 else "one seed"
    number = f"n = {count}" if count is not None else ""
    dropped = f"{mine.dropped} predictions that are not numbers left out" if mine.dropped else ""
    words = [shown(mine.title, 60), what, number, pooled, dropped]
    header(figure, "; ".join(word for word in words if word))


def _draw(samples: list[_Sample], pair: tuple[str, str]) -> Figure:
    figure = new_figure(6.0, 2.7)
    look = looks(pair, pair)
    rugs = min(len(sample.values[0]) for sample in samples) <= _RUG
    for number, sample in enumerate(samples):
        ax = figure.add_subplot(1, len(samples), number + 1)
        grid = _grid(sample)
        for row, (label, values) in enumerate(zip(pair, sample.values, strict=True)):
            _curve(ax, values, grid, sample.bounds, look[label].colour, shown(label, 20))
            if 0 < len(values) <= _RUG:
                _rug(ax, values, row, look[label].colour)
        ax.locator_params(axis="x", nbins=6)
        ax.set_xlim(grid[0], grid[-1])
        ax.set_ylim(bottom=0)
        ax.set_xlabel(sample.x_name)
        ax.set_yticks([])
        ax.tick_params(
            axis="x", pad=9 if rugs else 3
        )  # equal in all panels, so that they stay aligned
        ax.spines["left"].set_visible(False)
        if number == 0:
            ax.set_ylabel("Density")
        ax.legend(
            title=sample.title, alignment="left", loc="lower left", bbox_to_anchor=(0, 1),
            borderaxespad=0.2, borderpad=0,
        )  # fmt: skip
    return figure


def _rug(ax: Axes, values: Floats, row: int, colour: str) -> None:
    """Draw every value as a stroke below the axis."""
    ax.plot(
        values, np.full(len(values), -0.03 - 0.04 * row), "|", markersize=5, color=colour,
        transform=ax.get_xaxis_transform(), clip_on=False,
    )  # fmt: skip


def _grid(sample: _Sample) -> Floats:
    if sample.bounds is not None:
        return np.linspace(*sample.bounds, 401)
    both = np.concatenate(sample.values)
    low, high = float(both.min()), float(both.max())
    room = 0.15 * (high - low) or 1.0
    return np.linspace(low - room, high + room, 401)


def _curve(
    ax: Axes,
    values: Floats,
    grid: Floats,
    bounds: tuple[float, float] | None,
    colour: str,
    name: str,
) -> None:
    heights = density(values, grid, bounds=bounds)
    total = f"Σ = {values.sum():.1f}" + (f", mean {values.mean():.2f}" if len(values) else "")
    label = f"{name}: {total.replace('-', '−')}"
    if heights is None:
        ax.plot([], [], color=colour, label=label)
        why = "one value: no density" if len(values) else "no such image"
        if not ax.texts:
            ax.text(0.5, 0.5, why, transform=ax.transAxes, ha="center", color="#666666")
        return
    ax.plot(grid, heights, color=colour, label=label)
    ax.fill_between(grid, heights, color=colour, alpha=0.12, linewidth=0)
