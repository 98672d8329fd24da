"""The Gradio page and its API: one upload in, one answer out, nothing kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ogkd.app.answers import answers, as_json
from ogkd.app.models import Model
from ogkd.app.render import render_answers, render_error, render_header, render_welcome
from ogkd.app.uploads import Uploads
from ogkd.errors import DataError, OgkdError

__all__ = ["TROUBLE", "make_page"]

TROUBLE = "Something went wrong on the server. Its terminal says what."
_AT_ONCE = 1  # images under work; a model keeps every core busy by itself

_T = TypeVar("_T")

log = logging.getLogger("ogkd.app")


def make_page(models: Sequence[Model], uploads: Uploads, *, max_bytes: int, waiting: int) -> Any:
    """The page (`gradio.Blocks`) for these models."""
    import gradio as gr

    def ask(image: Path | None) -> tuple[None, str]:
        """The page's answer; the field is emptied for the next image."""
        if image is None:
            return None, render_welcome()
        return None, _told(lambda: _page_answer(models, uploads, image), render_error)

    def classify(image: Path | None, pictures: bool = False) -> dict[str, Any]:
        """Classify one uploaded image with every model; `pictures` adds evidence maps."""

        def refuse(message: str) -> dict[str, Any]:
            raise gr.Error(message, print_exception=False)

        if image is None:
            return refuse("No image was given. Upload one first.")
        return _told(lambda: _api_answer(models, uploads, image, bool(pictures)), refuse)

    limits = (
        f"PNG, JPEG or DICOM, up to {max_bytes / 1e6:g} MB and "
        f"{uploads.max_pixels / 1e6:g} megapixels."
    )
    with gr.Blocks(title="ogkd", analytics_enabled=False) as page:
        gr.HTML(render_header(models, limits), apply_default_css=False, js_on_load=None)
        field = gr.File(
            label="Image (PNG, JPEG, DICOM)",
            height=150,
            elem_id="ogkd-upload",
        )
        shown = gr.HTML(
            render_welcome(), elem_id="ogkd-answer", apply_default_css=False, js_on_load=None
        )
        clear = gr.Button("Clear", size="sm", elem_id="ogkd-clear")
        same: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": _AT_ONCE}
        field.upload(ask, field, [field, shown], api_visibility="private", **same)
        clear.click(
            lambda: (None, render_welcome()), None, [field, shown], api_visibility="private"
        )
        flag = gr.Checkbox(False, label="pictures", visible=False)
        result = gr.JSON(visible=False)
        gr.Button(visible=False).click(classify, [field, flag], result, api_name="classify", **same)
    _take_only_uploads(page, field, uploads)
    page.queue(max_size=waiting, default_concurrency_limit=_AT_ONCE, api_open=False)
    return page


def _take_only_uploads(page: Any, field: Any, uploads: Uploads) -> None:
    """Let a request name an upload and nothing else.

    By itself Gradio downloads addresses that it is given, and copies files. The methods are
    replaced in these two objects: for a class of one's own Gradio writes a file beside its source.
    """
    import gradio as gr

    inner = page.preprocess_data

    async def preprocess_data(block_fn: Any, inputs: list[Any], *rest: Any, **more: Any) -> Any:
        """First of all, before anything else looks at what is named."""
        try:
            if len(inputs) != len(block_fn.inputs):
                raise DataError("The data must be a list of an uploaded file and true or false.")
            for block, value in zip(block_fn.inputs, inputs, strict=True):
                if block is field and value is not None:
                    uploads.find(_named(value))
        except OgkdError as error:
            raise gr.Error(str(error), print_exception=False) from None
        return await inner(block_fn, inputs, *rest, **more)

    async def stay(place: Any) -> str:
        return str(uploads.find(str(place)))

    def preprocess(payload: Any) -> Path | None:
        return None if payload is None else uploads.find(payload.path)

    page.preprocess_data = preprocess_data
    field.async_move_resource_to_block_cache = stay
    field.preprocess = preprocess


def _named(value: Any) -> str:
    """The path in a request's file record; a record that is none names nothing."""
    whole = isinstance(value, dict) and value.get("meta") == {"_type": "gradio.FileData"}
    return str(value.get("path")) if whole else ""


def _told(work: Callable[[], _T], refuse: Callable[[str], _T]) -> _T:
    """Do the work; what goes wrong is told in words, never as a traceback."""
    try:
        return work()
    except OgkdError as error:
        return refuse(str(error))
    except Exception:
        log.exception("An image could not be answered.")
        return refuse(TROUBLE)


def _page_answer(models: Sequence[Model], uploads: Uploads, image: Path) -> str:
    with uploads.take(image) as picture:
        return render_answers(picture, answers(models, picture))


def _api_answer(
    models: Sequence[Model], uploads: Uploads, image: Path, pictures: bool
) -> dict[str, Any]:
    with uploads.take(image) as picture:
        return as_json(picture, answers(models, picture, pictures=pictures), pictures=pictures)
