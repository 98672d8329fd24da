"""The class graph W as a heatmap."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from ogkd.bench.figures.averages import Material
from ogkd.bench.figures.style import Drawn, file_stem, header, new_figure, shown
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["class_graphs"]

_WRITTEN = 14  # classes up to which every weight is written into its square


def class_graphs(material: Material) -> Drawn:
    """W of each dataset, W_c: = softmax(α s_c:) (eq. 1-2): row c, how near the others are to c.

    From the first finished run of the pair's first method; in base-to-novel, of the base
    classes, which are all that training sees (Alg. 1).
    """
    label = material.pair[0] if material.pair else material.runs[0][0]
    done = set()
    for name, run in material.runs:
        if name != label or run.spec.dataset in done:
            continue
        part = run.parts[0]
        W, classes = run.predictions(part).W.astype(np.float64), run.class_names(part)
        if not np.isfinite(W).all() or len(W) != len(classes):
            continue
        done.add(run.spec.dataset)
        title = run.spec.dataset if part == "test" else f"{run.spec.dataset} ({part})"
        yield f"graph-{file_stem(run.spec.dataset)}", _heatmap(W, classes, title)
    if not done:
        raise ConfigError(f"No finished run of '{label}' has a class graph.")


def _heatmap(W: np.ndarray, classes: tuple[str, ...], title: str) -> Figure:
    n = len(classes)
    side = max(2.6, min(7.0, 1.5 + (0.36 if n <= _WRITTEN else 0.16) * n))
    figure = new_figure(side + 1.2, side + 0.7)
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
