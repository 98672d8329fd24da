"""The quantities in the paper's figures, as functions of probabilities, labels and class graph.

Shapes: p [N, C] probabilities, y [N] labels, W [C, C]. Nothing here knows about runs or drawing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Labels = NDArray[np.int64]
_SMALLEST = float(np.finfo(np.float32).tiny)  # a float32 probability of 0 was below this


def right(p: NDArray[np.floating], y: Labels) -> Mask:
    """Whether the most probable class (the first of equals) is the true one: bool [N]."""
    return np.asarray(p.argmax(axis=1) == y)


def wins(p_a: NDArray[np.floating], p_b: NDArray[np.floating], y: Labels) -> Mask:
    """Images that A classifies correctly while B is wrong ("wins", Fig. wins-kde): bool [N]."""
    return right(p_a, y) & ~right(p_b, y)


def both_wrong(p_a: NDArray[np.floating], p_b: NDArray[np.floating], y: Labels) -> Mask:
    """Images that both methods misclassify: bool [N]."""
    return ~right(p_a, y) & ~right(p_b, y)


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


def neighbours(W: NDArray[np.floating], k: int) -> NDArray[np.int64]:
    """The k classes nearest to each class by its row of W, without itself: [C, min(k, C-1)].

    >>> neighbours(np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]]), 1).tolist()
    [[1], [2], [0]]
    """
    others = W.astype(np.float64)
    np.fill_diagonal(others, -np.inf)
    order = np.argsort(-others, axis=1, kind="stable")  # ties: the lower label first
    return np.asarray(order[:, : min(k, len(W) - 1)])


def neighbour_mass(
    p: NDArray[np.floating], y: Labels, W: NDArray[np.floating], *, k: int = 3
) -> Floats:
    """The probability given to the true class's top-k neighbours in W (Fig. wins-kde, right): [N].

    A class is not its own neighbour. With C ≤ k + 1 classes every other class is a neighbour,
    and the mass is 1 - p(y), as in the paper's own figure (RETINA: C = 4, k = 3).
    """
    near = neighbours(W, k)[y]  # [N, k]
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


def harmonic_mean(base: float, novel: float) -> float:
    """HM = 2 base novel / (base + novel) of non-negative numbers; 0 if both are 0."""
    return 2 * base * novel / (base + novel) if base + novel else 0.0


def density(
    values: Floats, grid: Floats, *, bounds: tuple[float, float] | None = None
) -> Floats | None:
    """Gaussian kernel density of `values` on `grid`, or None for fewer than two distinct values.

    Bandwidth by Scott's rule, SciPy's default; the paper names none.
    Mass beyond `bounds` is reflected back, so that a density of probabilities has all its mass
    in [0, 1].
    """
    from scipy.stats import gaussian_kde

    if len(values) < 2 or np.ptp(values) <= 1e-9 * max(1.0, float(np.abs(values).max())):
        return None
    estimate = gaussian_kde(values)
    heights: Floats = estimate(grid)
    for edge in bounds or ():
        heights = heights + estimate(2 * edge - grid)
    return heights
