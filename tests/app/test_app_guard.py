from __future__ import annotations

import asyncio
import base64
import json

import pytest

from ogkd.app.guard import Guard

HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST = {"host": "127.0.0.1:7860"}


def ask(method, path, *, headers=HOST, body=b"", kind="http", **settings):
    """Status, headers and body of the answer; 200 and "inside" where the request got through."""
    options = {"max_bytes": 1000, "hosts": HOSTS, "password": None, "busy": lambda: False}
    sent = []

    async def inside(scope, receive, send):
        shown = [(b"access-control-allow-origin", b"*")]
        await send({"type": "http.response.start", "status": 200, "headers": shown})
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


NEEDED = ["/", "/config", "/assets/index-Ab_1.js", "/static/fonts/a.woff2", "/theme.css"]
NEEDED += ["/gradio_api/info", "/gradio_api/queue/data", "/gradio_api/call/classify/0f"]
NEEDED += ["/gradio_api/heartbeat/abc", "/gradio_api/upload_progress"]


@pytest.mark.parametrize("path", NEEDED)
def test_what_the_page_needs_passes(path):
    assert ask("GET", path)[0] == 200


CLOSED = ["/gradio_api/file=/etc/passwd", "/gradio_api/file=../../etc/passwd", "/monitoring"]
CLOSED += ["/gradio_api/proxy=http://example.com", "/gradio_api/vibe-code", "/gradio_api/runs"]
CLOSED += ["/gradio_api/stream/a/b/c/playlist.m3u8", "/docs", "/openapi.json", "/gradio_api/token"]
CLOSED += ["/assets/../../etc/passwd?", "/gradio_api/call/other/0f", "//", "/config\n"]


@pytest.mark.parametrize("path", CLOSED)
def test_every_other_route_is_closed(path):
    assert ask("GET", path)[0] == 404


def test_only_known_posts_pass():
    for path in ("upload", "queue/join", "call/classify", "call/v2/classify"):
        assert post(f"/gradio_api/{path}")[0] == 200
    for path in ("run/classify", "api/classify", "component_server", "process_recording"):
        assert post(f"/gradio_api/{path}")[0] == 404
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert ask(method, "/")[0] == 404


@pytest.mark.parametrize("host", ["evil.example:7860", "127.0.0.1.evil.example", "", "0.0.0.0"])
def test_a_name_that_was_pointed_at_this_machine_is_refused(host):
    assert ask("GET", "/", headers={"host": host})[0] == 403
    assert ask("GET", "/", headers={})[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:7860", "[::1]:7860"])
def test_the_names_of_this_machine_pass(host):
    assert ask("GET", "/", headers={"host": host})[0] == 200


def test_other_sites_and_other_ports_may_not_ask():
    for origin in ("http://evil.example", "null", "http://localhost:3000", "http://127.0.0.1", ""):
        assert post("/gradio_api/upload", headers={"origin": origin})[0] == 403
    assert post("/gradio_api/upload", headers={"origin": "http://127.0.0.1:7860"})[0] == 200


def test_nobody_is_told_that_they_may_read_across_origins():
    _, headers, _ = ask("GET", "/")
    assert not any(key.startswith(b"access-control") for key in headers)
    assert b"connect-src 'self'" in headers[b"content-security-policy"]
    assert headers[b"x-content-type-options"] == b"nosniff"


def test_what_is_too_large_is_refused_with_the_limit():
    assert post("/gradio_api/upload", 1000)[0] == 200
    status, _, body = post("/gradio_api/upload", 1000 + 64 * 1024 + 1)
    assert status == 413
    assert "0.001 MB" in json.loads(body)["detail"]
    assert post("/gradio_api/queue/join", 64 * 1024 + 1)[0] == 413
    assert ask("POST", "/gradio_api/upload")[0] == 411
    assert post("/gradio_api/upload", "-1")[0] == 411


def test_when_too_many_wait_more_work_is_refused_and_the_rest_goes_on():
    full = {"busy": lambda: True}
    for path in ("upload", "queue/join", "call/classify"):
        status, _, body = post(f"/gradio_api/{path}", **full)
        assert status == 503
        assert "Try again" in json.loads(body)["detail"]
    assert ask("GET", "/gradio_api/queue/data", **full)[0] == 200
    assert post("/gradio_api/cancel", **full)[0] == 200


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
        for path in ("/", "/config", "/nothing", "/assets/a.js"):
            status, told, _ = ask("GET", path, headers={**HOST, **headers}, **closed)
            assert status == 401
            assert told[b"www-authenticate"].startswith(b"Basic")
    assert len(pauses) == 4 * len(wrong)
    assert ask("GET", "/", headers={"host": "any.example", **basic("geheim:ü")}, **closed)[0] == 200


def test_web_sockets_are_closed():
    assert ask("GET", "/", kind="websocket") == [{"type": "websocket.close", "code": 1008}]
