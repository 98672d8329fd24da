"""The page: `ogkd app` applies fitted models to images, `studio` teaches them."""

from ogkd.errors import ConfigError


def require_server() -> None:
    """Raise a ConfigError if the extra is not installed, before any model is loaded."""
    try:
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            'The page needs a web server. Install it with: pip install "ogkd[serve]".'
        ) from error
