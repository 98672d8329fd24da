"""Figures of single datasets: two methods image by image, and the class graph W.

Shapes: p [N, C] probabilities, y [N] labels, W [C, C].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ogkd.bench.compare import paired_runs
from ogkd.bench.figures import style
from ogkd.bench.figures.style import Drawn, Floats, shown
from ogkd.bench.runs import FinishedRun, LabelledRuns, RunSpec, same_images
from ogkd.bench.tidy import right, spread
from ogkd.errors import ConfigError
from ogkd.evaluation import plots
from ogkd.evaluation.confidence import aurc, risk_coverage
from ogkd.evaluation.names import METRICS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ogkd.bench.figures import FigureInput

Mask = NDArray[np.bool_]
Labels = NDArray[np.int64]
_SMALLEST = float(np.finfo(np.float32).tiny)  # a float32 probability of 0 was below this
_POINTS = 400  # of a line; more would not be visible
_NEIGHBOURS = 3  # the paper's k
_FEWEST = 10  # values of which a density is drawn; of fewer it would be a shape of its kernel
_AURC = METRICS["aurc"]


# Numbers of an image, from probabilities, label and class graph


def margins(p: NDArray[np.floating], y: Labels) -> Floats:
    """The logit margin z(y) - max_{j≠y} z(j) of each image (Fig. wins-kde, left): [N].

    Softmax keeps differences, so it is log p(y) - max_{j≠y} log p(j). Probabilities that are 0
    in float32 count as the smallest such number: no margin leaves ±87.3.

    >>> margins(np.array([[0.8, 0.1, 0.1], [0.25, 0.5, 0.25]]), np.array([0, 0])).round(3)
    array([ 2.079, -0.693])
    """
    logs = np.log(np.maximum(p.astype(np.float64), _SMALLEST))
    rows = np.arange(len(y))
    true = logs[rows, y]
    logs[rows, y] = -np.inf
    return np.asarray(true - logs.max(axis=1))


def neighbour_mass(
    p: NDArray[np.floating], y: Labels, W: NDArray[np.floating], *, k: int = _NEIGHBOURS
) -> Floats:
    """The probability given to the true class's top-k neighbours in W (Fig. wins-kde, right): [N].

    A class is not its own neighbour. With C ≤ k + 1 classes every other class is a neighbour,
    and the mass is 1 - p(y), as in the paper's own figure (RETINA: C = 4, k = 3).
    """
    others = W.astype(np.float64)
    np.fill_diagonal(others, -np.inf)
    nearest = np.argsort(-others, axis=1, kind="stable")  # ties: the lower label first
    near = nearest[y, : min(k, len(W) - 1)]  # [N, k]
    return np.asarray(np.take_along_axis(p.astype(np.float64), near, axis=1).sum(axis=1))


def disease_mass(
    p: NDArray[np.floating], normal: Sequence[int], *, without: Labels | None = None
) -> Floats:
    """The probability of disease, s(x) = Σ_{c∈D} p(c | x), D = all but normal classes: [N].

    The caption's formula counts the true class, its heading says "excluded GT". The formula is
    the default; `without=y` leaves the true class out.

    >>> p = np.array([[0.5, 0.3, 0.2]])
    >>> disease_mass(p, [2]), disease_mass(p, [2], without=np.array([0]))
    (array([0.8]), array([0.3]))
    """
    mass = p.astype(np.float64)
    mass[:, list(normal)] = 0.0
    if without is not None:
        mass[np.arange(len(without)), without] = 0.0
    return np.asarray(mass.sum(axis=1))


def density(values: Floats, grid: Floats, bounds: tuple[float, ...] = ()) -> Floats | None:
    """Gaussian kernel density of `values` on `grid`; None for fewer than ten or equal values.

    Bandwidth by Scott's rule, SciPy's default; the paper names none. Mass beyond `bounds` is
    reflected back, so that a density of probabilities has all its mass in [0, 1].
    """
    from scipy.stats import gaussian_kde

    if len(values) < _FEWEST or np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())):
        return None
    estimate = gaussian_kde(values)
    mirrored = [estimate(2 * edge - grid) for edge in bounds]
    return np.asarray(sum(mirrored, estimate(grid)))


# Two methods on the same images


@dataclass(frozen=True)
class PairedPredictions:
    """Predictions of methods A and B on the same images of one dataset, all seeds pooled."""

    title: str  # "retina, 16 shots"
    name: str  # for a file: "retina", "retina-novel"
    y: Labels  # [N]
    both: tuple[Floats, Floats]  # of A and of B, [N, C] each
    run: NDArray[np.int64]  # [N], which of the pooled runs a prediction is from
    W: Floats  # [C, C], of A
    normal: tuple[int, ...]

    @property
    def seeds(self) -> int:
        return len(np.unique(self.run))

    @property
    def right(self) -> tuple[Mask, Mask]:
        a, b = (right(p, self.y) for p in self.both)
        return a, b

    @property
    def healthy(self) -> Mask:
        return np.isin(self.y, self.normal)


def paired(runs: LabelledRuns, pair: tuple[str, str]) -> list[PairedPredictions]:
    """A and B on each dataset and part, at the most shots and fewest flips that both have."""

    def rank(spec: RunSpec) -> tuple[float, ...]:  # None is all
        shots, budget = (math.inf if n is None else float(n) for n in (spec.shots, spec.budget))
        return shots, -float(spec.flips), budget

    rows: dict[str, dict[tuple[float, ...], list[FinishedRun]]] = {label: {} for label in pair}
    for label, run in runs:
        if label in rows:
            rows[label].setdefault(rank(run.spec), []).append(run)
    first, second = rows.values()
    best = max(first.keys() & second.keys(), default=())
    pairs = paired_runs(first[best], second[best]) if best else {}
    if not pairs:
        raise ConfigError(
            f"No finished run of '{pair[0]}' has one of '{pair[1]}' with the same dataset, shots "
            "and seed."
        )
    ordered = (pairs[name] for name in sorted(pairs))
    return [_pool(*pair, part) for pair in ordered for part in pair[0][0].spec.parts]


def _pool(
    runs_a: Sequence[FinishedRun], runs_b: Sequence[FinishedRun], part: str
) -> PairedPredictions:
    spec = runs_a[0].spec
    pairs = [same_images(both, part) for both in zip(runs_a, runs_b, strict=True)]
    title = spec.dataset if part == "test" else f"{spec.dataset} ({part})"
    a, b = (
        np.concatenate([pair[side].probabilities for pair in pairs]).astype(np.float64)
        for side in (0, 1)
    )
    return PairedPredictions(
        title=f"{title}, {spec.shots} shots" if spec.shots else title,
        name=spec.dataset if part == "test" else f"{spec.dataset}-{part}",
        y=np.concatenate([first.labels for first, _ in pairs]).astype(np.int64),
        both=(a, b),
        run=np.repeat(np.arange(len(pairs)), [len(first.labels) for first, _ in pairs]),
        W=pairs[0][0].W.astype(np.float64),
        normal=tuple(runs_a[0].result.normal[part]),
    )


# Risk and coverage


def risk_curves(given: FigureInput) -> Drawn:
    """Risk (the error rate among the images kept) against coverage (Fig. 2), for each dataset.

    The most confident images are kept first. Confidence is the largest probability; images of
    equal confidence count by expectation. AURC is the mean risk over coverages 1/N..1.
    """
    pairs = paired(given.runs, given.both)
    figure, axes = style.grid(len(pairs), "Coverage (% kept)", "Risk (% wrong)", height=2.2)
    handles: dict[str, Artist] = {}
    for ax, images in zip(axes, pairs, strict=True):
        for label, p, colour in zip(given.both, images.both, style.COLOURS, strict=False):
            handles[shown(label)] = _risk_curve(ax, images, p, colour)
        ax.set_xlim(0, 100)
        ax.set_ylim(0, max(1.0, ax.get_ylim()[1]))  # do not magnify zero if nothing is wrong
        style.legend_above(ax, f"{shown(images.title, 30)}\n{_AURC.heading}")
    style.legend_below(figure, handles)
    several = max(images.seeds for images in pairs) > 1
    words = "; mean over seeds, band and ± are the std over seeds" if several else "; one seed"
    style.header(figure, f"Most confident images first; a lower curve and AURC are better{words}")
    yield "risk-coverage", figure


def _risk_curve(ax: Axes, images: PairedPredictions, p: Floats, colour: str) -> Artist:
    chosen = [images.run == number for number in np.unique(images.run)]
    areas = [aurc(images.y[rows], p[rows]) for rows in chosen]
    x, mean, std = mean_curve([risk_coverage(images.y[rows], p[rows]) for rows in chosen])
    name = _AURC.text(float(np.mean(areas)))
    name += f" ± {_AURC.text(spread(areas))}" if len(areas) > 1 else ""
    (line,) = ax.plot(100 * x, 100 * mean, color=colour, label=name)
    if len(areas) > 1:
        style.band(ax, 100 * x, 100 * mean, 100 * std, colour)
    return line


def mean_curve(curves: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Floats]:
    """Mean and spread of risk-coverage curves at common coverages, thinned for drawing."""
    longest = max((coverage for coverage, _ in curves), key=len)
    kept = np.unique(np.linspace(0, len(longest) - 1, _POINTS).round().astype(int))
    x = longest[kept]
    risks = np.array([np.interp(x, coverage, risk) for coverage, risk in curves])
    return x, risks.mean(axis=0), risks.std(axis=0)


# Densities


class Which(NamedTuple):
    """The images of a panel."""

    title: str  # {a}, {b}: the labels
    rows: Callable[[PairedPredictions], Mask]


class Quantity(NamedTuple):
    """A number of an image, as predicted by one method."""

    name: str  # {k}: the number of neighbours, {others}: of other classes
    of: Callable[[Floats, PairedPredictions], Floats]  # p [N, C] -> [N]
    bounds: tuple[float, ...] = (0.0, 1.0)


_WINS = Which("{a} right, {b} wrong", lambda at: at.right[0] & ~at.right[1])
_LOSSES = Which("{b} right, {a} wrong", lambda at: at.right[1] & ~at.right[0])
_MISSED = Which("Both wrong on a disease", lambda at: ~at.right[0] & ~at.right[1] & ~at.healthy)
_NORMAL = Which("Normal images", lambda at: at.healthy)

_MARGIN = Quantity("z(y) − max z(j), j ≠ y", lambda p, at: margins(p, at.y), bounds=())
_NEAR = Quantity(
    "p of the {k} nearest of {others} other classes in W",
    lambda p, at: neighbour_mass(p, at.y, at.W),
)
_DISEASE = Quantity("p of all diseases", lambda p, at: disease_mass(p, at.normal))
_OTHER = Quantity(
    "p of all diseases but the true one", lambda p, at: disease_mass(p, at.normal, without=at.y)
)
# On wins A's margin is positive and B's is not, because the images were chosen so: the figure
# shows by how much, and is fair only beside the losses.
DENSITIES = {
    "wins": [(_WINS, _MARGIN), (_WINS, _NEAR), (_LOSSES, _MARGIN), (_LOSSES, _NEAR)],
    "disease-mass": [(_MISSED, _DISEASE), (_MISSED, _OTHER), (_NORMAL, _DISEASE)],
}
"""The panels of each figure: which images, and which number of them."""


def densities(given: FigureInput, *, name: str) -> Drawn:
    """A figure for each dataset that has such images; ConfigError if none has."""
    chosen = [
        (images, panels)
        for images in paired(given.runs, given.both)
        if (panels := [panel for panel in DENSITIES[name] if panel[0].rows(images).any()])
        # A disease mass needs normal classes and others.
        and (name == "wins" or 0 < len(images.normal) < len(images.W))
    ]
    if not chosen:
        raise ConfigError("No dataset has such images.")
    for images, panels in chosen:
        figure, axes = style.grid(len(panels), y_name="Density", height=2.2, most=2)
        for ax, panel in zip(axes, panels, strict=True):
            _density_panel(ax, *panel, images, given.both)
        pooled = f"{images.seeds} seeds pooled" if images.seeds > 1 else "one seed"
        style.header(figure, f"{shown(images.title, 60)}; {pooled}")
        yield f"{name}-{style.file_stem(images.name)}", figure


def _density_panel(
    ax: Axes, which: Which, quantity: Quantity, images: PairedPredictions, pair: tuple[str, str]
) -> None:
    rows = which.rows(images)
    samples = [quantity.of(p, images)[rows] for p in images.both]
    ends = quantity.bounds or (min(map(np.min, samples)), max(map(np.max, samples)))
    room = 0.0 if quantity.bounds else 0.15 * (ends[1] - ends[0]) or 1.0
    grid = np.linspace(ends[0] - room, ends[1] + room, 401)
    for label, values, colour in zip(pair, samples, style.COLOURS, strict=False):
        total = f"Σ = {values.sum():.1f}, mean {values.mean():.2f}".replace("-", "−")
        name = f"{shown(label, 20)}: {total}"
        heights = density(values, grid, quantity.bounds)
        if heights is not None:
            ax.plot(grid, heights, color=colour, label=name)
            ax.fill_between(grid, heights, color=colour, alpha=0.12, linewidth=0)
        else:  # the values themselves instead, at one height
            across = ax.get_xaxis_transform()
            ax.plot(values, 0.4 + 0 * values, "o", color=colour, transform=across, label=name)
    ax.set_xlim(grid[0], grid[-1])
    ax.set_ylim(bottom=0)
    others = len(images.W) - 1
    ax.set_xlabel(quantity.name.format(k=min(_NEIGHBOURS, others), others=others))
    ax.set_yticks([])
    a, b = (shown(label, 14) for label in pair)
    style.legend_above(ax, f"{which.title.format(a=a, b=b)} (n = {rows.sum()})")


# The class graph


def class_graphs(given: FigureInput) -> Drawn:
    """W of each dataset, W_c: = softmax(α s_c:) (eq. 1-2): row c says how near others are to c.

    It is taken from the first finished run of method A; in base-to-novel it is that of the base
    classes, which are all that training sees (Alg. 1).
    """
    label = given.pair[0] if given.pair else given.runs[0][0]
    first: dict[str, FinishedRun] = {}
    for run in (run for name, run in given.runs if name == label):
        first.setdefault(run.spec.dataset, run)
    for dataset, run in first.items():
        part = run.spec.parts[0]
        W, classes = run.predictions(part).W.astype(np.float64), run.class_names(part)
        title = dataset if part == "test" else f"{dataset} ({part})"
        yield f"graph-{style.file_stem(dataset)}", _heatmap(W, classes, title)


def _heatmap(W: Floats, classes: Iterable[str], title: str) -> Figure:
    n = len(W)
    side = max(2.6, min(7.0, 1.5 + (0.36 if n <= plots.WRITTEN else 0.16) * n))
    figure = style.new_figure(side + 1.2, side + 0.7)
    ax = figure.add_subplot()
    plots.class_graph(W, [shown(name, 40) for name in classes], ax)
    style.header(figure, f"Class graph W of {title}; rows sum to one")
    return figure
