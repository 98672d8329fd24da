"""Figures of single datasets: risk-coverage curves of two methods, and the class graph W."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.figures import style
from ogkd.bench.figures.inputs import FigureInput, PairedPredictions, paired
from ogkd.bench.figures.style import Drawn, Look, header, shown
from ogkd.bench.tidy import spread
from ogkd.errors import ConfigError
from ogkd.evaluation.confidence import aurc, risk_coverage
from ogkd.evaluation.names import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WRITTEN = 14  # classes up to which every weight is written into its square
_POINTS = 400  # of a line; more would not be visible
Floats = NDArray[np.float64]
_AURC = METRICS["aurc"]


def risk_curves(given: FigureInput) -> Drawn:
    """Risk (the error rate among the images kept) against coverage (Fig. 2), for each dataset.

    The most confident images are kept first. Confidence is the largest probability; images of
    equal confidence count by expectation. AURC is the mean risk over coverages 1/N..1.
    """
    from matplotlib.lines import Line2D

    pair = given.both
    pairs = [mine for mine in paired(given.runs, pair) if len(mine.y)]
    if not pairs:
        raise ConfigError("No prediction consists of finite probabilities.")
    columns = style.columns_for(len(pairs))
    rows = -(-len(pairs) // columns)
    figure = style.new_figure(min(style.PAGE, 2.6 * columns), 0.5 + 2.15 * rows)
    look = style.looks(pair, pair)
    for number, mine in enumerate(pairs):
        ax = figure.add_subplot(rows, columns, number + 1)
        _panel(ax, mine, pair, look)
        if number % columns == 0:
            ax.set_ylabel("Risk (% wrong)")
        if number // columns == rows - 1:  # a label higher up would make its row lower
            ax.set_xlabel("Coverage (% kept)")
    lines = [Line2D([], [], color=look[label].colour) for label in pair]
    names = [shown(label) for label in pair]
    figure.legend(lines, names, loc="outside lower center", ncols=len(pair))
    several = max(mine.seeds for mine in pairs) > 1
    dropped = sum(mine.dropped for mine in pairs)
    header(
        figure,
        "Most confident images first; a lower curve and AURC are better"
        + ("; mean over seeds, band and ± are the std over seeds" if several else "; one seed"),
        f"{dropped} predictions that are not numbers are left out" if dropped else "",
    )
    yield "risk-coverage", figure


def _panel(ax: Axes, mine: PairedPredictions, pair: tuple[str, str], look: dict[str, Look]) -> None:
    from matplotlib.ticker import MaxNLocator

    for label, p in reversed(list(zip(pair, (mine.a, mine.b), strict=True))):
        numbers = np.unique(mine.run)
        chosen = [mine.run == number for number in numbers]
        areas = [aurc(mine.y[rows], p[rows]) for rows in chosen]
        x, mean, std = mean_curve([risk_coverage(mine.y[rows], p[rows]) for rows in chosen])
        name = _AURC.text(float(np.mean(areas)))
        name += f" ± {_AURC.text(spread(areas))}" if len(areas) > 1 else ""
        ax.plot(100 * x, 100 * mean, color=look[label].colour, label=name)
        if len(areas) > 1:
            ax.fill_between(
                100 * x, 100 * (mean - std), 100 * (mean + std),
                color=look[label].colour, alpha=0.15, linewidth=0,
            )  # fmt: skip
    ax.set_xlim(0, 100)
    ax.set_ylim(0, max(1.0, ax.get_ylim()[1]))  # do not magnify zero if nothing is wrong
    ax.set_xticks([0, 25, 50, 75, 100])
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.legend(
        title=f"{shown(mine.title, 30)}\n{_AURC.heading}", alignment="left", loc="lower left",
        bbox_to_anchor=(0, 1), borderaxespad=0.2, borderpad=0, reverse=True,
        fontsize=7, title_fontsize=7, handlelength=1.0, labelspacing=0.3,
    )  # fmt: skip


def mean_curve(curves: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Floats]:
    """Mean and spread of risk-coverage curves at common coverages, thinned for drawing."""
    longest = max((coverage for coverage, _ in curves), key=len)
    kept = np.unique(np.linspace(0, len(longest) - 1, _POINTS).round().astype(int))
    x = longest[kept]
    risks = np.array([np.interp(x, coverage, risk) for coverage, risk in curves])
    return x, risks.mean(axis=0), risks.std(axis=0)


def class_graphs(given: FigureInput) -> Drawn:
    """W of each dataset, W_c: = softmax(α s_c:) (eq. 1-2): row c says how near others are to c.

    It is taken from the first finished run of method A; in base-to-novel it is that of the base
    classes, which are all that training sees (Alg. 1).
    """
    label = given.pair[0] if given.pair else given.runs[0][0]
    done = set()
    for name, run in given.runs:
        if name != label or run.spec.dataset in done:
            continue
        part = run.parts[0]
        W, classes = run.predictions(part).W.astype(np.float64), run.class_names(part)
        if not np.isfinite(W).all() or len(W) != len(classes):
            continue
        done.add(run.spec.dataset)
        title = run.spec.dataset if part == "test" else f"{run.spec.dataset} ({part})"
        yield f"graph-{style.file_stem(run.spec.dataset)}", _heatmap(W, classes, title)
    if not done:
        raise ConfigError(f"No finished run of '{label}' has a class graph.")


def _heatmap(W: np.ndarray, classes: tuple[str, ...], title: str) -> Figure:
    n = len(classes)
    side = max(2.6, min(7.0, 1.5 + (0.36 if n <= _WRITTEN else 0.16) * n))
    figure = style.new_figure(side + 1.2, side + 0.7)
    ax = figure.add_subplot()
    image = ax.imshow(W, cmap="Blues", vmin=0.0, vmax=float(W.max()))
    names = [textwrap.fill(shown(name, 40), 20) for name in classes]
    size = 7 if n <= 24 else 4.5
    ax.set_xticks(range(n), names, rotation=45, ha="right",
                  rotation_mode="anchor", fontsize=size)  # fmt: skip
    ax.set_yticks(range(n), names, fontsize=size)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if n <= _WRITTEN:
        for row, column in np.ndindex(n, n):
            dark = W[row, column] > 0.6 * W.max()
            ax.text(column, row, f"{W[row, column]:.2f}".removeprefix("0"), ha="center",
                    va="center", fontsize=6.5, color="white" if dark else "#222222")  # fmt: skip
    ax.set_ylabel("Class")
    ax.set_xlabel("Neighbour")
    bar = figure.colorbar(image, ax=ax, shrink=0.8, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label("Weight in W, rows sum to one")
    header(figure, f"Class graph W of {title}")
    return figure
