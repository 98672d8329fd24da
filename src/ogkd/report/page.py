"""What all pages share: templates, charts, and cards of images. No scripts.

Charts need no drawing library: the same input gives the same bytes, text stays text, and the
colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from ogkd.data.case import Case
from ogkd.evaluation import LabelledPredictions
from ogkd.evaluation.sections import Card, Chart, Dot, Line
from ogkd.images import data_uri
from ogkd.model.classifier import Classifier
from ogkd.model.drawing import heat_map
from ogkd.model.explain import evidence_of
from ogkd.progress import progress_bar

SIDE = 256  # pixels of an image on a card
_BATCH = 8  # images encoded at once
_TOPS = ((0.05, 5), (0.1, 5), (0.2, 4), (0.3, 3), (0.4, 4), (0.6, 3), (0.8, 4), (1.0, 5))
DARKEST = 0.55  # opacity of a cell's colour; the text on it stays readable in light and dark

Tick = tuple[float, str]  # a mark on an axis: position in SVG units, text


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ogkd.report"),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name in a template is an error, not a gap
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # A number never breaks before its sign.
        finalize=lambda value: value.replace(" %", "\u00a0%") if isinstance(value, str) else value,
    )
    environment.filters.update(drawing=Drawing, shade=shade)
    return environment


def render(template: str, **values: object) -> str:
    """The page's text, with the style sheet inside; all values are escaped."""
    sheet = Path(__file__).with_name("templates") / "style.css"
    style = Markup(sheet.read_text(encoding="utf-8"))  # ours, so not escaped
    return _environment().get_template(template).render(style=style, side=SIDE, **values)


@dataclass(frozen=True)
class Drawing:
    """A chart whose shares 0..1 are positions in a frame; the y axis ends above the highest."""

    chart: Chart
    width, height = 380, 270
    left, right, top, bottom = 58, width - 22, 12, height - 46  # room for ticks and titles

    @cached_property
    def _axis(self) -> tuple[float, int]:
        """The end of the y axis, and how many steps lead there."""
        lines = [y for line in self.chart.lines for y in line.y]
        highest = max([0.0, *lines, *(dot.y for dot in self.chart.dots)])
        return next((end, steps) for end, steps in _TOPS if highest <= end + 1e-9)

    def x(self, value: float) -> float:
        return round(self.left + value * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        return round(self.bottom - value / self._axis[0] * (self.bottom - self.top), 1)

    @property
    def x_ticks(self) -> list[Tick]:
        return [(self.x(step / 5), f"{20 * step} %") for step in range(6)]

    @property
    def y_ticks(self) -> list[Tick]:
        end, steps = self._axis
        values = [end * step / steps for step in range(steps + 1)]
        return [(self.y(value), f"{100 * value:.0f} %") for value in values]

    def points(self, line: Line) -> str:
        return " ".join(f"{self.x(x)},{self.y(y)}" for x, y in zip(line.x, line.y, strict=True))

    def radius(self, dot: Dot) -> float:
        return round(3.0 + 7.0 * math.sqrt(dot.weight), 1)


def shade(share: float) -> str:
    """The opacity of a cell in a shaded table."""
    return f"{DARKEST * share:.3f}"


@dataclass(frozen=True)
class Subject:
    """A model, what it says about labelled images, and what of that is shown."""

    classifier: Classifier
    predictions: LabelledPredictions
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
        self,
        chosen: Sequence[tuple[int, int]],
        describe: Callable[[Subject, int, int], tuple[str, str]],
    ) -> tuple[Card, ...]:
        """Images as the model saw them, and with the evidence for a class drawn in.

        `chosen` are the numbers of images, each with its class; none if images are not shown.
        `describe` gives the title and the text of a card.
        """
        if not self.images or not chosen:
            return ()
        cases = [Case.single(self.predictions.images[number]) for number, _ in chosen]
        decisions = self.classifier.decide(cases, crops=True, batch_size=_BATCH)
        cards = []
        with progress_bar("Drawing evidence", len(chosen)) as bar:
            for (number, label), decision in zip(chosen, decisions, strict=True):
                evidence = evidence_of(self.classifier, decision, label=label)
                title, text = describe(self, number, label)
                name = self.predictions.class_names[label]
                shown = f"An image: {title}"
                images = [(_copy(decision.crop), shown, "what it saw")]
                if evidence is not None and evidence.shown:
                    heat = _copy(np.asarray(heat_map(evidence)))
                    marked = f"The same image; red speaks for {name}, blue against it"
                    images.append((heat, marked, f"evidence for and against {name}"))
                text += self._deciding(number)
                cards.append(Card(title, text, tuple(images), self.file(number)))
                bar.advance()
        return tuple(cards)


def _copy(pixels: NDArray[np.uint8] | None) -> str:
    image = Image.fromarray(pixels if pixels is not None else np.zeros((SIDE, SIDE, 3), np.uint8))
    return data_uri(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))
