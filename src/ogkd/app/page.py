"""The Gradio page and its API: one upload in, one answer out, nothing kept.

Answers are HTML in which every text is escaped and all images are inside.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from ogkd.app.models import PREVIEW, Answer, Model, answers, as_json
from ogkd.app.uploads import Upload, Uploads
from ogkd.errors import DataError, OgkdError
from ogkd.model.card import CAUTION
from ogkd.model.explain import data_uri

_INTERNAL_ERROR = "Something went wrong on the server. See its terminal for details."
_WELCOME = '<div class="ogkd ogkd-welcome" role="status">The answer appears here.</div>'
_ERROR = Markup(
    '<div class="ogkd ogkd-error" role="alert"><strong>No answer.</strong> {message}</div>'
)
TEMPLATES = Path(__file__).parent / "templates"
_FILE = {"_type": "gradio.FileData"}  # what marks a file record in a request
_AT_ONCE = 1  # images processed at a time; one model already keeps every core busy

log = logging.getLogger("ogkd.app")


def make_page(models: Sequence[Model], uploads: Uploads, *, max_bytes: int, waiting: int) -> Any:
    import gradio as gr

    def ask(image: Path | None) -> tuple[None, str]:
        """The page's answer; the field is emptied for the next image."""
        if image is None:
            return None, _WELCOME
        try:
            with _answering(uploads, image) as upload:
                return None, render_answers(upload, answers(models, upload))
        except OgkdError as error:
            return None, render_error(str(error))

    def classify(image: Path | None, pictures: bool = False) -> dict[str, Any]:
        """Classify one uploaded image with every model; `pictures` adds evidence maps."""
        wanted = bool(pictures)
        try:
            if image is None:
                raise DataError("No image was given. Upload one first.")
            with _answering(uploads, image) as upload:
                return as_json(upload, answers(models, upload, pictures=wanted), pictures=wanted)
        except OgkdError as error:
            raise gr.Error(str(error), print_exception=False) from None

    megapixels = f"{uploads.max_pixels / 1e6:g} megapixels"
    limits = f"PNG, JPEG or DICOM, up to {max_bytes / 1e6:g} MB and {megapixels}."
    with gr.Blocks(title="ogkd", analytics_enabled=False) as page:
        gr.HTML(render_header(models, limits), apply_default_css=False, js_on_load=None)
        field = gr.File(label="Image (PNG, JPEG, DICOM)", height=150, elem_id="ogkd-upload")
        shown = gr.HTML(_WELCOME, elem_id="ogkd-answer", apply_default_css=False, js_on_load=None)
        clear = gr.Button("Clear", size="sm", elem_id="ogkd-clear")
        same: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": _AT_ONCE}
        field.upload(ask, field, [field, shown], api_visibility="private", **same)
        clear.click(lambda: (None, _WELCOME), None, [field, shown], api_visibility="private")
        flag = gr.Checkbox(False, label="pictures", visible=False)
        result = gr.JSON(visible=False)
        gr.Button(visible=False).click(classify, [field, flag], result, api_name="classify", **same)
    _accept_only_uploads(page, field, uploads)
    page.queue(max_size=waiting, default_concurrency_limit=_AT_ONCE, api_open=False)
    return page


def _accept_only_uploads(page: Any, field: Any, uploads: Uploads) -> None:
    """Let a request refer to an upload and nothing else.

    Gradio would otherwise download URLs that it is given, and copy files. The methods are
    replaced on these two objects: for a subclass, Gradio writes a file beside its source.
    """
    import gradio as gr

    inner = page.preprocess_data

    async def preprocess_data(block_fn: Any, inputs: list[Any], *rest: Any, **more: Any) -> Any:
        """Check the request before anything else uses the path in it."""
        try:
            if len(inputs) != len(block_fn.inputs):
                raise DataError("The data must be a list of an uploaded file and true or false.")
            for block, value in zip(block_fn.inputs, inputs, strict=True):
                if block is field and value is not None:
                    record = isinstance(value, dict) and value.get("meta") == _FILE
                    uploads.find(str(value.get("path")) if record else "")
        except OgkdError as error:
            raise gr.Error(str(error), print_exception=False) from None
        return await inner(block_fn, inputs, *rest, **more)

    async def keep_in_place(place: Any) -> str:
        return str(uploads.find(str(place)))

    def preprocess(payload: Any) -> Path | None:
        return None if payload is None else uploads.find(payload.path)

    page.preprocess_data = preprocess_data
    field.async_move_resource_to_block_cache = keep_in_place
    field.preprocess = preprocess


@contextlib.contextmanager
def _answering(uploads: Uploads, image: Path) -> Iterator[Upload]:
    """The upload; every error becomes a message for the user, never a traceback."""
    try:
        with uploads.take(image) as upload:
            yield upload
    except OgkdError:
        raise
    except Exception:
        log.exception("An image could not be answered.")
        raise DataError(_INTERNAL_ERROR) from None


def render_header(models: Sequence[Model], limits: str) -> str:
    return _render("header.html", models=models, caution=CAUTION, limits=limits)


def render_answers(upload: Upload, found: Sequence[Answer]) -> str:
    predicted = {answer.ranked[0][0] for answer in found}
    height, width = upload.pixels.shape[:2]
    return _render(
        "answer.html",
        upload=upload,
        size=f"{width} x {height}",
        preview=data_uri(Image.fromarray(upload.pixels), most=PREVIEW),
        answers=found,
        agreed=predicted.pop() if len(predicted) == 1 else "",
    )


def render_error(message: str) -> str:
    return str(_ERROR.format(message=message))


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(template: str, **values: object) -> str:
    return _environment().get_template(template).render(**values)
