"""Charts and shaded tables as plain values; the templates draw them, the style sheet colours them.

No drawing library: the same input gives the same bytes, text stays text, and the colours follow
the reader's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_WIDTH, _HEIGHT = 380, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 22, 12, 46  # margins for ticks and titles
_TOPS = ((0.05, 5), (0.1, 5), (0.2, 4), (0.3, 3), (0.4, 4), (0.6, 3), (0.8, 4), (1.0, 5))
_MOST = 400  # points of a line; more cannot be seen
_DARKEST = 0.55  # opacity of a cell's colour; the text on it stays readable in light and dark
_FEW = 6  # classes whose names fit above the columns


Tick = tuple[float, str]  # a mark on an axis: position in SVG units, text
Line = tuple[str, str, str]  # points in SVG notation, class in the style sheet, name


@dataclass(frozen=True)
class Dot:
    """A dot whose area grows with the number of images behind it."""

    x: float
    y: float
    radius: float
    text: str
    even: float  # the y at which confidence and accuracy agree


@dataclass(frozen=True)
class Chart:
    """Everything the template needs; `text` describes in words what the chart shows."""

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
    """Error rate among the most confident images, against the share of images kept."""
    kept, wrong, best = (np.asarray(values, float) for values in (coverage, risk, ideal))
    highest = max(float(wrong.max(initial=0.0)), float(best.max(initial=0.0)), overall)
    top, steps = next((top, steps) for top, steps in _TOPS if highest <= top + 1e-9)
    return Chart(
        text=text,
        x_title="images kept, most confident first",
        y_title="error rate",
        x_ticks=_ticks([0, 0.2, 0.4, 0.6, 0.8, 1.0], 1.0, across=True),
        y_ticks=_ticks([top * step / steps for step in range(steps + 1)], top, across=False),
        lines=(
            (_points([0, 1], [overall, overall], top), "even", "uninformative confidence"),
            (_points(kept, best, top), "ideal", "ideal (all errors last)"),
            (_points(kept, wrong, top), "model", "this model"),
        ),
    )


def reliability_chart(
    confidence: Sequence[float], accuracy: Sequence[float], images: Sequence[int], *, text: str
) -> Chart:
    """Accuracy against confidence, with one dot for each bin."""
    most = max(images, default=1)
    dots = tuple(
        Dot(
            _x(sure),
            _y(correct, 1.0),
            round(3.0 + 7.0 * (count / most) ** 0.5, 1),
            f"{count} images: {100 * sure:.0f} % confident, {100 * correct:.0f} % correct",
            _y(sure, 1.0),
        )
        for sure, correct, count in zip(confidence, accuracy, images, strict=True)
    )
    quarters = [0, 0.25, 0.5, 0.75, 1.0]
    return Chart(
        text=text,
        x_title="confidence",
        y_title="accuracy",
        x_ticks=_ticks(quarters, 1.0, across=True),
        y_ticks=_ticks(quarters, 1.0, across=False),
        lines=((_points([0, 1], [0, 1], 1.0), "even", "perfect calibration"),),
        dots=dots,
    )


def _ticks(values: Sequence[float], top: float, *, across: bool) -> tuple[Tick, ...]:
    return tuple(
        (_x(value) if across else _y(value, top), f"{100 * value:.0f} %") for value in values
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


@dataclass(frozen=True)
class Cell:
    """A value, a smaller note below it, its shade, and whether it counts errors."""

    text: str
    shade: str
    note: str = ""
    off: bool = False


@dataclass(frozen=True)
class ShadedTable:
    """A table of classes against classes whose cells are shaded by their value."""

    caption: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]  # name, cells


def confusion_table(counts: NDArray[np.int64], names: Sequence[str]) -> ShadedTable:
    """The confusion matrix; percentages are of the true class, so each row sums to 100 %."""
    columns, row_names = _headings(names)
    rows = []
    for label, (name, row) in enumerate(zip(row_names, counts.tolist(), strict=True)):
        total = sum(row)
        shares = [count / total if total else 0.0 for count in row]
        cells = tuple(
            Cell(str(count), _shade(share), f"{100 * share:.0f} %" if total else "", other != label)
            for other, (count, share) in enumerate(zip(row, shares, strict=True))
        )
        rows.append((name, cells))
    caption = "Rows: true class. Columns: predicted class. Percentages are of the row."
    return ShadedTable(caption, "true \\ predicted", columns, tuple(rows))


def graph_table(W: NDArray[np.floating], names: Sequence[str], *, caption: str) -> ShadedTable:
    """The class graph W, shaded from its smallest to its largest value."""
    low, high = float(W.min()), float(W.max())
    columns, row_names = _headings(names)
    rows = tuple(
        (
            name,
            tuple(
                Cell(f"{100 * value:.1f}", _shade((value - low) / max(high - low, 1e-9)))
                for value in map(float, row)
            ),
        )
        for name, row in zip(row_names, W, strict=True)
    )
    return ShadedTable(caption, "class \\ neighbour", columns, rows)


def _headings(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Columns and rows; many classes are numbered, as their names do not fit above columns."""
    if len(names) <= _FEW:
        return tuple(names), tuple(names)
    numbers = tuple(str(number) for number in range(1, len(names) + 1))
    return numbers, tuple(f"{number} {name}" for number, name in zip(numbers, names, strict=True))


def _shade(share: float) -> str:
    return f"{_DARKEST * share:.3f}"
