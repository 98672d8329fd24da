"""The routes of a served model: the page's files, /predict, /model, /health and their OpenAPI."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

from ogkd.app.models import PREVIEW, Model, answers, as_json
from ogkd.app.multipart import boundary_of, write_parts
from ogkd.app.uploads import FORMATS, Uploads
from ogkd.errors import DataError, OgkdError
from ogkd.files import read_json
from ogkd.images import data_uri
from ogkd.model.card import CAUTION

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

STATIC = Path(__file__).parent / "static"
_MOST_SAID = 800  # characters of a refusal, which may quote what was sent
INTERNAL_ERROR = "Something went wrong on the server. See its terminal for details."
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_TYPES |= {".json": "application/json", ".svg": "image/svg+xml"}
log = logging.getLogger("ogkd.app")
T = TypeVar("T")


class Line:
    """Work in a thread, one job at a time: one model already keeps every core busy."""

    def __init__(self, most: int) -> None:
        self.most, self.waiting = most, 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ogkd-predict")

    @property
    def is_full(self) -> bool:
        return self.waiting >= self.most

    async def run(self, job: Callable[[], T]) -> T:
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, job)
        finally:
            self.waiting -= 1


def use_routes(
    models: Callable[[], Sequence[Model]], uploads: Uploads, line: Line, *, max_bytes: int
) -> list[Route]:
    """The routes by which models are used; `models` gives those that answer now."""
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    def answer(files: Sequence[Path], pictures: bool) -> dict[str, Any]:
        asked = models()
        if not asked:
            raise DataError("There is no model yet. Label at least one image of each class.")
        exam = any(one.classifier.card.bags is not None for one in asked)
        with uploads.take(*files, exam=exam) as upload:
            found = answers(asked, upload, pictures=pictures)
            said = as_json(upload, found, pictures=pictures)
            if pictures:
                said["image"]["preview"] = data_uri(Image.fromarray(upload.pixels), most=PREVIEW)
        return said

    async def predict(request: Request) -> Response:
        try:
            wanted = flag(request, "pictures")
            place = uploads.place(request.query_params.get("name", "image"))
        except DataError as error:
            return JSONResponse({"detail": str(error)}, 503)
        try:
            if not (files := await receive_upload(request, place)):
                return problem(
                    "The file is empty. Send the bytes of an image file as the body of the request."
                )
            return JSONResponse(await line.run(lambda: answer(files, wanted)))
        except OgkdError as error:
            return problem(str(error), 422)
        except Exception:
            log.exception("An image could not be answered.")
            return problem(INTERNAL_ERROR, 500)
        finally:
            shutil.rmtree(place.parent, ignore_errors=True)

    async def receive_upload(request: Request, place: Path) -> list[Path]:
        """The body is a file, or several as a form sends them."""
        from starlette.requests import ClientDisconnect

        boundary = boundary_of(request.headers.get("content-type", ""))
        if boundary is None:
            return [place] if await receive_file(request, place, max_bytes) else []
        with contextlib.suppress(ClientDisconnect):
            own = partial(uploads.place_of_part, place.parent)
            return await write_parts(request.stream(), boundary, own)
        return []

    async def model(_: Request) -> Response:
        said = {
            "models": [describe(one) for one in models()],
            "caution": CAUTION,
            "formats": FORMATS,
            "max_bytes": max_bytes,
            "max_pixels": uploads.max_pixels,
        }
        return JSONResponse(said)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "version": version("ogkd")})

    return [
        Route("/predict", predict, methods=["POST"]),
        Route("/model", model),
        Route("/health", health),
        *static_routes(),
    ]


def describe(model: Model) -> dict[str, Any]:
    classifier = model.classifier
    return {
        "name": model.name,
        "method": classifier.card.method,
        "backbone": classifier.card.backbone.short_name,
        "classes": list(classifier.class_names),
        "normal": list(classifier.card.normal),
        "learned_from": list(classifier.card.support_counts),
        "calibrated": classifier.calibration is not None,
        "coverage": model.decider.coverage,
        "note": model.note,
        "bags": classifier.card.bags is not None,
    }


def flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() in ("1", "true", "yes")


def problem(message: str, status: int = 400) -> Response:
    from starlette.responses import JSONResponse

    if len(message) > _MOST_SAID:
        message = f"{message[:_MOST_SAID]} ..."
    return JSONResponse({"detail": message}, status)


async def receive_file(request: Request, place: Path, max_bytes: int) -> int:
    """Write the body of a request to a file; how many bytes it had (0 if the sender left)."""
    from starlette.requests import ClientDisconnect

    size = 0
    try:
        with place.open("wb") as target:
            async for chunk in request.stream():
                if (size := size + len(chunk)) > max_bytes:
                    raise DataError(f"The file is larger than the limit of {max_bytes / 1e6:g} MB.")
                target.write(chunk)
    except ClientDisconnect:
        return 0
    return size


def static_routes() -> list[Route]:
    """One route for each file of the page, and none for anything else."""
    from starlette.responses import Response
    from starlette.routing import Route

    def served(content: bytes, kind: str) -> Callable[[Request], Response]:
        return lambda _: Response(content, media_type=kind)

    routes = []
    for file in sorted(STATIC.iterdir()):
        if kind := _TYPES.get(file.suffix):
            path = "/" if file.name == "index.html" else f"/static/{file.name}"
            routes.append(Route(path, served(file.read_bytes(), kind)))
    routes.append(Route("/openapi.json", served_openapi))
    return routes


def served_openapi(_: Request) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(openapi())


@cache
def openapi() -> dict[str, Any]:
    """The description of the API that programs may rely on."""
    found: dict[str, Any] = read_json(Path(__file__).parent / "openapi.json")
    found["info"]["version"] = version("ogkd")
    return found
