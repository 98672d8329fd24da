"""The routes of the studio's page: JSON in and out, pictures, downloads.

A request names images by their number in the gallery, never by a path.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ogkd.app.guard import Guard
from ogkd.app.models import Model
from ogkd.app.server import Settings, guarded, make_uploads
from ogkd.app.uploads import FORMATS
from ogkd.app.web import INTERNAL_ERROR, Line, describe, problem, receive_file, use_routes
from ogkd.datasets.fetch import unpack
from ogkd.errors import ConfigError, DataError, OgkdError
from ogkd.files import folder_atomically, home, parse_json
from ogkd.images.decode import EXTENSIONS
from ogkd.model.card import CAUTION
from ogkd.model.decide import Decider
from ogkd.studio import exports
from ogkd.studio.facts import ClassInfo
from ogkd.studio.fitted import Fitted
from ogkd.studio.images import THUMB, VIEW, try_pattern
from ogkd.studio.importing import match, read_labels
from ogkd.studio.project import UPLOADS, Conflict
from ogkd.studio.session import Session, texts_for
from ogkd.studio.state import detail, images_json, state_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

_MOST_ZIP = 2_000_000_000
log = logging.getLogger("ogkd.studio")
Body = dict[str, Any]


def make_studio(session: Session, folder: Path, settings: Settings) -> Guard:
    """The page of the studio behind its guard."""
    from starlette.applications import Starlette

    uploads = make_uploads(folder, settings, frame="index=middle")
    line = Line(settings.waiting)
    current = CurrentModel(session)
    use = use_routes(current, uploads, line, max_bytes=settings.max_bytes)
    own = [route for route in use if route.path != "/model"]
    routes = [*own, *_routes(session, current, folder, settings, line)]
    limits = {"/api/upload": _MOST_ZIP, "/api/import": settings.max_bytes}
    return guarded(Starlette(routes=routes), settings, line, limits)


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
            found = exports.classifier_of(self._session, whole_card=False)
            self.made = [Model(self._session.project.folder.name, Decider(found))]
            self._fitted = fitted
        return self.made


def _routes(
    session: Session, current: CurrentModel, folder: Path, settings: Settings, line: Line
) -> list[Route]:
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    project = session.project
    exporting = Line(settings.waiting)  # beside the other: nobody who labels waits for a file

    async def model(_: Request) -> Response:
        said: dict[str, Any] = {"models": [describe(one) for one in current.made]}
        said |= {"caution": CAUTION, "formats": FORMATS, "studio": True}
        said |= {"max_bytes": settings.max_bytes, "max_pixels": settings.max_pixels}
        return JSONResponse(said)

    async def state(request: Request) -> Response:
        return JSONResponse(state_json(session))

    async def images(_: Request) -> Response:
        return JSONResponse(images_json(session))

    async def following(request: Request) -> Response:
        by = request.query_params.get("by", "")[:100]
        rows = await line.run(lambda: session.queue(by=by))
        return JSONResponse({"rows": rows, "version": session.version})

    async def picture(request: Request, side: int) -> Response:
        row = session.row(_number(request))
        content = await asyncio.to_thread(session.gallery.picture, row, side)
        return Response(content, media_type="image/jpeg")

    async def look(request: Request) -> Response:
        row = session.row(_number(request))
        evidence = request.query_params.get("evidence") == "1"
        return JSONResponse(await line.run(lambda: detail(session, current, row, evidence)))

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
        await asyncio.to_thread(project.set_classes, [_class(one) for one in wanted], renames)
        session.changed()
        return state_json(session)

    async def settings_changed(body: Body) -> Any:
        given = [key for key in ("patient", "slice") if key in body]
        changes: Body = {key: body[key] and (_word(body, key) or None) for key in given}
        if changes.get("patient"):
            await asyncio.to_thread(try_pattern, changes["patient"], session.gallery.addresses)
        await asyncio.to_thread(functools.partial(project.set_facts, **changes))
        session.changed()
        return state_json(session)

    async def choose_folder(body: Body) -> Any:
        if settings.password is not None:
            raise ConfigError("Folders can only be chosen on the machine itself. Drop the files.")
        place = home(_word(body, "folder"))
        if not place.is_absolute() or not place.is_dir():
            raise ConfigError(f"There is no folder '{place}' on this machine. Give its whole path.")
        await asyncio.to_thread(session.add_folder, place)
        return state_json(session)

    async def upload(request: Request) -> Response:
        """One image or a zip of images, which the user wants in the project."""
        name = _clean(request.query_params.get("name", ""))
        last = request.query_params.get("last") == "1"
        aside = folder / f"upload-{id(request)}"
        aside.mkdir()
        try:
            if not await receive_file(request, aside / name, _MOST_ZIP):
                return problem("The file is empty.")
            await asyncio.to_thread(_keep, aside / name, project.folder / UPLOADS)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        if last:
            await asyncio.to_thread(session.rescan)
        return JSONResponse(state_json(session))

    async def imported(request: Request) -> Response:
        """Labels of another tool."""
        aside = folder / f"import-{id(request)}"
        aside.mkdir()
        try:
            file = aside / _clean(request.query_params.get("name", "labels.csv"))
            await receive_file(request, file, settings.max_bytes)
            pairs, lost = match(
                await asyncio.to_thread(read_labels, file), session.gallery.addresses
            )
        except OgkdError as error:  # nobody knows where the file was kept meanwhile
            raise DataError(str(error).replace(f"{aside}/", "")) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        places = session.gallery.addresses
        rows = [(places[number], one.label, one.patient) for number, one in pairs]
        new = await asyncio.to_thread(project.label_many, rows)
        session.changed()
        said = {
            "labelled": new,
            "known": len(rows) - new,
            "lost": lost[:20],
            "lost_count": len(lost),
        }
        return JSONResponse(said)

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
    small = functools.partial(picture, side=THUMB)
    large = functools.partial(picture, side=VIEW)
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
        *(Route(path, _kind(handler)) for path, handler in gets.items()),
        *(Route(path, _kind(_json(handler)), methods=["POST"]) for path, handler in posts.items()),
        Route("/api/upload", _kind(upload), methods=["POST"]),
        Route("/api/import", _kind(imported), methods=["POST"]),
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


def _kind(handler: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose errors are answers: one sentence, never a traceback."""

    async def called(request: Request) -> Response:
        from starlette.responses import JSONResponse, Response

        try:
            found = handler(request)
            found = await found if asyncio.iscoroutine(found) else found
            assert isinstance(found, Response)
            return found
        except Conflict as error:
            mark = {"label": error.mark.label, "state": error.mark.state}
            return JSONResponse({"detail": str(error), "number": error.mark.number, **mark}, 409)
        except OgkdError as error:
            return problem(str(error), 422)
        except Exception:
            log.exception("A request failed.")
            return problem(INTERNAL_ERROR, 500)

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
        place = _free(target / file.stem)
        with folder_atomically(place) as aside:
            unpack(file, aside)
        return
    if not file.name.lower().endswith(tuple(EXTENSIONS)):
        raise ConfigError(f"'{file.name}' is not an image or a zip archive of images.")
    shutil.move(file, _free(target / file.name))


def _free(place: Path) -> Path:
    """The place, or one with a number if it is taken: nothing is replaced."""
    number, first = 2, place
    while place.exists():
        place, number = first.with_stem(f"{first.stem}-{number}"), number + 1
    return place


def _export(session: Session, kind: str, folder: Path) -> tuple[bytes, str, str]:
    name = session.project.folder.name
    if kind == "labels":
        return session.project.write_table().read_bytes(), f"{name}-labels.csv", "text/csv"
    if kind == "predictions":
        return exports.predictions_csv(session).encode(), f"{name}-predictions.csv", "text/csv"
    if kind == "report":
        place = exports.report_html(session, folder / "report.html")
        return place.read_bytes(), f"{name}-report.html", "text/html"
    if kind == "onnx":
        from ogkd.export import export_onnx, require_extra

        require_extra()
        place = folder / "model.onnx"
        export_onnx(exports.classifier_of(session), place)
        return place.read_bytes(), f"{name}.onnx", "application/octet-stream"
    if kind == "handover":
        exports.write_model(session)
        session.project.write_table()
        content = exports.hand_over(session.project, exports.predictions_csv(session))
        return content, f"{name}.zip", "application/zip"
    raise ConfigError("Export labels, predictions, report, onnx or handover.")
