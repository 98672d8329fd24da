"""What all pages share: templates, one style sheet, images inside the page. No scripts."""

from __future__ import annotations

import base64
import io
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

__all__ = ["data_uri", "render"]


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


def data_uri(image: Image.Image) -> str:
    """A JPEG inside the page, so that it loads nothing from elsewhere."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
