"""Every argument of every route of the studio meets values that no page sends.

A request is answered or refused in words; what was refused has changed nothing on the disk, and
whatever was accepted can be shown and opened again.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import shutil
import string
import zipfile
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from studio_world import CLASSES, until

pytest.importorskip("uvicorn")
from app_client import started

from ogkd.errors import DataError
from ogkd.serve.server import Settings
from ogkd.serve.studio import images
from ogkd.serve.studio.project import Project
from ogkd.serve.studio.routes import _routes
from ogkd.serve.studio.session import Session

pytestmark = pytest.mark.slow
DEEP = "[" * 5000 + "]" * 5000
VALUES = [
    *("null", "true", "-1", "1.5", "1e400", "NaN", "1" * 5000, '""', '"\\u0000"', '"\\ud800"'),
    *('"../../etc/passwd"', '"~nosuchuser/x"', '"/dev/zero"', '"<script>"', '"=cmd()"', '"("'),
    *(f'"{"x" * 5000}"', "[]", "{}", "[null]", '["a", 1]', '{"a": "b"}', DEEP),
]
WORDS = ["../../etc/passwd", "\0", "\ud800", "x" * 5000, "1" * 5000, "-1", "1e9", "٣", "%00"]
WORDS += ["..%2f..%2fx", "a/b", "x.png#index=9", "x.zip", "."]
FILES = [b"", b"\0", b"PK\3\4", b"path,label\n", b"\xff\xfe", b"path,label\n\xff,b\n", b"[1]"]
# Every route with its arguments: those of a JSON body by templates in which $value stands.
_LABEL = '{"row": 0, "label": "CLASS", '
_CLASS = '{"classes": [*, {"name": "new", '
BODIES = {
    "/api/label": [
        *('{"row": $value, "label": "CLASS"}', '{"row": 0, "label": $value}'),
        *('{"row": 0, "state": $value}', _LABEL + '"by": $value}', _LABEL + '"seen": $value}'),
    ],
    "/api/undo": ['{"by": $value}'],
    "/api/classes": [
        *('{"classes": $value}', '{"classes": [$value]}', '{"classes": [{"name": $value}]}'),
        *(_CLASS + '"texts": $value}]}', _CLASS + '"texts": [$value]}]}'),
        *(_CLASS + '"normal": $value}]}', _CLASS + '"more": $value}]}'),
        *('{"classes": [*, {"name": $value}]}', '{"classes": [*], "renames": $value}'),
        '{"classes": [*], "renames": {"CLASS": $value}}',
        '{"classes": $value, "renames": {"CLASS": "another name"}}',
    ],
    "/api/settings": ['{"patient": $value}', '{"slice": $value}', '{"x": $value}'],
    "/api/folder": ['{"folder": $value}'],
}
QUERIES = {
    "/api/next": ["by"],
    "/api/texts": ["name"],
    "/api/look/{row}": ["evidence"],
    "/api/similar/{row}": [],
    "/thumb/{row}": [],
    "/image/{row}": [],
    "/api/export/{kind}": [],
    "/api/state": ["x"],
    "/api/images": ["x"],
    "/model": ["x"],
}
UPLOADS = {"/api/upload": ["name", "last"], "/api/import": ["name"]}


@pytest.fixture(scope="module")
def server(pile, tmp_path_factory):
    place = tmp_path_factory.mktemp("fuzz")
    with started(place, pile, "--out", place / "project", command="studio") as one:
        until(lambda: one.request("GET", "/api/state").json["stage"] == "ready")
        classes = json.dumps({"classes": [{"name": name} for name in CLASSES]})
        assert post(one, "/api/classes", classes.encode()).status == 200
        yield one
    # `started` sees at its end that the server said no traceback and called no other machine.


def post(server, path, body):
    return server.request("POST", path, body, Content_Type="application/json")


def on_disk(server):
    """A digest of all that the project keeps; its table and model are made from the rest."""
    project = server.temp.parent / "project"
    kept = [project / "project.json", project / "labels.jsonl", *(project / "images").rglob("*")]
    return {
        str(file): hashlib.sha256(file.read_bytes()).digest() for file in kept if file.is_file()
    }


def checked(server, before, reply, what):
    """An answer or a refusal; what is on the disk after it."""
    what = f"{what[:200]!r}: {reply.status} {reply.body[:300]!r}"
    assert reply.status in (200, 400, 404, 405, 409, 411, 413, 422), what
    after = on_disk(server)
    if reply.status != 200:
        said = reply.json["detail"] if reply.status not in (404, 405) else "Not found."
        assert "Traceback" not in said, what
        assert len(said) < 1000, what
        assert after == before, what
    return after


def still_whole(server, tmp_path, place=None):
    """The page can be shown, and the project opened again."""
    for path in ("/api/state", "/api/images", "/api/next"):
        reply = server.request("GET", path)
        assert reply.status == 200, (place, reply)
        json.loads(reply.body, parse_constant=pytest.fail)  # NaN is not JSON
    for name in ("project.json", "labels.jsonl"):
        source = server.temp.parent / "project" / name
        if source.exists():
            shutil.copy(source, tmp_path / name)
    opened = Project.open(tmp_path)
    found = server.request("GET", "/api/state").json
    assert opened.class_names == tuple(one["name"] for one in found["classes"]), place


def test_every_route_is_here():
    nothing = SimpleNamespace(project=None)
    found = {route.path for route in _routes(nothing, nothing, None, Settings(), nothing)}
    assert found == {*BODIES, *QUERIES, *UPLOADS}


@pytest.mark.parametrize(
    ("path", "template"), [(path, one) for path, some in BODIES.items() for one in some]
)
def test_a_body_is_answered_or_refused_in_words(server, tmp_path, path, template):
    before = on_disk(server)
    for value in VALUES:
        found = server.request("GET", "/api/state").json["classes"]
        known = json.dumps([{"name": one["name"]} for one in found])[1:-1]
        filled = template.replace("*", known).replace("CLASS", found[0]["name"])
        body = string.Template(filled).substitute(value=value)
        reply = post(server, path, body.encode("utf-8", "surrogatepass"))
        before = checked(server, before, reply, f"{path} {body}")
    still_whole(server, tmp_path, template)


@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_is_not_an_object_is_refused(server, path):
    before = on_disk(server)
    for body in [*(one.encode() for one in VALUES if not one.startswith("{")), *FILES]:
        reply = post(server, path, body)
        before = checked(server, before, reply, f"{path} {body[:80]!r}")
        assert reply.status in (400, 413, 422) or body.startswith(b"{"), (path, body[:80])


@pytest.mark.parametrize("path", QUERIES)
def test_an_address_is_answered_or_refused_in_words(server, tmp_path, path):
    before = on_disk(server)
    route, brace, _ = path.partition("{")
    for word in WORDS if brace else ():
        address = route + quote(word.encode("utf-8", "surrogatepass"), safe="%")
        reply = server.request("GET", address)
        before = checked(server, before, reply, address)
        assert reply.status in (404, 422), address
    for name, word in itertools.product([*QUERIES[path], "__class__"], WORDS):
        query = quote(word.encode("utf-8", "surrogatepass"), safe="%")
        where = f"{route}{'labels' if 'kind' in path else '0' if brace else ''}?{name}={query}"
        before = checked(server, before, server.request("GET", where), where)
    still_whole(server, tmp_path)


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, names in UPLOADS.items() for name in names]
)
def test_a_file_is_taken_or_refused_in_words(server, tmp_path, path, name):
    before, outside = on_disk(server), server.temp.parent.parent
    around = {file for file in outside.rglob("*") if "project" not in file.parts}
    for number, word in enumerate(WORDS):
        query = quote(word.encode("utf-8", "surrogatepass"), safe="%")
        fixed = "" if name == "name" else "name=a.png&"
        where = f"{path}?{fixed}{name}={query}"
        reply = server.request("POST", where, FILES[number % len(FILES)])
        before = checked(server, before, reply, where)
    for suffix, content in itertools.product(("csv", "zip"), FILES):
        where = f"{path}?name=labels.{suffix}"
        reply = server.request("POST", where, content)
        before = checked(server, before, reply, f"{where} {content[:60]!r}")
    # A cache and the log may have grown; nothing else outside the project.
    more = {file for file in outside.rglob("*") if "project" not in file.parts} - around
    assert [file for file in more if "cache" not in file.parts] == []
    still_whole(server, tmp_path)


def test_an_archive_cannot_write_outside(server):
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("../../outside.png", b"x")
    before = on_disk(server)
    reply = server.request("POST", "/api/upload?last=1&name=a.zip", memory.getvalue())
    checked(server, before, reply, "a path that leads out")
    assert reply.status == 422
    assert not list(server.temp.parent.parent.rglob("outside.png"))


def test_a_folder_that_cannot_be_used_is_not_added(tmp_path, pile, monkeypatch):
    project = Project.open(tmp_path / "project")
    session = Session(project)
    monkeypatch.setattr(images, "_MOST", 3)
    try:
        with pytest.raises(DataError, match="more than the 3"):
            session.add_folder(pile)
        assert project.facts.folders == ()
        assert len(session.gallery) == 0
    finally:
        session.close()
