"""Labelled images with what the model says about them, as one figure."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.data.case import Dataset
from ogkd.data.tasks import require_classes
from ogkd.errors import ConfigError
from ogkd.evaluation import predict_labelled
from ogkd.images import read_image
from ogkd.model.classifier import Classifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 4
_INCHES = 2.2  # width of an image
_SIDE = 320  # pixels of an image
_WRONG, _RIGHT = "#D55E00", "#444444"
_CHARACTERS = 26  # of a class name that fit above an image


def show_results(
    classifier: Classifier,
    data: str | Path | Dataset,
    *,
    split: str = "test",
    n: int = 12,
    worst: bool = False,
) -> Figure:
    """A figure of `n` images with true class, prediction and probability; wrong ones are framed.

    The images are spread evenly over the split. With `worst` they are those whose true class has
    the least probability, the worst first. The same input gives the same images. The figure can be
    saved (`savefig`), and a notebook shows it.
    """
    if n < 1:
        raise ConfigError(f"n must be at least 1, but is {n}.", argument="n")
    predictions = predict_labelled(classifier, data, split=split)
    require_classes(predictions.task, "The figure")
    p = predictions.probabilities(classifier.calibration)
    chosen = _choose(predictions.labels, p, n, worst=worst)
    columns = min(_COLUMNS, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    figure = _figure(columns, rows)
    for position, number in enumerate(chosen, start=1):
        axes = figure.add_subplot(rows, columns, position)
        image = Image.fromarray(read_image(predictions.images[number]))
        image.thumbnail((_SIDE, _SIDE))
        axes.imshow(np.asarray(image), interpolation="bilinear")
        axes.set(xticks=[], yticks=[])
        truth, best = int(predictions.labels[number]), int(p[number].argmax())
        answer = f"{_short(predictions.class_names[best])} {100 * p[number, best]:.0f} %"
        words = (
            answer
            if best == truth
            else f"WRONG: {answer}\ntrue: {_short(predictions.class_names[truth])}"
        )
        colour = _RIGHT if best == truth else _WRONG
        axes.set_title(words, color=colour, fontsize=8, parse_math=False)
        for side in axes.spines.values():
            side.set(color=colour, linewidth=1 if best == truth else 3)
    return figure


def _choose(
    labels: NDArray[np.int64], p: NDArray[np.float32], n: int, *, worst: bool
) -> NDArray[np.intp]:
    if worst:
        return np.argsort(p[np.arange(len(labels)), labels], kind="stable")[:n]
    return np.unique(np.linspace(0, len(labels) - 1, min(n, len(labels))).round().astype(np.intp))


def _short(name: str) -> str:
    return name if len(name) <= _CHARACTERS else f"{name[: _CHARACTERS - 3]}..."


def _figure(columns: int, rows: int) -> Figure:
    from matplotlib.figure import Figure  # here: it takes a while

    class Shown(Figure):
        """A figure that notebooks show without pyplot, and its state, being used."""

        def _repr_png_(self) -> bytes:
            memory = io.BytesIO()
            self.savefig(memory, format="png")
            return memory.getvalue()

    size = (columns * _INCHES, rows * (_INCHES + 0.5))
    return Shown(figsize=size, layout="constrained", dpi=100)
