"""A tiny model judged on tiny images, and a reader of the page as a browser sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

from ogkd.data.case import Dataset
from ogkd.evaluation import LabelledPredictions
from ogkd.model.classifier import Classifier

# A name that would run a script and end the style sheet, were it not escaped.
HOSTILE = "</style><script>alert(1)</script> \"'><img src=x onerror=alert(2)>"
NAMES = ("benign tumor", HOSTILE, "normal lung")


@dataclass(frozen=True)
class World:
    classifier: Classifier
    dataset: Dataset
    predictions: LabelledPredictions


@dataclass
class Page(HTMLParser):
    """What a browser would make of the page."""

    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, *names: str) -> list[tuple[str, dict[str, str]]]:
        return [(tag, attrs) for tag, attrs in self.tags if tag in names]


def read_page(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    return page
