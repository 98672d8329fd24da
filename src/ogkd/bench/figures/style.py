"""How figures look and how they are written: the same input gives the same bytes."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ogkd.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Drawn = Iterator[tuple[str, "Figure"]]
"""Figures with the names of their files."""

COLUMN, PAGE = 3.5, 7.2  # inches: one column, the full width of a page
# Okabe and Ito's colours, which colour-blind readers can distinguish; without yellow, which is
# hard to see on white.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#888888")
_MARKERS = "osD^vPX*"
_DASHES = ("-", "--", ":", "-.")
_FOOTER = 0.12  # inches


def looks(labels: Sequence[str], main: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """How the lines of each label look in every panel; the main labels come first and are wide."""
    order = [*main, *(label for label in labels if label not in main)]
    return {
        label: {
            "color": COLOURS[number % len(COLOURS)],
            "marker": _MARKERS[(number + number // len(COLOURS)) % len(_MARKERS)],
            "linestyle": _DASHES[number // len(COLOURS) % len(_DASHES)],
            "linewidth": 1.6 if label in main or not main else 1.0,
        }
        for number, label in enumerate(order)
    }


@contextmanager
def styled() -> Iterator[None]:
    """Use this style only, whatever the user's own settings are."""
    from matplotlib import style

    sheet = Path(__file__).with_name("paper.mplstyle")
    with style.context(["default", sheet]), warnings.catch_warnings():
        # A class name may use a script that the font lacks: boxes in the PNG, text in the SVG.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that belongs to no window and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def grid(
    panels: int, x_name: str = "", y_name: str = "", *, height: float, most: int = 4
) -> tuple[Figure, list[Axes]]:
    """A figure of small panels, at most `most` in a row, each legible on a page.

    Axes are named at the left and at the bottom only: elsewhere it would cost room.
    """
    columns = min(panels, most)
    rows = -(-panels // columns)
    figure = new_figure(COLUMN if panels == 1 else min(PAGE, 2.5 * columns), 0.7 + rows * height)
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(panels)]
    for ax in axes[::columns]:
        ax.set_ylabel(y_name)
    for ax in axes[(rows - 1) * columns :]:
        ax.set_xlabel(x_name)
    return figure, axes


def legend_below(figure: Figure, handles: Mapping[str, Artist]) -> None:
    """One legend for all panels."""
    each = 0.4 + 0.06 * max(map(len, handles))  # inches for one entry
    many = max(1, min(len(handles), int(figure.get_figwidth() / each)))
    figure.set_figheight(figure.get_figheight() + 0.15 * -(-len(handles) // many))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=many)


def header(figure: Figure, *lines: str) -> None:
    """Write what the figure shows in small letters above it."""
    wide = int(17.5 * figure.get_figwidth())  # letters of this size in a line
    text = "\n".join(textwrap.fill(shown(line, 3 * wide), wide) for line in lines if line)
    figure.suptitle(text, x=0.01, ha="left", fontsize=7, color="#444444")


def footer(figure: Figure, line: str) -> None:
    """Write what the figure was made with in small letters below it, and below its legend."""
    strip = _FOOTER / figure.get_figheight()
    figure.text(0.01, strip / 4, shown(line, 120), fontsize=5, color="#888888")
    above = (0, round(strip, 3), 1, round(1 - strip, 3))  # so short that layouts are repeatable
    figure.set_layout_engine("constrained", rect=above)
    for legend in figure.legends:  # the layout keeps room for one, but does not move it
        legend.borderaxespad = 72 * _FOOTER / float(legend.get_texts()[0].get_fontsize())


def band(ax: Axes, x: Any, mean: Any, std: Any, colour: str) -> None:
    ax.fill_between(x, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)


def legend_above(ax: Axes, title: str) -> None:
    """Write a title and the legend above the axes, where no data are."""
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2, "borderpad": 0}
    ax.legend(title=title, alignment="left", **place)


def shown(name: str, longest: int = 32) -> str:
    """A name as it is drawn: without control characters, cut if it is long."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


def file_stem(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "unnamed"


def write(figure: Figure, out: Path, stem: str) -> list[Path]:
    """Write a figure as SVG and PNG, whole or not at all."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)  # one layout for both files
        figure.set_layout_engine("none")
    paths = []
    for kind, metadata in (("svg", {"Date": None, "Creator": "ogkd"}), ("png", {"Software": None})):
        path = out / f"{stem}.{kind}"
        with write_atomically(path, suffixes=(f".{kind}",)) as temporary:
            figure.savefig(temporary, format=kind, metadata=metadata)
        paths.append(path)
    return paths
