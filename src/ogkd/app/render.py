"""Answers as HTML, every text escaped, pictures inside; nothing here knows of Gradio."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from ogkd.app.answers import Answer, data_uri
from ogkd.app.models import Model
from ogkd.app.uploads import Picture
from ogkd.model.card import CAUTION

__all__ = ["render_answers", "render_error", "render_header", "render_welcome", "style"]

_TEMPLATES = Path(__file__).parent / "templates"


def style() -> str:
    """The page's own CSS."""
    return (_TEMPLATES / "page.css").read_text(encoding="utf-8")


def render_header(models: Sequence[Model], limits: str) -> str:
    """Title, the caution, what the models are, and what may be uploaded."""
    return _render("header.html", models=models, caution=CAUTION, limits=limits)


def render_welcome() -> str:
    """What stands where the answer will be."""
    return _render("welcome.html")


def render_answers(picture: Picture, found: Sequence[Answer]) -> str:
    """The picture, and a card for each model."""
    said = {answer.ranked[0][0] for answer in found}
    height, width = picture.pixels.shape[:2]
    return _render(
        "answer.html",
        picture=picture,
        size=f"{width} x {height}",
        preview=data_uri(Image.fromarray(picture.pixels)),
        answers=found,
        agreed=said.pop() if len(said) == 1 else "",
    )


def render_error(message: str) -> str:
    """A message in place of an answer."""
    return _render("error.html", message=message)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(**values)
