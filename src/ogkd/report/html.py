"""What all pages share: templates and one style sheet. No scripts, nothing loaded."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("ogkd.report"),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name in a template is an error, not a gap
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **values: object) -> str:
    """The page's text, with the style sheet inside; all values are escaped."""
    sheet = Path(__file__).with_name("templates") / "style.css"
    style = Markup(sheet.read_text(encoding="utf-8"))  # ours, so not escaped
    return _environment().get_template(template).render(style=style, **values)
