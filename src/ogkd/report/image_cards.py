"""Cards of single images: what the model saw, and the evidence it used."""

from __future__ import annotations

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

SIDE = 256  # pixels
_MOST = 12  # cards in a gallery: keeps the page below 3 MB
_OUTLINED = 8  # patches; more would hide the image


@dataclass(frozen=True)
class Card:
    """One image of the data: as the model saw it, and with the evidence drawn in."""

    title: str
    words: str
    pictures: tuple[tuple[str, str, str], ...]  # data URI, description, caption
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
    names, predicted = predictions.class_names, probabilities.argmax(axis=1)
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
            row, label = probabilities[number], int(predictions.labels[number])
            name, truth = names[predicted[number]], names[label]
            title, words = truth, f"{100 * row.max():.0f} % for {name}"
            if name != truth:
                title = f"{truth}, mistaken for {name}"
                words += f", {100 * row[label]:.0f} % for {truth}"
            outlined = f"The same image; the patches with most evidence for {name} are outlined"
            pictures = (
                (_small(found.image), f"An image of the class {truth}", "what it saw"),
                (_small(draw(found)), outlined, f"evidence for {name}"),
            )
            file = predictions.images[number].name if show_names else ""
            made.append(Card(title, words, pictures, file))
            bar.advance()
    return made


def _small(image: Image.Image) -> str:
    return data_uri(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))
