"""Every argument of every route of the studio meets values that no page sends.

A request is answered or refused in one sentence; what was refused has changed nothing on the disk,
and whatever was accepted can be shown and opened again.
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

pytest.importorskip("starlette")

from ogkd.serve.studio.project import Project
from ogkd.serve.studio.routes import studio_routes

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
        *('{"classes": $value}', '{"classes": [$value]}', '{"classes": [*, {"name": $value}]}'),
        *(_CLASS + '"texts": [$value]}]}', _CLASS + '"normal": $value}]}'),
        *(_CLASS + '"more": $value}]}', '{"classes": [*], "renames": $value}'),
        '{"classes": [*], "renames": {"CLASS": $value}}',
    ],
    "/api/settings": ['{"patient": $value}', '{"x": $value}'],
}
QUERIES = {"/api/next": ["by"], "/api/texts": ["name"], "/api/look/{row}": ["evidence"]}
QUERIES |= {path: [] for path in ("/thumb/{row}", "/image/{row}")}
QUERIES |= {path: ["x"] for path in ("/api/export", "/api/state", "/api/images")}
UPLOADS = {"/api/upload": ["name", "last"]}


@pytest.fixture
def ask(studio):
    """A request is answered or refused, after which the disk is as it was."""

    def on_disk():
        """A digest of all that the project keeps; its table and model are made from the rest."""
        kept = [studio.folder / "project.json", studio.folder / "labels.jsonl"]
        kept += (studio.folder / "images").rglob("*")
        return {file: hashlib.sha256(file.read_bytes()).digest() for file in kept if file.is_file()}

    def run(method, path, body=None):
        before = on_disk()
        reply = studio.client.request(method, path, content=body)
        context = f"{method} {path[:200]} {(body or b'')[:200]!r}: {reply.status_code}"
        assert reply.status_code in (200, 307, 400, 404, 405, 409, 411, 413, 422), context
        if reply.status_code not in (200, 307):
            assert len(reply.json()["error"]) < 1000, context
            assert on_disk() == before, context
        return reply.status_code

    return run


@pytest.fixture
def whole(studio, tmp_path):
    """At the end the page can be shown, the project opened again, and nothing lies beside it."""

    def around():
        files = studio.folder.parent.rglob("*")
        return {file for file in files if not {"project", "cache"} & {*file.parts}}

    before = around()
    yield
    assert around() == before
    for path in ("/api/state", "/api/images", "/api/next"):
        reply = studio.client.get(path)
        assert reply.status_code == 200
        json.loads(reply.content, parse_constant=pytest.fail)  # NaN is not JSON
    for name in ("project.json", "labels.jsonl"):
        if (studio.folder / name).exists():
            shutil.copy(studio.folder / name, tmp_path / name)
    names = [info["name"] for info in studio.state["classes"]]
    assert list(Project.open(tmp_path).class_names) == names


def test_every_route_is_here():
    nothing = SimpleNamespace(project=None)
    routes = studio_routes(nothing, None, nothing)
    assert {route.path for route in routes} == {*BODIES, *QUERIES, *UPLOADS}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.usefixtures("whole")
def test_any_json_body_is_answered_or_refused(studio, ask, path):
    kept = studio.post("/api/label", row=1, label=studio.state["classes"][0]["name"], by="kept")
    assert kept["status"] == 200  # so that one class is always used, and cannot be removed
    for template, value in itertools.product(BODIES[path], VALUES):
        classes = studio.state["classes"]
        known = json.dumps([{"name": info["name"]} for info in classes])[1:-1]
        filled = template.replace("*", known).replace("CLASS", classes[0]["name"])
        body = string.Template(filled).substitute(value=value)
        ask("POST", path, body.encode("utf-8", "surrogatepass"))
    for body in [*(value.encode() for value in VALUES if not value.startswith("{")), *FILES]:
        assert ask("POST", path, body) in (400, 413, 422)


def quoted(word):
    return quote(word.encode("utf-8", "surrogatepass"), safe="%")


@pytest.mark.parametrize("path", QUERIES)
@pytest.mark.usefixtures("whole")
def test_any_address_is_answered_or_refused(ask, path):
    route, brace, _ = path.partition("{")
    for word in WORDS if brace else ():
        assert ask("GET", route + quoted(word)) in (404, 422)
    for name, word in itertools.product([*QUERIES[path], "__class__"], WORDS):
        value = "0" if brace else ""
        ask("GET", f"{route}{value}?{name}={quoted(word)}")


@pytest.mark.parametrize("path", UPLOADS)
@pytest.mark.usefixtures("whole")
def test_any_file_is_accepted_or_refused(ask, path):
    for name, (number, word) in itertools.product(UPLOADS[path], enumerate(WORDS)):
        fixed = "" if name == "name" else "name=a.png&"
        ask("POST", f"{path}?{fixed}{name}={quoted(word)}", FILES[number % len(FILES)])
    for suffix, content in itertools.product(("csv", "zip"), FILES):
        ask("POST", f"{path}?name=labels.{suffix}", content)
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("../../outside.png", b"x")
    ask("POST", f"{path}?last=1&name=a.zip", memory.getvalue())
