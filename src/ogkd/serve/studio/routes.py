"""The routes of the studio's page: JSON in and out, images, downloads.

A request names images by their number in the gallery, never by a path.
"""

from __future__ import annotations

import asyncio
import functools
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ogkd.data.fetch import unpack
from ogkd.data.tables import read_table
from ogkd.data.tasks import require_classes
from ogkd.errors import ConfigError, DataError, OgkdError
from ogkd.files import folder_atomically, home, parse_json
from ogkd.images.decode import EXTENSIONS
from ogkd.model.decide import Decider
from ogkd.serve.guard import Guard
from ogkd.serve.models import Model
from ogkd.serve.server import Settings, guarded
from ogkd.serve.studio import exports
from ogkd.serve.studio.facts import ClassInfo
from ogkd.serve.studio.fitted import Fitted
from ogkd.serve.studio.images import THUMB, VIEW, match_paths
from ogkd.serve.studio.project import UPLOADS, Conflict
from ogkd.serve.studio.session import Session, texts_for
from ogkd.serve.studio.state import detail, images_json, state_json
from ogkd.serve.uploads import UploadReader, receive_file
from ogkd.serve.web import Worker, describe_all, problem, use_routes

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

_MAX_ZIP = 2_000_000_000
Body = dict[str, Any]


def make_studio(session: Session, folder: Path, settings: Settings) -> Guard:
    """The page of the studio behind its guard."""
    reader, worker = UploadReader(settings.max_pixels), Worker()
    current = CurrentModel(session)
    use = use_routes(current, reader, worker, folder=folder, max_bytes=settings.max_bytes)
    routes = [route for route in use if route.path != "/model"]
    routes += _routes(session, current, folder, settings, worker)
    limits = {"/api/upload": _MAX_ZIP, "/api/import": settings.max_bytes}
    return guarded(routes, settings, limits, {Conflict: _conflict})


def _conflict(_: Request, error: Conflict) -> Response:
    from starlette.responses import JSONResponse

    mark = {"label": error.mark.label, "state": error.mark.state, "number": error.mark.number}
    return JSONResponse({"detail": str(error), **mark}, 409)


class CurrentModel:
    """The studio's model as something that can be asked; made when it is first asked."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fitted: Fitted | None = None
        self.made: list[Model] = []

    def __call__(self) -> list[Model]:
        fitted = self._session.fitted
        if fitted is None or fitted.missing:
            return []
        if self._fitted is not fitted:
            classifier = exports.classifier_of(self._session, whole_card=False)
            self.made = [Model(self._session.project.folder.name, Decider(classifier))]
            self._fitted = fitted
        return self.made


def _routes(
    session: Session, current: CurrentModel, folder: Path, settings: Settings, worker: Worker
) -> list[Route]:
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    project = session.project
    exporting = Worker()  # beside the other: nobody who labels waits for a file

    async def model(_: Request) -> Response:
        body = describe_all(current.made, settings.max_bytes, settings.max_pixels)
        return JSONResponse({**body, "studio": True})

    async def state(request: Request) -> Response:
        return JSONResponse(state_json(session))

    async def images(_: Request) -> Response:
        return JSONResponse(images_json(session))

    async def following(request: Request) -> Response:
        by = request.query_params.get("by", "")[:100]
        rows = await worker.run(lambda: session.queue(by=by))
        return JSONResponse({"rows": rows, "version": session.version})

    async def thumbnail(request: Request, side: int) -> Response:
        row = session.row(_number(request))
        content = await asyncio.to_thread(session.gallery.thumbnail, row, side)
        return Response(content, media_type="image/jpeg")

    async def look(request: Request) -> Response:
        row = session.row(_number(request))
        evidence = request.query_params.get("evidence") == "1"
        return JSONResponse(await worker.run(lambda: detail(session, current, row, evidence)))

    async def similar(request: Request) -> Response:
        row = session.row(_number(request))
        return JSONResponse({"rows": await asyncio.to_thread(session.similar, row)})

    async def label(body: Body) -> Any:
        address = session.gallery.addresses[session.row(body.get("row"))]
        by, seen = _word(body, "by"), body.get("seen")
        if seen is not None and type(seen) is not int:
            raise ConfigError("'seen' must be the number of a mark.")
        mark = await asyncio.to_thread(
            functools.partial(
                project.mark,
                address,
                body.get("state", "label"),
                body.get("label"),
                by=by,
                seen=seen,
            )
        )
        session.changed()
        return {"number": mark.number, "state": mark.state, "label": mark.label}

    async def undo(body: Body) -> Any:
        mark = await asyncio.to_thread(project.undo, _word(body, "by"))
        session.changed()
        row = None if mark is None else session.gallery.rows.get(mark.image)
        return {"row": row, "state": None if mark is None else mark.state}

    async def classes(body: Body) -> Any:
        wanted, renames = body.get("classes"), body.get("renames") or {}
        if not isinstance(wanted, list):
            raise ConfigError("Give a list of classes.")
        if not isinstance(renames, dict) or not all(isinstance(n, str) for n in renames.values()):
            raise ConfigError("'renames' must be an object of old and new names.")
        await asyncio.to_thread(project.set_classes, [_class(value) for value in wanted], renames)
        session.changed()
        return state_json(session)

    async def settings_changed(body: Body) -> Any:
        given = [key for key in ("patient", "slice") if key in body]
        changes: Body = {key: body[key] and (_word(body, key) or None) for key in given}
        await asyncio.to_thread(functools.partial(project.set_facts, **changes))
        session.changed()
        return state_json(session)

    async def choose_folder(body: Body) -> Any:
        if settings.token is not None:
            raise ConfigError("Folders can only be chosen on the machine itself. Drop the files.")
        chosen = home(_word(body, "folder"))
        if not chosen.is_absolute() or not chosen.is_dir():
            raise ConfigError(f"There is no folder '{chosen}' on this machine.")
        await asyncio.to_thread(session.add_folder, chosen)
        return state_json(session)

    async def upload(request: Request) -> Response:
        """One image or a zip of images, which the user wants in the project."""
        with tempfile.TemporaryDirectory(dir=folder) as received:
            file = Path(received) / _clean(request.query_params.get("name", ""))
            if not await receive_file(request, file):
                return problem("The file is empty.")
            await asyncio.to_thread(_keep, file, project.folder / UPLOADS)
        if request.query_params.get("last") == "1":
            await asyncio.to_thread(session.rescan)
        return JSONResponse(state_json(session))

    async def imported(request: Request) -> Response:
        """Labels of another tool: a table of path, label and perhaps patient."""
        with tempfile.TemporaryDirectory(dir=folder) as received:
            file = Path(received) / _clean(request.query_params.get("name", "labels.csv"))
            await receive_file(request, file)
            try:
                table = await asyncio.to_thread(read_table, file, root=Path())
                require_classes(table.task, "The studio")
            except OgkdError as error:  # nobody knows where the file was kept meanwhile
                raise DataError(str(error).replace(f"{received}/", "")) from error
        addresses = session.gallery.addresses
        paths = [case.image.as_posix() for case in table.cases]
        matches = match_paths(paths, addresses)
        rows = [
            (addresses[number], table.task.text(case.target), case.group)
            for number, case in zip(matches, table.cases, strict=True)
            if number is not None
        ]
        lost = [path for path, number in zip(paths, matches, strict=True) if number is None]
        new = await asyncio.to_thread(project.label_many, rows)
        session.changed()
        counts = {"labelled": new, "known": len(rows) - new, "lost_count": len(lost)}
        return JSONResponse({**counts, "lost": lost[:20]})

    async def export(request: Request) -> Response:
        kind = request.path_params["kind"]
        await asyncio.to_thread(session.settle)
        content, name, media = await exporting.run(lambda: _export(session, kind, folder))
        shown = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=media, headers=shown)

    def texts(request: Request) -> Response:
        return JSONResponse({"texts": texts_for(request.query_params.get("name", ""))})

    posts = {
        "/api/label": label,
        "/api/undo": undo,
        "/api/classes": classes,
        "/api/settings": settings_changed,
        "/api/folder": choose_folder,
    }
    small = functools.partial(thumbnail, side=THUMB)
    large = functools.partial(thumbnail, side=VIEW)
    gets: dict[str, Callable[[Request], Any]] = {
        "/model": model,
        "/api/state": state,
        "/api/images": images,
        "/api/next": following,
        "/api/texts": texts,
        "/api/look/{row}": look,
        "/api/similar/{row}": similar,
        "/thumb/{row}": small,
        "/image/{row}": large,
        "/api/export/{kind}": export,
    }
    return [
        *(Route(path, handler) for path, handler in gets.items()),
        *(Route(path, _json(handler), methods=["POST"]) for path, handler in posts.items()),
        Route("/api/upload", upload, methods=["POST"]),
        Route("/api/import", imported, methods=["POST"]),
    ]


def _json(handler: Callable[[Body], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    """A handler of JSON objects as one of requests."""

    async def called(request: Request) -> Response:
        from starlette.responses import JSONResponse

        try:
            body = parse_json(await request.body())
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return problem("Send a JSON object.")
        return JSONResponse(await handler(body))

    return called


def _number(request: Request) -> int | None:
    """The row in an address; an `int` there would be read whatever its length."""
    text = request.path_params["row"]
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def _class(value: Any) -> ClassInfo:
    if not isinstance(value, dict):
        raise ConfigError("A class is an object with a name.")
    try:
        return ClassInfo.model_validate(value)
    except ValueError as error:
        raise ConfigError("A class needs a name of at most 200 characters.") from error


def _word(body: Body, name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str) or len(value) > 4096:
        raise ConfigError(f"'{name}' must be a text.")
    return value


def _clean(name: str) -> str:
    """A file name without folders; what is not harmless in one becomes an underscore."""
    kept = "".join(c if c.isalnum() or c in "._- ()+#=,@" else "_" for c in Path(name).name)
    return kept.strip(" .")[-120:] or "file"


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


def _export(session: Session, kind: str, folder: Path) -> tuple[bytes, str, str]:
    name = session.project.folder.name
    if kind == "labels":
        return session.project.write_table().read_bytes(), f"{name}-labels.csv", "text/csv"
    if kind == "predictions":
        return exports.predictions_csv(session).encode(), f"{name}-predictions.csv", "text/csv"
    if kind == "report":
        path = exports.report_html(session, folder / "report.html")
        return path.read_bytes(), f"{name}-report.html", "text/html"
    if kind == "onnx":
        from ogkd.export import export_onnx, require_extra

        require_extra()
        path = folder / "model.onnx"
        export_onnx(exports.classifier_of(session), path)
        return path.read_bytes(), f"{name}.onnx", "application/octet-stream"
    if kind == "handover":
        exports.write_model(session)
        session.project.write_table()
        content = exports.hand_over(session.project, exports.predictions_csv(session))
        return content, f"{name}.zip", "application/zip"
    raise ConfigError("Export labels, predictions, report, onnx or handover.")
