"""The whole command over its own socket, as a browser or a program meets it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ogkd.model.load import load

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "app.md"


@pytest.fixture(scope="session")
def cyst(phantoms):
    return phantoms / "test" / "simple_cyst" / "0000.png"


def test_every_model_answers_as_the_library_does(server, folders, cyst):
    body = server.classify(cyst.read_bytes(), cyst.name)
    assert [answer["model"] for answer in body["models"]] == ["gda", "zero"]
    assert body["image"] == {"name": cyst.name, "width": 128, "height": 128, "note": ""}
    assert "not for autonomous clinical use" in body["caution"]
    for answer in body["models"]:
        model = load(folders / answer["model"])
        expected = dict(zip(model.class_names, model.predict_proba([cyst])[0], strict=True))
        assert answer["probabilities"] == pytest.approx(expected, abs=1e-4)
        assert answer["prediction"] == max(expected, key=expected.get)
    gda, zero = body["models"]
    assert (gda["calibrated"], zero["calibrated"], zero["set"]) == (True, False, None)
    assert gda["similar"][0]["class"] == "simple cyst"
    assert "data:image" not in json.dumps(body)


def test_equal_images_at_the_same_time_are_all_answered_and_none_is_kept(server, cyst):
    content = cyst.read_bytes()
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda _: server.classify(content), range(12)))
    assert all(answer == replies[0] for answer in replies)
    assert server.waiting() == []
    [private] = server.temp.glob("ogkd-app-*")
    assert private.stat().st_mode & 0o077 == 0


def test_a_name_is_a_name_and_never_a_path_or_an_address(server, cyst):
    content = cyst.read_bytes()
    for name in ("/etc/passwd", "../../x.png", "http://127.0.0.1/a.png", "a" * 500, "", "<b>"):
        answer = server.classify(content, name)
        assert "/" not in answer["image"]["name"]
        assert len(answer["image"]["name"]) <= 255
        assert answer["models"][0]["prediction"] == "simple cyst"
    for body in (b"http://8.8.8.8/a.png", b'{"path": "/etc/passwd"}', b"file:///etc/passwd"):
        assert server.predict(body).status == 422
    assert server.waiting() == []
    assert not (server.temp.parent / "calls.txt").exists()


def test_the_page_tells_nothing_of_the_server_s_disk(server, folders):
    for path in ("/", "/model", "/health", "/openapi.json"):
        reply = server.request("GET", path)
        assert reply.status == 200
        assert str(server.temp).encode() not in reply.body
        assert str(folders).encode() not in reply.body


def test_the_model_says_what_it_is(server):
    body = server.request("GET", "/model").json
    gda, zero = body["models"]
    assert (gda["name"], gda["calibrated"], gda["learned_from"]) == ("gda", True, [6] * 4)
    assert (zero["name"], zero["calibrated"]) == ("zero", False)
    assert "simple cyst" in gda["classes"]
    assert body["max_bytes"] == 2_000_000
    assert server.request("GET", "/health").json["status"] == "ok"


def fits(schema, value, spec):
    """Whether a value is what the OpenAPI schema describes (the part of it that is used here)."""
    if "$ref" in schema:
        kind = schema["$ref"].rsplit("/", 1)[1]
        return fits(spec["components"]["schemas"][kind], value, spec)
    if "const" in schema:
        return value == schema["const"]
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    kinds |= {"number": (int, float), "integer": int}
    wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, kinds[kind]) for kind in wanted):
        return False
    if isinstance(value, list):
        return all(fits(schema["items"], item, spec) for item in value)
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties")
        return set(schema.get("required", ())) <= set(value) and all(
            fits(known.get(name, rest), item, spec) if known.get(name, rest) else False
            for name, item in value.items()
        )
    return True


def test_every_answer_is_what_the_openapi_description_says(server, cyst):
    spec = server.request("GET", "/openapi.json").json
    assert set(spec["paths"]) == {"/predict", "/model", "/health"}

    def schema(path, method, status):
        reply = spec["paths"][path][method]["responses"][status]
        if "$ref" in reply:
            reply = spec["components"]["responses"][reply["$ref"].rsplit("/", 1)[1]]
        return reply["content"]["application/json"]["schema"]

    content = cyst.read_bytes()
    for images in ("", "true"):
        body = server.predict(content, images=images).json
        assert fits(schema("/predict", "post", "200"), body, spec), body
    assert not fits(schema("/predict", "post", "200"), {**body, "more": 1}, spec)
    for path in ("/model", "/health"):
        assert fits(schema(path, "get", "200"), server.request("GET", path).json, spec)
    for reply in (server.predict(b""), server.predict(b"x"), server.predict(bytes(3_000_000))):
        assert fits(schema("/predict", "post", str(reply.status)), reply.json, spec)


def examples(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_curl_example_of_the_docs_works(server, cyst, tmp_path):
    if subprocess.run(["which", "curl"], capture_output=True).returncode:
        pytest.skip("curl is not installed")
    (example,) = [text for text in examples("sh") if "curl" in text]
    script = example.replace("http://127.0.0.1:7860", server.address)
    (tmp_path / "scan.png").write_bytes(cyst.read_bytes())
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == server.classify(cyst.read_bytes(), "scan.png")


def test_the_python_example_of_the_docs_works(server, cyst, tmp_path):
    (example,) = [text for text in examples("python") if "/predict" in text]
    script = example.replace("http://127.0.0.1:7860", server.address)
    (tmp_path / "scan.png").write_bytes(cyst.read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "gda simple cyst" in done.stdout
