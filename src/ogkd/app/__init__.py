"""`ogkd app`: a page and an API that apply fitted models to one image at a time."""

from ogkd.app.models import Model, load_models
from ogkd.app.server import Settings, serve

__all__ = ["Model", "Settings", "load_models", "serve"]
