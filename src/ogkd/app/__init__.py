"""`ogkd app`: a page and an API that apply fitted models to one image at a time.

`guard`, `uploads`, `web` and `server` also carry the studio.
"""

from ogkd.app.models import Model, load_models
from ogkd.app.server import Settings, serve_models

__all__ = ["Model", "Settings", "load_models", "serve_models"]
