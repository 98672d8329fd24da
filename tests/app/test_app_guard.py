from __future__ import annotations

import asyncio
import base64
import json

import pytest

from ogkd.app.guard import Guard
from ogkd.app.limits import Guesses
from ogkd.app.server import Settings, make_app

HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST = {"host": "127.0.0.1:7860"}


def ask(method, path, *, headers=HOST, body=b"", kind="http", **settings):
    """Status, headers and body of the answer; 200 and "inside" where the request got through."""
    options = {"uploads": {"/predict": 1000}, "hosts": HOSTS, "password": None}
    options["busy"] = lambda: False
    sent = []

    async def inside(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    pairs = [(key.encode(), value.encode()) for key, value in headers.items()]
    scope = {"type": kind, "method": method, "path": path, "headers": pairs}
    asyncio.run(Guard(inside, **{**options, **settings})(scope, receive, send))
    if kind != "http":
        return sent
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def post(path, length=10, **more):
    headers = {**HOST, **more.pop("headers", {}), "content-length": str(length)}
    return ask("POST", path, headers=headers, **more)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Ask the routes of a page without a model; status of the answer."""
    pytest.importorskip("starlette")
    app = make_app([], tmp_path_factory.mktemp("uploads"), Settings()).app

    def status(method, path):
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
        asyncio.run(app({**scope, "raw_path": path.encode()}, receive, send))
        return sent[0]["status"]

    return status


@pytest.mark.parametrize("path", ["/", "/model", "/health", "/openapi.json", "/static/main.js"])
def test_what_the_page_needs_passes(page, path):
    assert page("GET", path) == 200


CLOSED = ["/static/../server.py", "/static/%2e%2e/server.py", "/static/", "/static", "/docs", "//"]
CLOSED += ["/etc/passwd", "/file=/etc/passwd", "/models.py", "/static/main.js/", "/.env"]


@pytest.mark.parametrize("path", CLOSED)
def test_every_other_route_is_closed(page, path):
    assert page("GET", path) in (307, 404)


def test_only_known_posts_pass(page):
    assert page("POST", "/predict") == 400
    for path in ("/", "/model", "/health", "/static/main.js", "/openapi.json", "/other"):
        assert page("POST", path) in (404, 405)
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT"):
        assert ask(method, "/")[0] == 404
        assert ask(method, "/predict")[0] == 404


@pytest.mark.parametrize("host", ["evil.example:7860", "127.0.0.1.evil.example", "", "0.0.0.0"])
def test_a_name_that_was_pointed_at_this_machine_is_refused(host):
    assert ask("GET", "/", headers={"host": host})[0] == 403
    assert ask("GET", "/", headers={})[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:7860", "[::1]:7860"])
def test_the_names_of_this_machine_pass(host):
    assert ask("GET", "/", headers={"host": host})[0] == 200


def test_other_sites_and_other_ports_may_not_ask():
    for origin in ("http://evil.example", "null", "http://localhost:3000", "http://127.0.0.1", ""):
        assert post("/predict", headers={"origin": origin})[0] == 403
    assert post("/predict", headers={"origin": "http://127.0.0.1:7860"})[0] == 200


def test_nobody_is_told_that_they_may_read_across_origins():
    _, headers, _ = ask("GET", "/")
    assert not any(key.startswith(b"access-control") for key in headers)
    assert b"connect-src 'self'" in headers[b"content-security-policy"]
    assert headers[b"x-content-type-options"] == b"nosniff"


def test_what_is_too_large_is_refused_with_the_limit():
    assert post("/predict", 1000)[0] == 200
    status, _, body = post("/predict", 1001)
    assert status == 413
    assert "0.001 MB" in json.loads(body)["detail"]
    assert post("/api/label", (1 << 20) + 1)[0] == 413
    assert ask("POST", "/predict")[0] == 411
    assert post("/predict", "-1")[0] == 411


def test_when_too_many_wait_more_work_is_refused_and_the_rest_goes_on():
    full = {"busy": lambda: True}
    status, _, body = post("/predict", **full)
    assert status == 503
    assert "Try again" in json.loads(body)["detail"]
    assert ask("GET", "/model", **full)[0] == 200
    assert post("/api/label", **full)[0] == 200


def basic(password, user="ogkd"):
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_with_a_password_nothing_is_told_without_it(monkeypatch):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    closed = {"password": "geheim:ü", "hosts": None}
    wrong = [{}, basic("wrong"), basic(""), {"authorization": "Basic %%%"}]
    wrong += [{"authorization": "Bearer geheim:ü"}, {"authorization": "Basic"}]
    for headers in wrong:
        for path in ("/", "/model", "/nothing", "/static/main.js"):
            status, told, _ = ask("GET", path, headers={**HOST, **headers}, **closed)
            assert status == 401
            assert told[b"www-authenticate"].startswith(b"Basic")
    assert len(pauses) == 4 * len(wrong)


def test_after_a_few_wrong_passwords_even_the_right_one_has_to_wait(monkeypatch):
    async def sleep(_):
        pass

    monkeypatch.setattr(asyncio, "sleep", sleep)
    closed = {"password": "long enough", "hosts": None, "guesses": Guesses()}
    found = [ask("GET", "/", headers={**HOST, **basic("wrong")}, **closed)[0] for _ in range(30)]
    assert found == [401] * 5 + [429] * 25
    status, _, body = ask("GET", "/", headers={**HOST, **basic("long enough")}, **closed)
    assert (status, "Try again in" in json.loads(body)["detail"]) == (429, True)


def test_the_password_opens_the_page_under_any_name():
    closed = {"password": "geheim:ü", "hosts": None}
    assert ask("GET", "/", headers={"host": "any.example", **basic("geheim:ü")}, **closed)[0] == 200


def test_web_sockets_are_closed():
    assert ask("GET", "/", kind="websocket") == [{"type": "websocket.close", "code": 1008}]
