"""What evaluations and models say, as matplotlib axes; every number is computed elsewhere."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import ArrayLike

from ogkd.errors import ConfigError
from ogkd.evaluation.evaluate import Evaluation
from ogkd.model.classifier import Classifier

WRITTEN = 14  # classes up to which every weight is written into its square


def risk_coverage(evaluation: Evaluation, ax: Any = None) -> Any:
    """The error rate among the images kept, most confident first."""
    return _draw(evaluation, "selective", ax)


def reliability(evaluation: Evaluation, ax: Any = None) -> Any:
    """Accuracy against confidence, with one dot for each bin."""
    return _draw(evaluation, "calibration", ax)


def _draw(evaluation: Evaluation, key: str, ax: Any) -> Any:
    """The last chart of a section, as the report shows it."""
    charts = {section.key: section.charts for section in evaluation.sections}
    if key not in charts:
        raise ConfigError("Only evaluations of classes have this plot.", argument="evaluation")
    chart, ax = charts[key][-1], ax or plt.gca()
    for line in chart.lines:
        ax.plot(line.x, line.y, label=line.name)
    for dot in chart.dots:
        ax.scatter(dot.x, dot.y, s=10 + 90 * dot.weight, color="C1", zorder=3)
    ax.set(xlabel=chart.x_title, ylabel=chart.y_title, title=chart.title)
    ax.legend()
    return ax


def history(model: Classifier, ax: Any = None) -> Any:
    """The terms of the loss by epoch."""
    if not model.history:
        raise ConfigError("Nothing was trained, so there is no history.", argument="model")
    ax = ax or plt.gca()
    for name in model.history[0]["terms"]:
        ax.plot([np.mean(entry["terms"][name]) for entry in model.history], label=name)
    ax.set(xlabel="epoch", ylabel="loss")
    ax.legend()
    return ax


def class_graph(W: ArrayLike, names: Sequence[str], ax: Any = None) -> Any:
    """A class graph W [C, C], as `ogkd.geometry.class_graph` computes it; rows sum to one."""
    from sklearn.metrics import ConfusionMatrixDisplay

    n, ax = len(names), ax or plt.gca()
    labels = [textwrap.fill(name, 20) for name in names]
    ConfusionMatrixDisplay(np.asarray(W), display_labels=labels).plot(
        ax=ax, cmap="Blues", include_values=n <= WRITTEN, values_format=".2f",
        xticks_rotation=45, im_kw={"vmin": 0.0}, text_kw={"fontsize": 6.5},
    )  # fmt: skip
    ax.tick_params(length=0, labelsize=7 if n <= 24 else 4.5)
    for label in ax.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
    ax.grid(False)
    ax.set(xlabel="Neighbour", ylabel="Class")
    return ax
