"""The routes of the studio's page: JSON in and out, images, downloads.

A request names images by their number in the gallery, never by a path.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, StrictInt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ogkd.data.fetch import unpack
from ogkd.errors import ConfigError
from ogkd.files import folder_atomically
from ogkd.images.decode import EXTENSIONS
from ogkd.serve.guard import Guard, problem
from ogkd.serve.models import Model
from ogkd.serve.server import Settings, guarded, one_worker
from ogkd.serve.studio.exports import hand_over
from ogkd.serve.studio.images import THUMB, VIEW
from ogkd.serve.studio.project import UPLOADS, ClassInfo, Conflict, State
from ogkd.serve.studio.session import Session, texts_for
from ogkd.serve.uploads import display_name
from ogkd.serve.web import page_routes, receive_file, use_routes

_MAX_ZIP = 2_000_000_000


class Window(BaseModel):
    """Which window asks."""

    by: str = Field(default="", max_length=100)


class Click(Window):
    row: StrictInt
    state: State = "label"
    label: str | None = None
    seen: StrictInt | None = None  # the number of the last mark that the window knows


class Classes(BaseModel):
    classes: tuple[ClassInfo, ...]
    renames: dict[str, str] = {}


class Changes(BaseModel):
    patient: str | None


def make_studio(session: Session, folder: Path, settings: Settings) -> Guard:
    """The page of the studio behind its guard."""
    worker, size = one_worker(), settings.max_bytes

    def current() -> Model | None:
        fitted = session.fitted
        if fitted is None or fitted.missing:
            return None
        return Model(session.project.folder.name, fitted.decider)

    use = use_routes(current, folder, size, worker, studio=True)
    routes = [*use, *studio_routes(session, folder, worker), *page_routes()]
    return guarded(routes, settings, {"/api/upload": _MAX_ZIP}, {Conflict: _conflict})


def _conflict(_: Request, error: Conflict) -> Response:
    mark = {"label": error.mark.label, "state": error.mark.state, "number": error.mark.number}
    return problem(str(error), 409, **mark)


def studio_routes(session: Session, folder: Path, worker: Executor) -> list[Route]:
    project = session.project
    exporting = one_worker()  # beside the other: nobody who labels waits for a file

    def following(request: Request) -> Any:
        rows = session.queue(by=request.query_params.get("by", "")[:100])
        return {"rows": rows, "version": session.version}

    def label(click: Click) -> Any:
        address = session.gallery.addresses[session.gallery.row(click.row)]
        mark = project.mark(address, click.state, click.label, by=click.by, seen=click.seen)
        session.changed()
        return {"number": mark.number, "state": mark.state, "label": mark.label}

    def undo(window: Window) -> Any:
        mark = project.undo(window.by)
        session.changed()
        row = None if mark is None else session.gallery.rows.get(mark.image)
        return {"row": row, "state": None if mark is None else mark.state}

    def classes(body: Classes) -> Any:
        project.set_classes(body.classes, body.renames)
        session.changed()
        return session.state_json()

    def settings_changed(body: Changes) -> Any:
        project.set_facts(patient=body.patient or None)
        session.changed()
        return session.state_json()

    async def upload(request: Request) -> Response:
        """One image or a zip of images, which the user wants in the project."""
        with tempfile.TemporaryDirectory(dir=folder) as received:
            file = Path(received) / display_name(request.query_params.get("name", ""))[-120:]
            if not await receive_file(request, file):
                return problem("The file is empty.")
            await asyncio.to_thread(_keep, file, project.folder / UPLOADS)
        if request.query_params.get("last") == "1":
            await asyncio.to_thread(session.rescan)
        return JSONResponse(session.state_json())

    async def download(_: Request) -> Response:
        await asyncio.to_thread(session.settle)
        content = await asyncio.wrap_future(exporting.submit(hand_over, session, folder))
        shown = {"content-disposition": f'attachment; filename="{project.folder.name}.zip"'}
        return Response(content, media_type="application/zip", headers=shown)

    def thumbnail(request: Request, side: int) -> Response:
        row = session.gallery.row(request.path_params["row"])
        return Response(session.gallery.thumbnail(row, side), media_type="image/jpeg")

    async def look(request: Request) -> Response:
        row = session.gallery.row(request.path_params["row"])
        evidence = request.query_params.get("evidence") == "1"
        job = worker.submit(session.image_json, row, evidence=evidence)
        return JSONResponse(await asyncio.wrap_future(job))

    answers: dict[str, Callable[[Request], Any]] = {
        "/api/state": lambda _: session.state_json(),
        "/api/images": lambda _: session.images_json(),
        "/api/next": following,
        "/api/texts": lambda request: {"texts": texts_for(request.query_params.get("name", ""))},
    }
    changes: dict[str, tuple[type[BaseModel], Callable[[Any], Any]]] = {
        "/api/label": (Click, label),
        "/api/undo": (Window, undo),
        "/api/classes": (Classes, classes),
        "/api/settings": (Changes, settings_changed),
    }
    return [
        *(Route(path, _answered(make)) for path, make in answers.items()),
        *(Route(path, _changed(*change), methods=["POST"]) for path, change in changes.items()),
        Route("/api/look/{row}", look),
        Route("/thumb/{row}", functools.partial(thumbnail, side=THUMB)),
        Route("/image/{row}", functools.partial(thumbnail, side=VIEW)),
        Route("/api/export", download),
        Route("/api/upload", upload, methods=["POST"]),
    ]


def _answered(make: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """A function that gives JSON as a handler, which Starlette runs in a thread."""

    def handler(request: Request) -> Response:
        return JSONResponse(make(request))

    return handler


def _changed(kind: type[BaseModel], change: Callable[[Any], Any]) -> Callable[[Request], Any]:
    """A function of a record as a handler of the JSON objects that it is read from."""

    async def handler(request: Request) -> Response:
        body = kind.model_validate_json(await request.body())
        return JSONResponse(await asyncio.to_thread(change, body))

    return handler


def _keep(file: Path, target: Path) -> None:
    """Move an image into the project, or the images of an archive."""
    target.mkdir(exist_ok=True)
    if file.suffix.lower() == ".zip":
        with folder_atomically(_unused(target / file.stem)) as temporary:
            unpack(file, temporary)
        return
    if not file.name.lower().endswith(tuple(EXTENSIONS)):
        raise ConfigError(f"'{file.name}' is not an image or a zip archive of images.")
    shutil.move(file, _unused(target / file.name))


def _unused(path: Path) -> Path:
    """The path, or one with a number if it exists: nothing is replaced."""
    number, first = 2, path
    while path.exists():
        path, number = first.with_stem(f"{first.stem}-{number}"), number + 1
    return path
