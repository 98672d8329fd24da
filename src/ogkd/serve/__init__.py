"""The page: `ogkd app` applies fitted models to images, `studio` teaches them.

`guard`, `uploads`, `web` and `server` also carry the studio.
"""

from ogkd.serve.models import Model, load_models
from ogkd.serve.server import Settings, serve_models

__all__ = ["Model", "Settings", "load_models", "serve_models"]
