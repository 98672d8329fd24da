"""Cards of single images: what the model saw, and the evidence it used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.model.explain import data_uri, draw, evidence
from ogkd.progress import progress_bar

if TYPE_CHECKING:
    from ogkd.evaluation import LabelledPredictions
    from ogkd.model.classifier import Classifier

_SIDE = 256  # pixels
_MOST = 12  # cards in a gallery: keeps the page below 3 MB
_OUTLINED = 8  # patches; more would hide the image


@dataclass(frozen=True)
class CardImage:
    """One image as a data URI, with a description for readers who cannot see it."""

    source: str
    text: str
    caption: str
    size: int = _SIDE


@dataclass(frozen=True)
class Card:
    """One image of the data: as the model saw it, and with the evidence drawn in."""

    title: str
    words: str
    pictures: tuple[CardImage, ...]
    file: str = ""


def confident_errors(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> NDArray[np.intp]:
    """Numbers of the misclassified images to show, the most confident first."""
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    confidence = probabilities[wrong].max(axis=1)
    return wrong[np.argsort(-confidence, kind="stable")][:_MOST]


def correct_examples(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> NDArray[np.intp]:
    """For each class the most confident correct image, if there is one."""
    correct = probabilities.argmax(axis=1) == labels
    confidence = np.where(correct, probabilities.max(axis=1), -1.0)
    found = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        best = members[np.argmax(confidence[members])]
        if confidence[best] >= 0:
            found.append(best)
    return np.asarray(found[:_MOST], np.intp)


def cards(
    classifier: Classifier,
    predictions: LabelledPredictions,
    probabilities: NDArray[np.floating],
    chosen: NDArray[np.intp],
    *,
    show_names: bool,
) -> list[Card]:
    """A card for each chosen image, with the evidence for the predicted class."""
    numbers = [int(number) for number in chosen]
    if not numbers:
        return []
    names = predictions.class_names
    predicted = probabilities.argmax(axis=1)
    rows, columns = classifier.backbone.patch_grid
    made = []
    with progress_bar("Drawing evidence", len(numbers)) as bar:
        drawn = evidence(
            classifier,
            [predictions.images[number] for number in numbers],
            labels=[int(predicted[number]) for number in numbers],
            top=min(_OUTLINED, rows * columns),
        )
        for number, found in zip(numbers, drawn, strict=True):
            name = names[int(predicted[number])]
            label = int(predictions.labels[number])
            truth = names[label]
            made.append(
                Card(
                    title=truth if name == truth else f"{truth}, mistaken for {name}",
                    words=_confidence(probabilities[number], label, names),
                    pictures=(
                        _image(found.image, f"An image of the class {truth}", "what it saw"),
                        _image(
                            draw(found),
                            f"The same image; the patches with most evidence for {name} are "
                            "outlined",
                            f"evidence for {name}",
                        ),
                    ),
                    file=predictions.images[number].name if show_names else "",
                )
            )
            bar.advance()
    return made


def _confidence(row: NDArray[np.floating], truth: int, names: Sequence[str]) -> str:
    best = int(row.argmax())
    text = f"{100 * row[best]:.0f} % for {names[best]}"
    return text if best == truth else f"{text}, {100 * row[truth]:.0f} % for {names[truth]}"


def _image(image: Image.Image, text: str, caption: str) -> CardImage:
    small = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    return CardImage(data_uri(small), text, caption)
