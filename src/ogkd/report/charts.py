"""Charts as plain geometry in SVG units; the template draws them, the style sheet colours them.

No drawing library: the same input gives the same bytes, text stays text, and the colours follow
the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["Chart", "Dot", "Line", "Tick", "reliability_chart", "risk_chart"]

_WIDTH, _HEIGHT = 380, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 22, 12, 46  # margins for ticks and titles
_TOPS = ((0.05, 5), (0.1, 5), (0.2, 4), (0.3, 3), (0.4, 4), (0.6, 3), (0.8, 4), (1.0, 5))
_MOST = 400  # points of a line; more are not seen, only stored


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: its place in SVG units and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """A line: `points` as SVG wants them, and the style's name for it."""

    points: str
    kind: str
    name: str = ""


@dataclass(frozen=True)
class Dot:
    """A dot whose area grows with the number of images behind it."""

    x: float
    y: float
    radius: float
    text: str
    even: float  # the y of a model as right as it is sure


@dataclass(frozen=True)
class Chart:
    """All that the template needs; `text` says in words what the chart shows."""

    text: str
    x_title: str
    y_title: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...] = ()
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = _HEIGHT - _BOTTOM


def risk_chart(
    coverage: ArrayLike, risk: ArrayLike, ideal: ArrayLike, *, overall: float, text: str
) -> Chart:
    """Error rate among the most certain images, against how many of them are kept."""
    kept, wrong, best = (np.asarray(values, float) for values in (coverage, risk, ideal))
    highest = max(float(wrong.max(initial=0.0)), float(best.max(initial=0.0)), overall)
    top, steps = next((top, steps) for top, steps in _TOPS if highest <= top + 1e-9)
    return Chart(
        text=text,
        x_title="images kept, most certain first",
        y_title="errors among them",
        x_ticks=_ticks([0, 0.2, 0.4, 0.6, 0.8, 1.0], 1.0, across=True),
        y_ticks=_ticks([top * step / steps for step in range(steps + 1)], top, across=False),
        lines=(
            Line(_points([0, 1], [overall, overall], top), "even", "certainty says nothing"),
            Line(_points(kept, best, top), "ideal", "all errors last (the best there can be)"),
            Line(_points(kept, wrong, top), "model", "this model"),
        ),
    )


def reliability_chart(
    confidence: Sequence[float], accuracy: Sequence[float], images: Sequence[int], *, text: str
) -> Chart:
    """How often the model is right, against how sure it says it is; one dot for each bin."""
    most = max(images, default=1)
    dots = tuple(
        Dot(
            _x(sure),
            _y(right, 1.0),
            round(3.0 + 7.0 * (count / most) ** 0.5, 1),
            f"{count} images: {100 * sure:.0f} % sure, {100 * right:.0f} % right",
            _y(sure, 1.0),
        )
        for sure, right, count in zip(confidence, accuracy, images, strict=True)
    )
    quarters = [0, 0.25, 0.5, 0.75, 1.0]
    return Chart(
        text=text,
        x_title="how sure it says it is",
        y_title="how often it is right",
        x_ticks=_ticks(quarters, 1.0, across=True),
        y_ticks=_ticks(quarters, 1.0, across=False),
        lines=(Line(_points([0, 1], [0, 1], 1.0), "even", "as sure as right"),),
        dots=dots,
    )


def _ticks(values: Sequence[float], top: float, *, across: bool) -> tuple[Tick, ...]:
    return tuple(
        Tick(_x(value) if across else _y(value, top), f"{100 * value:.0f} %") for value in values
    )


def _points(xs: ArrayLike, ys: ArrayLike, top: float) -> str:
    across, up = np.asarray(xs, float), np.asarray(ys, float)
    if len(across) > _MOST:
        chosen = np.unique(np.linspace(0, len(across) - 1, _MOST).round().astype(int))
        across, up = across[chosen], up[chosen]
    return " ".join(f"{_x(x)},{_y(y, top)}" for x, y in zip(across, up, strict=True))


def _x(value: float) -> float:
    return round(_LEFT + float(value) * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(value: float, top: float) -> float:
    return round(_HEIGHT - _BOTTOM - float(value) / top * (_HEIGHT - _BOTTOM - _TOP), 1)
