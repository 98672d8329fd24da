"""Small copies of images with what the model looked at, inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.model.explain import draw, evidence
from ogkd.progress import progress_bar

if TYPE_CHECKING:
    from ogkd.evaluation import Judged
    from ogkd.model.classifier import Classifier

__all__ = ["Card", "Picture", "cards", "confident_mistakes", "right_examples"]

_SIDE = 256  # pixels
_MOST = 12  # cards in a gallery: keeps the page below 3 MB
_OUTLINED = 8  # patches; more would hide the picture


@dataclass(frozen=True)
class Picture:
    """One image as a data URI, with words for those who do not see it."""

    source: str
    text: str
    caption: str
    size: int = _SIDE


@dataclass(frozen=True)
class Card:
    """One image of the data: as the model saw it, and with what it went by."""

    title: str
    words: str
    pictures: tuple[Picture, ...]
    file: str = ""


def confident_mistakes(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> NDArray[np.intp]:
    """Numbers of the wrongly named images, the surest first, as many as are shown."""
    wrong = np.flatnonzero(probabilities.argmax(axis=1) != labels)
    sure = probabilities[wrong].max(axis=1)
    return wrong[np.argsort(-sure, kind="stable")][:_MOST]


def right_examples(
    labels: NDArray[np.integer], probabilities: NDArray[np.floating]
) -> NDArray[np.intp]:
    """For each class the correctly named image that the model is surest of, where there is one."""
    sure = np.where(probabilities.argmax(axis=1) == labels, probabilities.max(axis=1), -1.0)
    found = []
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        best = mine[np.argmax(sure[mine])]
        if sure[best] >= 0:
            found.append(best)
    return np.asarray(found[:_MOST], np.intp)


def cards(
    classifier: Classifier,
    judged: Judged,
    probabilities: NDArray[np.floating],
    chosen: Sequence[int] | NDArray[np.intp],
    *,
    show_names: bool,
) -> list[Card]:
    """A card for each chosen image: the evidence is that for the class the model named."""
    numbers = [int(number) for number in chosen]
    if not numbers:
        return []
    said = probabilities.argmax(axis=1)
    paths = [judged.images[number] for number in numbers]
    labels = [int(said[number]) for number in numbers]
    made = []
    with progress_bar("Drawing evidence", len(numbers)) as bar:
        shown = evidence(classifier, paths, labels=labels, top=_outlined(classifier))
        for number, found in zip(numbers, shown, strict=True):
            row = probabilities[number]
            name = judged.class_names[int(said[number])]
            truth = judged.class_names[int(judged.labels[number])]
            wrong = name != truth
            made.append(
                Card(
                    title=f"{truth}, taken for {name}" if wrong else truth,
                    words=_words(row, int(judged.labels[number]), judged.class_names),
                    pictures=(
                        _picture(found.image, f"An image of the class {truth}", "what it saw"),
                        _picture(
                            draw(found),
                            f"The same image; the patches that speak most for {name} are outlined",
                            f"what speaks for {name}",
                        ),
                    ),
                    file=judged.images[number].name if show_names else "",
                )
            )
            bar.advance()
    return made


def _outlined(classifier: Classifier) -> int:
    rows, columns = classifier.backbone.patch_grid
    return min(_OUTLINED, rows * columns)


def _words(row: NDArray[np.floating], truth: int, names: Sequence[str]) -> str:
    best = int(row.argmax())
    text = f"{100 * row[best]:.0f} % sure of {names[best]}"
    return text if best == truth else f"{text}, {100 * row[truth]:.0f} % for {names[truth]}"


def _picture(image: Image.Image, text: str, caption: str) -> Picture:
    small = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    source = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    return Picture(source, text, caption)
