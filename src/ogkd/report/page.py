"""What all pages share: templates, how numbers are printed, and cards of images. No scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from ogkd.data.case import Case
from ogkd.evaluation import LabelledPredictions
from ogkd.images import data_uri
from ogkd.model.classifier import Classifier
from ogkd.model.drawing import heat_map
from ogkd.model.explain import evidence_of
from ogkd.progress import progress_bar

SIDE = 256  # pixels of an image on a card
_BATCH = 8  # images encoded at once


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ogkd.report"),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name in a template is an error, not a gap
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(percent=percent, share=share, between=between)
    return environment


def render(template: str, **values: object) -> str:
    """The page's text, with the style sheet inside; all values are escaped."""
    sheet = Path(__file__).with_name("templates") / "style.css"
    style = Markup(sheet.read_text(encoding="utf-8"))  # ours, so not escaped
    return _environment().get_template(template).render(style=style, **values)


def percent(value: float) -> str:
    """A percentage in a sentence, with one decimal if it needs one."""
    return f"{100 * value:.1f}".removesuffix(".0") + "\u00a0%"


def share(value: float | None) -> str:
    """A percentage in a table, always with one decimal so that columns align."""
    return "-" if value is None else f"{100 * value:.1f}\u00a0%"


def between(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f} %"


def join_words(words: Sequence[str]) -> str:
    """The words in a row, with commas and a final "and"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


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

    def _deciding(self, number: int) -> str:
        """What the image on a card has to do with its case, where that has others."""
        if self.predictions.unit == "image":
            return ""
        best = self.predictions.decisions[number].deciding[0]
        part = f" ({best.image.part})" if best.image.part else ""
        return f"; the image that decided{part}, {100 * best.weight:.0f} % of the answer"

    def cards(
        self, chosen: Sequence[tuple[int, int]], describe: Callable[[int, int], Words]
    ) -> list[dict[str, Any]]:
        """Images as the model saw them, and with the evidence for a class drawn in.

        `chosen` are the numbers of images, each with its class; none if images are not shown.
        """
        if not self.images or not chosen:
            return []
        cases = [Case.single(self.predictions.images[number]) for number, _ in chosen]
        decisions = self.classifier.decide(cases, crops=True, batch_size=_BATCH)
        cards = []
        with progress_bar("Drawing evidence", len(chosen)) as bar:
            for (number, label), decision in zip(chosen, decisions, strict=True):
                evidence = evidence_of(self.classifier, decision, label=label)
                words = describe(number, label)
                name = self.predictions.class_names[label]
                images = [(_copy(decision.crop), words.image, words.caption)]
                if evidence is not None:
                    heat = _copy(np.asarray(heat_map(evidence)))
                    images.append((heat, words.heat, f"evidence for and against {name}"))
                text = words.text + self._deciding(number)
                card = {"title": words.title, "words": text, "images": images}
                cards.append(card | {"file": self.file(number)})
                bar.advance()
        return cards


def _copy(pixels: NDArray[np.uint8] | None) -> str:
    image = Image.fromarray(pixels if pixels is not None else np.zeros((SIDE, SIDE, 3), np.uint8))
    return data_uri(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))
