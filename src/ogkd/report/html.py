"""What all pages share: templates, one style sheet, and how numbers are printed. No scripts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


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
