"""Which requests reach the page: one table of requests and their status."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from ogkd.serve.guard import COOKIE, Guard
from ogkd.serve.server import Settings, guarded, one_worker
from ogkd.serve.web import page_routes, use_routes

HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
ADDRESS = "http://127.0.0.1:7860"
TOKEN = "a-token-ä"


def client(**options):
    """A client of an app that answers every request that the guard lets through."""
    settings = {"uploads": {"/predict": 1000}, "hosts": HOSTS, **options}
    return TestClient(Guard(PlainTextResponse("inside"), **settings), base_url=ADDRESS)


def without_model(folder, settings):
    routes = use_routes(lambda: None, folder, settings.max_bytes, one_worker())
    return guarded([*routes, *page_routes()], settings)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The routes of a page without a model."""
    return TestClient(
        without_model(tmp_path_factory.mktemp("uploads"), Settings()),
        base_url=ADDRESS,
        follow_redirects=False,
    )


OPEN = ["/", "/favicon.ico", "/model", "/health", "/openapi.json", "/static/main.js"]
CLOSED = ["/static/../server.py", "/static/%2e%2e/server.py", "/static/", "/static", "/docs", "//"]
CLOSED += ["/etc/passwd", "/file=/etc/passwd", "/models.py", "/.env"]


def test_only_the_routes_of_the_page_are_open(page):
    assert {page.get(path).status_code for path in OPEN} == {200}
    assert {page.get(f"{ADDRESS}{path}").status_code for path in CLOSED} <= {307, 404}
    assert page.post("/predict").status_code == 400
    assert {page.post(path).status_code for path in [*OPEN, "/other"]} <= {404, 405}
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        replies = [page.request(method, path) for path in ("/", "/predict")]
        assert all(reply.status_code == 405 and reply.json()["error"] for reply in replies)


FOREIGN = ["http://evil.example", "null", "http://localhost:3000", "http://127.0.0.1", ""]
REQUESTS = [
    *(({"host": host}, b"", 403) for host in ("evil.example:7860", "127.0.0.1.evil.example", "")),
    *(({"host": host}, b"", 200) for host in ("localhost", "LOCALHOST:80", "[::1]:7860")),
    *(({"origin": origin}, b"", 403) for origin in FOREIGN),
    ({"origin": ADDRESS}, b"", 200),
    ({}, bytes(1000), 200),
    ({}, bytes(1001), 413),
    ({"content-length": "-1"}, b"", 411),
    ({}, iter([b"chunked"]), 411),
]


@pytest.mark.parametrize(("headers", "body", "status"), REQUESTS)
def test_other_sites_host_names_and_sizes_are_refused(headers, body, status):
    reply = client().post("/predict", headers=headers, content=body)
    assert reply.status_code == status
    assert not any(key.startswith("access-control") for key in reply.headers)
    assert "connect-src 'self'" in reply.headers["content-security-policy"]
    assert reply.headers["cache-control"] == "no-store"


def test_without_the_token_nothing_is_shown():
    guarded = client(token=TOKEN)
    bad = [{}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer "}]
    bad += [{"authorization": "Basic " + TOKEN}, {"cookie": f"{COOKIE}=wrong"}]
    for headers in bad:
        encoded = {key: value.encode() for key, value in headers.items()}
        for path in ("/", "/model", "/nothing", "/static/main.js", "/?token=wrong", "/?token="):
            assert guarded.get(path, headers=encoded).status_code == 401


def test_the_printed_address_signs_a_browser_in_and_programs_send_the_token():
    guarded = client(token="secret")
    browser = guarded.get("/?token=secret", headers={"host": "any.example"}, follow_redirects=False)
    assert (browser.status_code, browser.headers["location"]) == (303, "/")
    cookie = browser.headers["set-cookie"].lower()
    assert ("httponly" in cookie, "samesite=strict" in cookie) == (True, True)
    assert client(token="secret").get("/", cookies={COOKIE: "secret"}).text == "inside"
    assert guarded.get("/", headers={"authorization": "Bearer secret"}).text == "inside"


def test_the_log_has_a_line_for_each_answer_and_no_name_of_a_file(tmp_path, capsys):
    app = without_model(tmp_path, Settings(access_log=True, max_bytes=10))
    page = TestClient(app, base_url=ADDRESS)
    page.get("/model?name=Jane%20Doe.png")
    page.get("/Jane%20Doe.png")
    refused = page.post("/predict?name=Jane%20Doe.png", content=bytes(11))
    assert "--max-mb" in refused.json()["error"]
    lines = [line.rsplit(" ", 2)[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["GET /model 200", "GET - 404", "POST /predict 413"]


def test_a_health_check_needs_no_token():
    assert client(token="secret").get("/health").status_code == 200
    assert client(token="secret").get("/health/x").status_code == 401
