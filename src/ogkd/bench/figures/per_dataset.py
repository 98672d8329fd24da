"""Figures of single datasets: the predictions of two methods, and the class graph W."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ogkd.bench import analysis
from ogkd.bench.figures import style
from ogkd.bench.figures.inputs import FigureInput, PairedPredictions, paired
from ogkd.bench.figures.style import Drawn, Floats, Look, header, shown
from ogkd.bench.tidy import spread
from ogkd.errors import ConfigError
from ogkd.evaluation.confidence import aurc, risk_coverage
from ogkd.evaluation.names import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WRITTEN = 14  # classes up to which every weight is written into its square
_POINTS = 400  # of a line; more would not be visible
_NEIGHBOURS = 3  # the paper's k
_FEWEST = 10  # values of which a density is drawn; of fewer it would be a shape of its kernel
_OTHERS = 4  # methods beside the pair in a panel of risk curves
_RUG = 60  # up to this many values are also drawn one by one, below their density
_AURC = METRICS["aurc"]


def risk_curves(given: FigureInput) -> Drawn:
    """Risk (the error rate among the images kept) against coverage (Fig. 2), for each dataset.

    The most confident images are kept first. Confidence is the largest probability; images of
    equal confidence count by expectation. AURC is the mean risk over coverages 1/N..1.
    """
    from matplotlib.lines import Line2D

    pair = given.both
    pairs = paired(given.runs, pair)
    others, left_out = _others(given, pairs)
    labels = [*pair, *others]
    columns = style.columns_for(len(pairs))
    rows = -(-len(pairs) // columns)
    listed = 0.14 * len(labels)  # inches of the AURC of each method, above a panel
    figure = style.new_figure(min(style.PAGE, 2.6 * columns), 0.5 + (1.9 + listed) * rows)
    look = style.looks(labels, pair)
    for number, panel in enumerate(pairs):
        ax = figure.add_subplot(rows, columns, number + 1)
        more = {
            label: by_name[panel.name] for label, by_name in others.items() if panel.name in by_name
        }
        _panel(ax, panel, {pair[0]: (panel, panel.a), pair[1]: (panel, panel.b), **more}, look)
        if number % columns == 0:
            ax.set_ylabel("Risk (% wrong)")
        if number // columns == rows - 1:  # a label higher up would make its row lower
            ax.set_xlabel("Coverage (% kept)")
    lines = [Line2D([], [], color=look[label].colour) for label in labels]
    names = [shown(label) for label in labels]
    figure.legend(lines, names, loc="outside lower center", ncols=min(3, len(labels)))
    several = max(panel.seeds for panel in pairs) > 1
    header(
        figure,
        "Most confident images first; a lower curve and AURC are better"
        + ("; mean over seeds, band and ± are the std over seeds" if several else "; one seed"),
        f"{left_out} methods with a higher AURC are not drawn" if left_out else "",
    )
    yield "risk-coverage", figure


Shown = tuple[PairedPredictions, Floats]  # one method's probabilities, and what they belong to


def _others(
    given: FigureInput, pairs: Sequence[PairedPredictions]
) -> tuple[dict[str, dict[str, Shown]], int]:
    """Further methods by label and panel, those with the lowest AURC; how many are left out.

    They are compared with the first of the pair, on its images and at its shots.
    """
    first, _ = pair = given.both
    titles = {panel.title for panel in pairs}
    panels: dict[str, dict[str, Shown]] = {}
    labels = () if given.pair_only else dict.fromkeys(label for label, _ in given.runs)
    for label in (label for label in labels if label not in pair):
        with suppress(ConfigError):  # no run like those of the pair
            same = [panel for panel in paired(given.runs, (first, label)) if panel.title in titles]
            if same:
                panels[label] = {panel.name: (panel, panel.b) for panel in same}

    def area(label: str) -> float:
        return float(np.mean([aurc(panel.y, p) for panel, p in panels[label].values()]))

    best = sorted(panels, key=area)[:_OTHERS]
    kept = {label: panels[label] for label in panels if label in best}
    return kept, len(panels) - len(best)


def _panel(
    ax: Axes, panel: PairedPredictions, methods: Mapping[str, Shown], look: dict[str, Look]
) -> None:
    from matplotlib.ticker import MaxNLocator

    for label, (images, p) in reversed(list(methods.items())):
        numbers = np.unique(images.run)
        chosen = [images.run == number for number in numbers]
        areas = [aurc(images.y[rows], p[rows]) for rows in chosen]
        x, mean, std = mean_curve([risk_coverage(images.y[rows], p[rows]) for rows in chosen])
        name = _AURC.text(float(np.mean(areas)))
        name += f" ± {_AURC.text(spread(areas))}" if len(areas) > 1 else ""
        ax.plot(100 * x, 100 * mean, color=look[label].colour, label=name)
        if len(areas) > 1:
            style.band(ax, 100 * x, 100 * mean, 100 * std, look[label].colour)
    ax.set_xlim(0, 100)
    ax.set_ylim(0, max(1.0, ax.get_ylim()[1]))  # do not magnify zero if nothing is wrong
    ax.set_xticks([0, 25, 50, 75, 100])
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    title = f"{shown(panel.title, 30)}\n{_AURC.heading}"
    small = {"fontsize": 7, "title_fontsize": 7, "handlelength": 1.0, "labelspacing": 0.3}
    style.legend_above(ax, title, reverse=True, **small)


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
        done.add(run.spec.dataset)
        title = run.spec.dataset if part == "test" else f"{run.spec.dataset} ({part})"
        yield f"graph-{style.file_stem(run.spec.dataset)}", _heatmap(W, classes, title)


def _heatmap(W: Floats, classes: tuple[str, ...], title: str) -> Figure:
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


@dataclass(frozen=True)
class _Sample:
    """One panel: the same quantity of the same images, as predicted by A and by B."""

    title: str
    x_name: str
    values: tuple[Floats, ...]  # by A, by B
    bounds: tuple[float, float] | None = None


def wins_and_losses(given: FigureInput, *, losses: bool) -> Drawn:
    """Margins and neighbour mass where A is right and B wrong (Fig. wins-kde); losses: reversed.

    On wins A's margin is positive and B's is not, because the images were chosen so: the figure
    shows by how much, and is fair only beside the losses.
    """
    better, worse = reversed(given.both) if losses else given.both

    def samples(images: PairedPredictions) -> tuple[list[_Sample], str]:
        right, wrong = (images.b, images.a) if losses else (images.a, images.b)
        chosen = analysis.wins(right, wrong, images.y)
        y, both = images.y[chosen], (images.a[chosen], images.b[chosen])
        k = min(_NEIGHBOURS, len(images.W) - 1)
        which = f"p of the {k} nearest classes in W"
        if k == len(images.W) - 1:
            which = f"p of all {k} other classes, 1 − p(y)"
        apart = tuple(analysis.margins(p, y) for p in both)
        near = tuple(analysis.neighbour_mass(p, y, images.W, k=k) for p in both)
        panels = [
            _Sample("Margin", "z(y) − max z(j), j ≠ y", apart),
            _Sample("Neighbour mass", which, near, bounds=(0.0, 1.0)),
        ]
        words = f"{shown(better)} right, {shown(worse)} wrong; n = {len(y)}"
        return (panels if len(y) else []), words

    problem = f"There is no image on which '{better}' is right and '{worse}' wrong."
    return _densities(given, "losses" if losses else "wins", samples, problem)


def disease(given: FigureInput, *, without_truth: bool) -> Drawn:
    """Probability of disease on diseased images that both get wrong, and on normal images.

    `without_truth` leaves the true class out of the sum (see analysis.disease_mass).
    """
    what = "p of all diseases" + (" but the true one" if without_truth else "")

    def samples(images: PairedPredictions) -> tuple[list[_Sample], str]:
        if not images.normal or len(images.normal) == images.a.shape[1]:
            return [], ""
        healthy = np.isin(images.y, images.normal)
        missed = analysis.both_wrong(images.a, images.b, images.y) & ~healthy
        panels = []
        for name, rows in (("Both wrong on a disease", missed), ("Normal images", healthy)):
            out = images.y[rows] if without_truth else None
            both = images.a[rows], images.b[rows]
            mass = tuple(analysis.disease_mass(p, images.normal, without=out) for p in both)
            panels.append(_Sample(f"{name} (n = {rows.sum()})", what, mass, bounds=(0.0, 1.0)))
        return panels, ""

    problem = "No dataset has both normal classes and classes of disease."
    stem = f"disease-mass{'-other' * without_truth}"
    return _densities(given, stem, samples, problem)


def _densities(
    given: FigureInput,
    stem: str,
    samples_of: Callable[[PairedPredictions], tuple[list[_Sample], str]],
    problem: str,
) -> Drawn:
    """A figure for each dataset that has samples; `problem` if none has."""
    empty = True
    for images in paired(given.runs, given.both):
        samples, what = samples_of(images)
        if not samples:
            continue
        empty = False
        figure = style.new_figure(6.0, 2.7)
        rugs = min(len(sample.values[0]) for sample in samples) <= _RUG
        for number, sample in enumerate(samples):
            ax = figure.add_subplot(1, len(samples), number + 1)
            _density_panel(ax, sample, given.both, rugs=rugs)
            if number == 0:
                ax.set_ylabel("Density")
        pooled = f"{images.seeds} seeds pooled" if images.seeds > 1 else "one seed"
        words = [shown(images.title, 60), what, pooled]
        header(figure, "; ".join(filter(None, words)))
        yield f"{stem}-{style.file_stem(images.name)}", figure
    if empty:
        raise ConfigError(problem)


def _density_panel(ax: Axes, sample: _Sample, pair: tuple[str, str], *, rugs: bool) -> None:
    if sample.bounds is not None:
        grid = np.linspace(*sample.bounds, 401)
    else:
        both = np.concatenate(sample.values)
        low, high = float(both.min()), float(both.max())
        room = 0.15 * (high - low) or 1.0
        grid = np.linspace(low - room, high + room, 401)
    look = style.looks(pair, pair)
    for row, (label, values) in enumerate(zip(pair, sample.values, strict=True)):
        colour = look[label].colour
        total = f"Σ = {values.sum():.1f}" + (f", mean {values.mean():.2f}" if len(values) else "")
        name = f"{shown(label, 20)}: {total.replace('-', '−')}"
        heights = None
        if len(values) >= _FEWEST:
            heights = analysis.density(values, grid, bounds=sample.bounds)
        if heights is not None:
            ax.plot(grid, heights, color=colour, label=name)
            ax.fill_between(grid, heights, color=colour, alpha=0.12, linewidth=0)
        else:
            ax.plot([], [], color=colour, label=name)
            height = np.full(len(values), 0.5 - 0.2 * row)  # the values themselves instead
            transform = ax.get_xaxis_transform()
            ax.plot(values, height, "o", color=colour, alpha=0.6, transform=transform)
            if not ax.texts:
                why = f"n = {len(values)}: points, no density" if len(values) else "no such image"
                ax.text(0.5, 0.75, why, transform=ax.transAxes, ha="center", color="#666666")
        if heights is not None and len(values) <= _RUG:  # every value as a stroke below the axis
            ax.plot(
                values, np.full(len(values), -0.03 - 0.04 * row), "|", markersize=5, color=colour,
                transform=ax.get_xaxis_transform(), clip_on=False,
            )  # fmt: skip
    ax.locator_params(axis="x", nbins=6)
    ax.set_xlim(grid[0], grid[-1])
    ax.set_ylim(bottom=0)
    ax.set_xlabel(sample.x_name)
    ax.set_yticks([])
    ax.tick_params(axis="x", pad=9 if rugs else 3)  # equal in all panels: they stay aligned
    ax.spines["left"].set_visible(False)
    style.legend_above(ax, sample.title)
