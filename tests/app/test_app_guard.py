from __future__ import annotations

import pytest

pytest.importorskip("starlette")
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from ogkd.serve.guard import COOKIE, Guard
from ogkd.serve.server import Settings, make_app

HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
ADDRESS = "http://127.0.0.1:7860"
TOKEN = "a-token-ä"


def client(**options):
    """A client of an app that answers every request that the guard lets through."""
    settings = {"uploads": {"/predict": 1000}, "hosts": HOSTS, **options}
    return TestClient(Guard(PlainTextResponse("inside"), **settings), base_url=ADDRESS)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The routes of a page without a model."""
    app = make_app([], tmp_path_factory.mktemp("uploads"), Settings())
    return TestClient(app, base_url=ADDRESS, follow_redirects=False)


@pytest.mark.parametrize("path", ["/", "/model", "/health", "/openapi.json", "/static/main.js"])
def test_routes_of_the_page_are_open(page, path):
    assert page.get(path).status_code == 200


CLOSED = ["/static/../server.py", "/static/%2e%2e/server.py", "/static/", "/static", "/docs", "//"]
CLOSED += ["/etc/passwd", "/file=/etc/passwd", "/models.py", "/.env"]


@pytest.mark.parametrize("path", CLOSED)
def test_every_other_route_is_closed(page, path):
    assert page.get(f"{ADDRESS}{path}").status_code in (307, 404)


def test_only_known_posts_pass(page):
    assert page.post("/predict").status_code == 400
    for path in ("/", "/model", "/health", "/static/main.js", "/openapi.json", "/other"):
        assert page.post(path).status_code in (404, 405)
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        for path in ("/", "/predict"):
            reply = page.request(method, path)
            assert reply.status_code == 405
            assert reply.json()["detail"]


@pytest.mark.parametrize(
    ("host", "status"),
    [(host, 403) for host in ("evil.example:7860", "127.0.0.1.evil.example", "", "0.0.0.0")]
    + [(host, 200) for host in ("localhost", "LOCALHOST:80", "127.0.0.1:7860", "[::1]:7860")],
)
def test_only_host_names_of_this_machine_pass(host, status):
    assert client().get("/", headers={"host": host}).status_code == status


def test_other_sites_and_other_ports_may_not_ask():
    for origin in ("http://evil.example", "null", "http://localhost:3000", "http://127.0.0.1", ""):
        assert client().post("/predict", headers={"origin": origin}).status_code == 403
    assert client().post("/predict", headers={"origin": ADDRESS}).status_code == 200


def test_responses_forbid_other_origins():
    headers = client().get("/").headers
    assert not any(key.startswith("access-control") for key in headers)
    assert "connect-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_requests_above_their_size_limit_are_refused():
    assert client().post("/predict", content=bytes(1000)).status_code == 200
    assert client().post("/predict", content=bytes(1001)).status_code == 413
    assert client().post("/api/label", content=bytes((1 << 20) + 1)).status_code == 413
    assert client().post("/predict", headers={"content-length": "-1"}).status_code == 411
    assert client().post("/predict", content=iter([b"chunked"])).status_code == 411


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
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert client(token="secret").get("/", cookies={COOKIE: "secret"}).text == "inside"
    assert guarded.get("/", headers={"authorization": "Bearer secret"}).text == "inside"
