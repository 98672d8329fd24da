"""What a report is about: a model and its answers on labelled images, and how images are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.evaluation import LabelledPredictions
from ogkd.images import data_uri
from ogkd.model.classifier import Classifier
from ogkd.model.explain import evidence
from ogkd.model.picture import heat_map
from ogkd.progress import progress_bar

SIDE = 256  # pixels of an image on a card
_OUTLINED = 8  # patches; more would hide the image


class Words(NamedTuple):
    """What a card says about an image, and about the copy with the evidence."""

    title: str
    text: str
    image: str
    caption: str
    heat: str


@dataclass(frozen=True)
class Subject:
    """A model, what it says about labelled images, and what that is worth."""

    classifier: Classifier
    predictions: LabelledPredictions
    result: Mapping[str, Any]  # the value of `evaluate_predictions`
    show_names: bool = False
    images: bool = True

    @cached_property
    def p(self) -> NDArray[np.float32]:
        """Probabilities [N, C], calibrated if the model is."""
        return self.predictions.probabilities(self.classifier.calibration)

    def file(self, number: int) -> str:
        """The file name of an image, if names are shown."""
        return self.predictions.images[number].name if self.show_names else ""

    def cards(
        self, chosen: Sequence[tuple[int, int]], describe: Callable[[int, int], Words]
    ) -> list[dict[str, Any]]:
        """Images as the model saw them, and with the evidence for a class drawn in.

        `chosen` are the numbers of images, each with its class; none if images are not shown.
        """
        if not self.images or not chosen:
            return []
        rows, columns = self.classifier.backbone.patch_grid
        refs = [self.predictions.images[number] for number, _ in chosen]
        labels = [label for _, label in chosen]
        maps = evidence(self.classifier, refs, labels=labels, top=min(_OUTLINED, rows * columns))
        made = []
        with progress_bar("Drawing evidence", len(chosen)) as bar:
            for (number, label), found in zip(chosen, maps, strict=True):
                both = found.image.convert("RGB"), heat_map(found).convert("RGB")
                image, heat = (
                    data_uri(one.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for one in both
                )
                said = describe(number, label)
                name = self.predictions.class_names[label]
                pictures = (
                    (image, said.image, said.caption),
                    (heat, said.heat, f"evidence for {name}"),
                )
                card = {"title": said.title, "words": said.text, "pictures": pictures}
                made.append(card | {"file": self.file(number)})
                bar.advance()
        return made
