"""Tables of classes against classes, each cell with its number and a shade of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cell", "Heat", "Row", "confusion_heat", "graph_heat", "pair_heat"]

_DARKEST = 0.55  # of a cell's colour; the text on it stays readable in light and in dark
_FEW = 6  # classes whose names fit above the columns


@dataclass(frozen=True)
class Cell:
    """A number, its share in small, how dark it is, and whether it is a mistake."""

    text: str
    shade: str
    note: str = ""
    off: bool = False


@dataclass(frozen=True)
class Row:
    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Heat:
    """A table whose cells are shaded by their value."""

    caption: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def confusion_heat(counts: NDArray[np.int64], names: Sequence[str]) -> Heat:
    """The confusion matrix; shares are of the true class, so each row sums to 100 %."""
    numbered = len(names) > _FEW
    return Heat(
        caption="Rows: what the images show. Columns: what the model said. Shares are of the row.",
        corner="shown \\ said",
        columns=_columns(names, numbered),
        rows=_count_rows(counts, _rows(names, numbered)),
    )


def pair_heat(counts: NDArray[np.int64], names: tuple[str, str]) -> Heat:
    """The confusion of two groups of classes."""
    return Heat(
        caption="Rows: what the images show. Columns: what the model said. Shares are of the row.",
        corner="shown \\ said",
        columns=names,
        rows=_count_rows(counts, names),
    )


def graph_heat(W: NDArray[np.floating], names: Sequence[str], *, caption: str) -> Heat:
    """The class graph W; the lightest shade is its smallest value, the darkest its largest."""
    low, high = float(W.min()), float(W.max())
    numbered = len(names) > _FEW
    rows = tuple(
        Row(
            name,
            tuple(
                Cell(f"{100 * value:.1f}", _shade((value - low) / max(high - low, 1e-9)))
                for value in map(float, row)
            ),
        )
        for name, row in zip(_rows(names, numbered), W, strict=True)
    )
    return Heat(caption, "class \\ neighbour", _columns(names, numbered), rows)


def _count_rows(counts: NDArray[np.int64], names: Sequence[str]) -> tuple[Row, ...]:
    rows = []
    for place, (name, row) in enumerate(zip(names, counts.tolist(), strict=True)):
        total = sum(row)
        shares = [count / total if total else 0.0 for count in row]
        cells = tuple(
            Cell(str(count), _shade(share), f"{100 * share:.0f} %" if total else "", other != place)
            for other, (count, share) in enumerate(zip(row, shares, strict=True))
        )
        rows.append(Row(name, cells))
    return tuple(rows)


def _columns(names: Sequence[str], numbered: bool) -> tuple[str, ...]:
    return tuple(str(place) for place in range(1, len(names) + 1)) if numbered else tuple(names)


def _rows(names: Sequence[str], numbered: bool) -> tuple[str, ...]:
    if not numbered:
        return tuple(names)
    return tuple(f"{place} {name}" for place, name in enumerate(names, 1))


def _shade(share: float) -> str:
    return f"{_DARKEST * share:.3f}"
