"""Risk-coverage curves of two methods, one panel for each dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.figures.averages import Material, spread
from ogkd.bench.figures.pairing import Pair, paired
from ogkd.bench.figures.style import (
    PAGE,
    Drawn,
    Look,
    columns_for,
    header,
    looks,
    new_figure,
    shown,
)
from ogkd.errors import ConfigError
from ogkd.evaluation.confidence import aurc, risk_coverage

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["mean_curve", "risk_curves"]

_POINTS = 400  # of a line; more are not seen, only stored
Floats = NDArray[np.float64]


def risk_curves(material: Material) -> Drawn:
    """Risk (errors among the images kept) against coverage, most confident first (Fig. 2).

    Confidence is the largest probability; equal confidence counts by expectation. AURC is the
    mean risk over coverages 1/N..1, in percent, mean ± std over seeds.
    """
    from matplotlib.lines import Line2D

    pair = material.two
    pairs = [mine for mine in paired(material.runs, pair) if len(mine.y)]
    if not pairs:
        raise ConfigError("No image has probabilities that are numbers.")
    columns = columns_for(len(pairs))
    rows = -(-len(pairs) // columns)
    figure = new_figure(min(PAGE, 2.6 * columns), 0.5 + 2.15 * rows)
    look = looks(pair, pair)
    for number, mine in enumerate(pairs):
        ax = figure.add_subplot(rows, columns, number + 1)
        _panel(ax, mine, pair, look)
        if number % columns == 0:
            ax.set_ylabel("Risk (% wrong)")
        if number // columns == rows - 1:  # higher up it would make its row lower than others
            ax.set_xlabel("Coverage (% kept)")
    lines = [Line2D([], [], color=look[label].colour) for label in pair]
    names = [shown(label) for label in pair]
    figure.legend(lines, names, loc="outside lower center", ncols=len(pair))
    several = max(mine.seeds for mine in pairs) > 1
    dropped = sum(mine.dropped for mine in pairs)
    header(
        figure,
        "Most confident images first; a lower curve and AURC are better"
        + ("; mean over seeds, band and ± are the std" if several else "; one seed"),
        f"{dropped} predictions that are not numbers are left out" if dropped else "",
    )
    yield "risk-coverage", figure


def _panel(ax: Axes, mine: Pair, pair: tuple[str, str], look: dict[str, Look]) -> None:
    from matplotlib.ticker import MaxNLocator

    for label, p in reversed(list(zip(pair, (mine.a, mine.b), strict=True))):
        numbers = np.unique(mine.run)
        chosen = [mine.run == number for number in numbers]
        areas = [100 * aurc(mine.y[rows], p[rows]) for rows in chosen]
        x, mean, std = mean_curve([risk_coverage(mine.y[rows], p[rows]) for rows in chosen])
        deviation = f" ± {spread(areas):.1f}" if len(areas) > 1 else ""
        ax.plot(
            100 * x, 100 * mean, color=look[label].colour,
            label=f"{np.mean(areas):.1f}{deviation}",
        )  # fmt: skip
        if len(areas) > 1:
            ax.fill_between(
                100 * x, 100 * (mean - std), 100 * (mean + std),
                color=look[label].colour, alpha=0.15, linewidth=0,
            )  # fmt: skip
    ax.set_xlim(0, 100)
    ax.set_ylim(0, max(1.0, ax.get_ylim()[1]))  # no magnified zero where nothing is wrong
    ax.set_xticks([0, 25, 50, 75, 100])
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.legend(
        title=f"{shown(mine.title, 30)}\nAURC, %", alignment="left", loc="lower left",
        bbox_to_anchor=(0, 1), borderaxespad=0.2, borderpad=0, reverse=True,
        fontsize=7, title_fontsize=7, handlelength=1.0, labelspacing=0.3,
    )  # fmt: skip


def mean_curve(curves: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Floats]:
    """Mean and std of risk-coverage curves at common coverages, thinned for drawing."""
    longest = max((coverage for coverage, _ in curves), key=len)
    kept = np.unique(np.linspace(0, len(longest) - 1, _POINTS).round().astype(int))
    x = longest[kept]
    risks = np.array([np.interp(x, coverage, risk) for coverage, risk in curves])
    return x, risks.mean(axis=0), risks.std(axis=0)
