"""The routes of a served model: the page's files, /predict, /model, /health and their OpenAPI."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from PIL import Image
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from ogkd.errors import DataError, OgkdError
from ogkd.images import SliceRule, data_uri
from ogkd.model.card import CAUTION
from ogkd.records import first_problem
from ogkd.serve.guard import problem
from ogkd.serve.models import Model, answers, describe
from ogkd.serve.uploads import FORMATS, MIDDLE, display_name, read_upload

STATIC = Path(__file__).parent / "static"
OPENAPI = Path(__file__).parent / "openapi.json"
_PREVIEW = 640  # pixels of the longer side
_MAX_FILES = 2000  # of one upload
log = logging.getLogger("ogkd.serve")


def use_routes(
    model: Callable[[], Model | None],
    folder: Path,
    max_bytes: int,
    worker: Executor,
    *,
    frame: SliceRule = MIDDLE,
    **facts: Any,
) -> list[Route]:
    """The routes by which a model is used; `model` gives the one that answers now, if there is one.

    An upload is in `folder` until `worker` has answered it; /model also gives `facts`.
    """

    def answer(files: Mapping[Path, str], images: bool) -> dict[str, Any]:
        current = model()
        if current is None:
            raise DataError("There is no model yet. Label at least one image of each class.")
        upload = read_upload(files, frame=frame, whole=current.joins_images)
        given = list(answers(current, upload, images=images))
        height, width = upload.pixels.shape[:2]
        image = {"name": upload.name, "width": width, "height": height, "note": upload.note}
        if images:
            image["preview"] = data_uri(Image.fromarray(upload.pixels), most=_PREVIEW)
        return {"image": image, "models": given, "caution": CAUTION}

    async def predict(request: Request) -> Response:
        images = request.query_params.get("images", "").lower() in ("1", "true", "yes")
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as name:
            files = await receive_files(request, Path(name))
            if not files:
                return problem("Send the bytes of an image file as the body of the request.")
            return JSONResponse(await asyncio.wrap_future(worker.submit(answer, files, images)))

    async def about(_: Request) -> Response:
        current = model()
        described = [] if current is None else [describe(current)]
        limits = {"formats": FORMATS, "max_bytes": max_bytes}
        return JSONResponse({"models": described, "caution": CAUTION, **limits, **facts})

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "version": version("ogkd")})

    return [
        Route("/predict", predict, methods=["POST"]),
        Route("/model", about),
        Route("/health", health),
    ]


async def receive_files(request: Request, folder: Path) -> dict[Path, str]:
    """Write the body, or the files of a form, into a folder; with the user's names for them."""
    kind = request.headers.get("content-type", "").lower()
    if not kind.startswith("multipart/form-data"):
        file = folder / "0.upload"
        name = display_name(request.query_params.get("name", ""))
        return {file: name} if await receive_file(request, file) else {}
    files: dict[Path, str] = {}
    async with request.form(max_files=_MAX_FILES) as form:
        for number, (_, part) in enumerate(form.multi_items()):
            if isinstance(part, UploadFile):
                file = folder / f"{number}.upload"
                with file.open("wb") as target:
                    shutil.copyfileobj(part.file, target)
                files[file] = display_name(part.filename or "")
    return files


async def receive_file(request: Request, file: Path) -> int:
    """Write the body of a request to a file; how many bytes it had."""
    with file.open("wb") as target:
        async for chunk in request.stream():
            target.write(chunk)
        return target.tell()


def page_routes() -> list[BaseRoute]:
    """The page's own files, and the description of the API that programs may rely on."""
    return [
        Route("/", lambda _: FileResponse(STATIC / "index.html")),
        Route("/favicon.ico", lambda _: FileResponse(STATIC / "icon.svg")),
        Route("/openapi.json", lambda _: FileResponse(OPENAPI)),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def error_handlers() -> dict[Any, Callable[[Request, Any], Response]]:
    """Errors as answers: one sentence, never a traceback."""

    def internal(_: Request, error: Exception) -> Response:
        log.error("A request failed.", exc_info=error)
        return problem("Something went wrong on the server. See its terminal for details.", 500)

    return {
        OgkdError: lambda _, error: problem(str(error), 422),
        ValidationError: lambda _, error: problem(first_problem(error), 422),
        HTTPException: lambda _, error: problem(error.detail, error.status_code),
        ClientDisconnect: lambda *_: problem("The request was cut off."),
        Exception: internal,
    }
